"""Readers of foreign envelopes, with deliveries of the broker in memory."""

from outboxkit import Message
from outboxkit.brokers import Delivery, message_in
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.codec.compression import deflate
from outboxkit.codec.envelopes import CloudEvents, Envelope, Reader
from outboxkit.codec.envelopes.cloudevents import STRUCTURED
from outboxkit.codec.envelopes.envelope import Malformed
from outboxkit.codec.payloads import LARGE, plain_payload
from tests.unit.codec.envelopes import samples
from tests.unit.shop import message

LEGACY = message(id="legacy-1")


def legacy(envelope: Envelope) -> Message | None:
    return LEGACY if envelope.content_type == "text/legacy" else None


async def arrived(sent: Message) -> Delivery:
    broker = MemoryBroker()
    subscriber = MemorySubscriber(broker, "billing", ["#"])
    await MemoryPublisher(broker).publish([sent])
    delivery = await subscriber.receive()
    assert delivery is not None
    return delivery


async def found(sent: Message, *readers: Reader) -> Message | Malformed:
    return message_in(await arrived(sent), readers)


async def test_the_reader_that_knows_it_reads_it_and_ours_the_rest():
    assert await found(message(content_type="text/legacy"), legacy) is LEGACY
    assert await found(message(), legacy) == message()


async def test_what_a_reader_refuses_is_kept_as_it_came():
    sent = message(payload=b"{", content_type="application/cloudevents+json", correlation_id="c", topic="t")
    refused = await found(sent, CloudEvents())
    assert isinstance(refused, Malformed)
    assert (refused.kind, refused.body, refused.content_type) == ("undecodable", b"{", sent.content_type)
    assert (refused.message_id, refused.type, refused.routing_key) == (sent.id, sent.type, "t")
    assert refused.reason.startswith("reader CloudEvents: the envelope is not valid")


async def test_a_large_payload_that_was_inflated_waits_compressed_for_its_handler():
    document = samples.STRUCTURED.body.replace(b'"data": {', b'"data": {"x":"' + b"a" * LARGE + b'",')
    sent = message(payload=deflate(document, "gzip"), content_encoding="gzip", content_type=STRUCTURED)
    large = await found(sent, CloudEvents())
    assert isinstance(large, Message)
    assert len(large.payload) < LARGE // 100
    assert plain_payload(large.payload, large.content_encoding).startswith(b'{"x":"aaa')


async def test_an_envelope_is_inflated_up_to_the_limit_of_the_consumer():
    sent = message(payload=deflate(b" " * 2000 + b"{}", "gzip"), content_encoding="gzip", content_type=STRUCTURED)
    refused = message_in(await arrived(sent), (CloudEvents(),), limit=2000)
    assert "larger than 2000 bytes once its gzip is inflated" in refused.reason  # type: ignore[union-attr]
