"""The broker's answers are taken out of the bytes that arrive, wherever those are cut; pamqp has written them."""

import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from outboxkit.brokers.rabbitmq.confirms import ConfirmParser
from outboxkit.brokers.rabbitmq.taps import HEARTBEAT

CHANNEL, OTHER = 3, 4
Heard = list[tuple[Any, ...]]


class Log:
    """A listener that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: Heard = []

    def ack(self, tag: int, *, multiple: bool) -> None:
        self.heard.append(("ack", tag, multiple))

    def nack(self, tag: int, *, multiple: bool) -> None:
        self.heard.append(("nack", tag, multiple))

    def returned(self, message_id: str, reason: str) -> None:
        self.heard.append(("returned", message_id, reason))

    def closed(self, code: int, text: str, *, connection_too: bool) -> None:
        self.heard.append(("closed", code, text, connection_too))

    def blocked(self, reason: str | None) -> None:
        self.heard.append(("blocked", reason))


def returned(message_id: str, body: bytes, channel: int = CHANNEL) -> bytes:
    properties = commands.Basic.Properties(message_id=message_id, headers={"a": 1}, delivery_mode=2)
    parts = [body[start : start + 1000] for start in range(0, len(body), 1000)]
    return b"".join(
        frame.marshal(each, channel)
        for each in (
            commands.Basic.Return(312, "NO_ROUTE", "shop-events", "orders.lost"),
            ContentHeader(0, len(body), properties),
            *map(ContentBody, parts),
        )
    )


NO_ROUTE = "NO_ROUTE: no queue is bound to exchange 'shop-events' for routing key 'orders.lost'"
TAGS = st.integers(1, 2**63 - 1)
ANSWERS = st.one_of(
    st.builds(lambda tag, many: (commands.Basic.Ack(tag, many), ("ack", tag, many)), TAGS, st.booleans()),
    st.builds(lambda tag, many: (commands.Basic.Nack(tag, many), ("nack", tag, many)), TAGS, st.booleans()),
).map(lambda pair: (frame.marshal(pair[0], CHANNEL), b"", pair[1]))
RETURNS = st.builds(
    lambda number, size: (returned(f"m-{number}", b"x" * size), b"", ("returned", f"m-{number}", NO_ROUTE)),
    st.integers(0, 99),
    st.integers(0, 3000),
)


def _passed(each: Any, channel: int, heard: tuple[Any, ...] | None) -> tuple[bytes, bytes, tuple[Any, ...] | None]:
    written = frame.marshal(each, channel)
    return written, written, heard


PASSED_ON = st.sampled_from(
    [
        _passed(Heartbeat(), 0, None),
        _passed(commands.Channel.OpenOk(), CHANNEL, None),
        _passed(commands.Exchange.DeclareOk(), CHANNEL, None),
        _passed(commands.Queue.DeclareOk("q", 1, 2), CHANNEL, None),
        _passed(commands.Basic.Ack(7), OTHER, None),
        _passed(ContentHeader(0, 1, commands.Basic.Properties(message_id="m")), OTHER, None),
        _passed(ContentBody(b"x"), OTHER, None),
        _passed(commands.Channel.Close(406, "too large", 60, 40), CHANNEL, ("closed", 406, "too large", False)),
        _passed(commands.Channel.Close(406, "too large", 60, 40), OTHER, None),
        _passed(commands.Connection.Close(320, "forced", 0, 0), 0, ("closed", 320, "forced", True)),
        _passed(commands.Connection.Blocked("low on disk"), 0, ("blocked", "low on disk")),
        _passed(commands.Connection.Unblocked(), 0, ("blocked", None)),
    ]
)


def listening() -> tuple[ConfirmParser, Log]:
    answers, log = ConfirmParser(), Log()
    answers.report_to(log, channel=CHANNEL)
    return answers, log


@given(st.lists(ANSWERS | RETURNS | PASSED_ON, max_size=12), st.lists(st.integers(1, 200), max_size=60))
def test_answers_are_heard_in_order_and_the_rest_is_passed_on_however_the_bytes_are_cut(
    frames: list[tuple[bytes, bytes, tuple[Any, ...] | None]], cuts: list[int]
):
    arriving = b"".join(written for written, _, _ in frames)
    answers, log = listening()
    passed = b""
    for cut in [*cuts, len(arriving)]:
        passed += answers.feed(arriving[:cut])
        arriving = arriving[cut:]
    assert passed == b"".join(rest for _, rest, _ in frames)
    assert log.heard == [heard for _, _, heard in frames if heard is not None]


@given(st.lists(st.sampled_from([HEARTBEAT, frame.marshal(commands.Channel.OpenOk(), OTHER)]), max_size=5))
def test_what_is_passed_on_ends_with_a_whole_frame(frames: list[bytes]):
    answers, _ = listening()
    arriving, passed = b"".join(frames), b""
    for position in range(len(arriving)):
        passed += answers.feed(arriving[position : position + 1])
        rest = passed
        while rest:
            size, _, _ = frame.unmarshal(rest)
            assert size, "half a frame was passed on: a heartbeat could be put into the middle of it"
            rest = rest[size:]


def test_nothing_is_taken_before_somebody_listens():
    answers = ConfirmParser()
    frames = frame.marshal(commands.Basic.Ack(1), CHANNEL) + frame.marshal(commands.Connection.Blocked("why"), 0)
    assert answers.feed(frames) == frames


def test_what_is_no_amqp_is_passed_on_at_once():
    answers, _ = listening()
    assert answers.feed(b"HTTP/1.1 400 Bad Request\r\n") == b"HTTP/1.1 400 Bad Request\r\n"
    assert answers.feed(b"AMQP\x00\x00\x09\x01") == b"AMQP\x00\x00\x09\x01"


def test_a_heartbeat_is_one():
    assert frame.marshal(Heartbeat(), 0) == HEARTBEAT


def test_a_return_is_heard_whose_timestamp_is_in_milliseconds():
    answers, log = listening()
    method = returned("m-1", b"").split(b"\xce")[0]
    properties = b"\x03m-1" + struct.pack(">Q", 1_772_600_767_500)
    content = struct.pack(">HHQH", 60, 0, 0, 0x00C0) + properties
    assert answers.feed(method + b"\xce" + struct.pack(">BHI", 2, CHANNEL, len(content)) + content + b"\xce") == b""
    assert log.heard == [("returned", "m-1", NO_ROUTE)]
