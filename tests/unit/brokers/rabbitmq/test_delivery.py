"""One arrival, without a broker: what is read off it, and what it asks for when it is settled."""

from datetime import timedelta
from typing import Any

import pytest
from pamqp import commands

from outboxkit import BrokerUnavailable, Message
from outboxkit.brokers.rabbitmq.incoming import DeliveryChannel, RabbitDelivery
from outboxkit.codec.envelopes import Envelope
from outboxkit.codec.envelopes.envelope import Malformed
from outboxkit.codec.headers import DeliveryHeaders
from tests.unit.brokers.rabbitmq.test_delivery_parser import CHANNEL, content
from tests.unit.brokers.rabbitmq.written import Written

STEPS = (timedelta(seconds=1), timedelta(minutes=1))


class Source:
    """Notes the copies that are asked for."""

    delays = STEPS

    def __init__(self, error: Exception | None = None) -> None:
        self.copies: list[tuple[DeliveryHeaders, timedelta | None]] = []
        self.error = error

    async def copy(self, delivery: RabbitDelivery, marked: DeliveryHeaders, step: timedelta | None) -> None:
        if self.error is not None:
            raise self.error
        self.copies.append((marked, step))


def delivery(
    source: Source, *, redelivered: bool = False, dropped: bool = False, **given: Any
) -> tuple[RabbitDelivery, Written]:
    channel, written = DeliveryChannel(timeout=5, max_unacked_bytes=2**20), Written()
    channel.writes_to(written)  # type: ignore[arg-type]
    channel.listen(channel=CHANNEL)
    method = commands.Basic.Deliver("billing", 1, redelivered, "shop", "orders.eu").marshal()
    frame_ = b"\x01" + CHANNEL.to_bytes(2) + (len(method) + 4).to_bytes(4) + (60 << 16 | 60).to_bytes(4) + method
    properties = commands.Basic.Properties(**({"message_id": "m-1", "message_type": "T"} | given))
    channel.parser.feed(frame_ + b"\xce" + b"".join(content(b"body", 100, properties)))
    arrived = channel.next_nowait()
    assert arrived is not None
    return RabbitDelivery(arrived, channel, source, dropped=dropped), written


async def test_everything_is_read_off_what_arrived():
    headers = {"outboxkit-attempt": 3, "outboxkit-handlers": ["One"], "x-delivery-count": 2, "a": 1}
    found, _ = delivery(Source(), redelivered=True, dropped=True, headers=headers)
    assert isinstance(found.message, Message)
    assert (found.message.id, found.message.topic, dict(found.message.headers)) == ("m-1", "orders.eu", {"a": 1})
    assert (found.delivery_headers, found.redeliveries, found.dropped) == (DeliveryHeaders(3, None, ("One",)), 2, True)


async def test_its_envelope_is_what_the_publisher_sent():
    headers = {"outboxkit-attempt": 3, "x-death": [], "tenant": "a"}
    found, _ = delivery(Source(), headers=headers, content_type="text/plain", content_encoding="", correlation_id="c")
    expected = Envelope(b"body", {"tenant": "a"}, "orders.eu", "m-1", "T", "text/plain", correlation_id="c")
    assert found.envelope == expected


async def test_a_stand_in_is_not_what_the_publisher_sent():
    found, _ = delivery(Source(), message_type="m-1", headers={"outboxkit-absent": ["message_id", "type", "body", 7]})
    assert isinstance(found.message, Malformed)
    assert (found.message.message_id, found.message.type, found.message.routing_key) == (None, None, "orders.eu")
    assert found.envelope == Envelope(b"body", routing_key="orders.eu")
    assert found.delivery_headers.absent == ("message_id", "type")
    absent = {"outboxkit-absent": ["type"], "outboxkit-topic": "dead-letter-7"}
    found, _ = delivery(Source(), message_type="dead-letter-7", headers=absent)
    assert (found.envelope.message_id, found.envelope.routing_key) == ("m-1", "")


async def test_an_ack_leaves_with_the_others_and_a_release_at_once():
    found, written = delivery(Source())
    await found.ack()
    found.channel.flush()
    assert [type(each) for each in written.take()] == [commands.Basic.Ack]
    found, written = delivery(Source())
    await found.requeue()
    (nack,) = written.take()
    assert (nack.delivery_tag, nack.requeue, nack.multiple) == (1, True, False)


async def test_a_retry_is_a_copy_one_attempt_older_and_then_an_ack():
    source = Source()
    found, written = delivery(source, headers={"outboxkit-attempt": 2, "outboxkit-handlers": ["One", "Two"]})
    assert await found.retry(handlers=("Two",)) == STEPS[1]
    ((marked, step),) = source.copies
    assert (marked.attempt, marked.handlers, step) == (3, ("Two",), STEPS[1])
    assert marked.first_failed_at is not None
    found.channel.flush()
    assert [type(each) for each in written.take()] == [commands.Basic.Ack]
    assert await delivery(source)[0].retry(timedelta(seconds=2)) == STEPS[0]


async def test_a_renewal_is_a_copy_as_it_is_and_then_an_ack():
    source = Source()
    found, written = delivery(source, headers={"outboxkit-attempt": 2})
    await found.requeue_fresh()
    assert source.copies == [(DeliveryHeaders(2), None)]
    found.channel.flush()
    assert [type(each) for each in written.take()] == [commands.Basic.Ack]


async def test_without_a_copy_there_is_no_ack():
    found, written = delivery(Source(BrokerUnavailable("no confirm")))
    for settle in (found.retry, found.requeue_fresh):
        with pytest.raises(BrokerUnavailable):
            await settle()
    found.channel.flush()
    assert written.bytes == b""
