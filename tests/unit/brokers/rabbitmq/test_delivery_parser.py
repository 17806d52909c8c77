"""Deliveries are taken out of the bytes that arrive, wherever those are cut; pamqp has written them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from outboxkit.brokers.rabbitmq.incoming import DeliveryParser, RawDelivery

CHANNEL, OTHER = 3, 4
PROPERTIES = commands.Basic.Properties(message_id="m-1", message_type="T", headers={"a": 1})


class Log:
    """A listener that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def delivered(self, arrived: RawDelivery) -> None:
        self.heard.append(arrived)

    def closed(self, reason: str) -> None:
        self.heard.append(reason)


def listening() -> tuple[DeliveryParser, Log]:
    log = Log()
    made = DeliveryParser(log)
    made.listen(channel=CHANNEL)
    return made, log


def content(body: bytes, frame_max: int, properties: commands.Basic.Properties = PROPERTIES) -> list[bytes]:
    parts = [body[start : start + frame_max] for start in range(0, len(body), frame_max)]
    header = ContentHeader(0, len(body), properties)
    return [frame.marshal(each, CHANNEL) for each in (header, *map(ContentBody, parts))]


def pushed(tag: int, body: bytes, frame_max: int = 100, *, redelivered: bool = False) -> list[bytes]:
    method = commands.Basic.Deliver("billing", tag, redelivered, "shop", "OrderConfirmed")
    return [frame.marshal(method, CHANNEL), *content(body, frame_max)]


FOREIGN = [
    frame.marshal(each, channel)
    for each, channel in (
        (Heartbeat(), 0),
        (commands.Basic.Deliver("theirs", 1, False, "shop", "T"), OTHER),
        (ContentHeader(0, 1, PROPERTIES), OTHER),
        (ContentBody(b"x"), OTHER),
        (commands.Connection.Blocked("low on memory"), 0),
        (commands.Queue.DeclareOk("q", 1, 2), OTHER),
        (commands.Basic.ConsumeOk("billing"), CHANNEL),
        (commands.Basic.Cancel("billing"), CHANNEL),
    )
]
BODIES = st.binary(max_size=350)
ONE = st.tuples(BODIES, st.integers(1, 120), st.booleans())


@given(st.lists(ONE, max_size=5), st.data())
def test_deliveries_arrive_whole_however_bytes_and_frames_are_cut_and_mixed(many: list[Any], data: st.DataObject):
    deliveries, log = listening()
    arriving, foreign = [], b""
    for tag, (body, frame_max, redelivered) in enumerate(many, 1):
        for each in pushed(tag, body, frame_max, redelivered=redelivered):
            if data.draw(st.booleans()):  # another channel's frames may stand between any two of ours
                arriving.append(between := data.draw(st.sampled_from(FOREIGN)))
                foreign += between
            arriving.append(each)
    rest, passed = b"".join(arriving), b""
    while rest:
        cut = data.draw(st.integers(1, len(rest)))
        passed += deliveries.feed(rest[:cut])
        rest = rest[cut:]
    assert passed == foreign
    assert [(a.tag, a.redelivered, a.consumer, a.routing_key, a.body) for a in log.heard] == [
        (tag, redelivered, "billing", "OrderConfirmed", body) for tag, (body, _, redelivered) in enumerate(many, 1)
    ]
    assert all((a.properties.message_id, a.properties.headers) == ("m-1", {"a": 1}) for a in log.heard)


@pytest.mark.parametrize(
    ("close", "channel"),
    [(commands.Channel.Close(406, "unknown tag", 60, 80), CHANNEL), (commands.Connection.Close(320, "bye", 0, 0), 0)],
)
@pytest.mark.parametrize("heard", [1, 2])
def test_a_channel_that_is_closed_in_the_middle_of_a_message_delivers_nothing(close: Any, channel: int, heard: int):
    deliveries, log = listening()
    closing = frame.marshal(close, channel)
    assert deliveries.feed(b"".join(pushed(1, b"x" * 250)[:heard]) + closing) == closing
    assert log.heard == [f"{close.reply_code} {close.reply_text}"]


def test_another_channels_end_is_not_ours():
    deliveries, log = listening()
    closing = frame.marshal(commands.Channel.Close(406, "theirs", 60, 40), OTHER)
    assert deliveries.feed(closing) == closing
    assert log.heard == []


def test_a_message_that_cannot_be_read_is_delivered_with_the_reason_and_its_bytes():
    deliveries, log = listening()
    method, header, body = pushed(1, b"body")
    broken = header.replace(b"\x03m-1", b"\x03\xff\xff\xff")
    assert deliveries.feed(method + broken + body) == b""
    (arrived,) = log.heard
    assert arrived.properties.unreadable.startswith("its message_id cannot be read")
    assert (arrived.properties.message_type, arrived.body) == ("T", b"body")
    assert b"\xff\xff\xff" in arrived.properties_bytes


def test_a_routing_key_that_is_no_utf8_is_no_end_of_the_connection():
    deliveries, log = listening()
    method, *rest = pushed(1, b"")
    deliveries.feed(method.replace(b"OrderConfirmed", b"Order\xffonfirmed") + b"".join(rest))
    assert log.heard[0].routing_key == "Order\\xffonfirmed"
