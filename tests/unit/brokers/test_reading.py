"""A subscriber with readers of foreign envelopes, over the broker in memory."""

from datetime import timedelta

import pytest

from outboxkit import Message
from outboxkit.brokers import Malformed
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.brokers.reading import ReadDelivery, ReadingSubscriber
from outboxkit.brokers.reserved import ABSENT
from outboxkit.codec import LARGE, plain_payload
from outboxkit.compression import deflate
from outboxkit.envelopes import Celery, CloudEvents, Envelope
from outboxkit.envelopes.cloudevents import STRUCTURED
from outboxkit.testing import conformance
from tests.unit.envelopes import samples
from tests.unit.shop import message

LEGACY = message(id="legacy-1")


def legacy(envelope: Envelope) -> Message | None:
    return LEGACY if envelope.content_type == "text/legacy" else None


class Reading:
    """The broker in memory, with readers that know nothing of what the suite sends."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()

    def publisher(self) -> MemoryPublisher:
        return MemoryPublisher(self.broker)

    def subscriber(self, queue: str, topics: list[str], delays: list[timedelta]) -> ReadingSubscriber:
        return ReadingSubscriber(
            MemorySubscriber(self.broker, queue, topics, delays), (legacy, CloudEvents(), Celery())
        )


@pytest.mark.parametrize("case", conformance.CASES, ids=lambda case: case.__name__)
async def test_it_conforms(case):
    await case(Reading())


async def delivered(sent: Message, *readers: object) -> ReadDelivery:
    broker = MemoryBroker()
    subscriber = ReadingSubscriber(MemorySubscriber(broker, "billing", ["#"]), readers)  # type: ignore[arg-type]
    await MemoryPublisher(broker).publish([sent])
    delivery = await subscriber.receive()
    assert isinstance(delivery, ReadDelivery)
    return delivery


async def test_the_reader_that_knows_it_reads_it_and_ours_the_rest():
    assert (await delivered(message(content_type="text/legacy"), legacy)).message is LEGACY
    plain = await delivered(message(), legacy)
    assert plain.message == message()
    assert plain.envelope.message_id == plain.message.id


async def test_what_a_reader_refuses_is_kept_as_it_came():
    sent = message(payload=b"{", content_type="application/cloudevents+json", correlation_id="c", topic="t")
    refused = (await delivered(sent, CloudEvents())).message
    assert isinstance(refused, Malformed)
    assert (refused.kind, refused.payload, refused.content_type) == ("undecodable", b"{", sent.content_type)
    assert (refused.message_id, refused.type, refused.topic) == (sent.id, sent.type, "t")
    assert refused.reason.startswith("reader CloudEvents: the envelope is not valid")


async def test_a_large_payload_that_was_inflated_waits_compressed_for_its_handler():
    document = samples.STRUCTURED.body.replace(b'"data": {', b'"data": {"x":"' + b"a" * LARGE + b'",')
    sent = message(payload=deflate(document, "gzip"), content_encoding="gzip", content_type=STRUCTURED)
    read = (await delivered(sent, CloudEvents())).message
    assert isinstance(read, Message)
    assert len(read.payload) < LARGE // 100
    assert plain_payload(read.payload, read.content_encoding).startswith(b'{"x":"aaa')


async def test_an_envelope_is_inflated_up_to_the_limit_of_the_consumer():
    sent = message(payload=deflate(b" " * 2000 + b"{}", "gzip"), content_encoding="gzip", content_type=STRUCTURED)
    broker = MemoryBroker()
    subscriber = ReadingSubscriber(MemorySubscriber(broker, "billing", ["#"]), (CloudEvents(),), limit=2000)
    await MemoryPublisher(broker).publish([sent])
    delivery = await subscriber.receive()
    assert delivery is not None
    assert "larger than 2000 bytes once its gzip is inflated" in delivery.message.reason  # type: ignore[union-attr]


async def test_stand_ins_are_left_out_in_memory_as_well():
    sent = message(
        id="dead-letter-1", type="dead-letter-1", payload=samples.task().body, queue="billing", topic="celery",
        content_type="application/json", headers={**samples.TASK, ABSENT: ["message_id", "type"]},
    )  # fmt: skip
    assert (await delivered(sent, Celery())).message.id == samples.TASK_ID  # type: ignore[union-attr]
    unread = (await delivered(sent)).message
    assert isinstance(unread, Malformed)
    assert (unread.reason, unread.message_id) == ("the message has no message_id and no type", None)


def test_its_address_is_that_of_the_broker():
    assert ReadingSubscriber(MemorySubscriber(MemoryBroker(), "q", []), ()).address == "memory://"
