"""Bytes cut into frames wherever they were split."""

from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame
from pamqp.body import ContentBody
from pamqp.heartbeat import Heartbeat

from outboxkit.brokers.rabbitmq.taps import HEARTBEAT, PAYLOAD, FrameSplitter

FRAMES = st.lists(
    st.builds(
        lambda body, channel: frame.marshal(ContentBody(body), channel),
        st.binary(min_size=1, max_size=20),
        st.integers(0, 9),
    )
    | st.just(frame.marshal(Heartbeat(), 0)),
    max_size=8,
)


@given(FRAMES, st.data())
def test_each_frame_is_shown_once_and_whole_and_what_is_not_taken_is_passed_on(
    frames: list[bytes], data: st.DataObject
):
    seen: list[bytes] = []

    def take(kind: int, channel: int, size: int, bytes_: bytes, start: int) -> bool:
        seen.append(bytes_[start : start + size + 8])
        assert kind == seen[-1][0]
        assert bytes_[start + PAYLOAD : start + PAYLOAD + size] == seen[-1][PAYLOAD:-1]
        return channel % 2 == 1

    cutter, rest, passed = FrameSplitter(take), b"".join(frames), b""
    while rest:
        cut = data.draw(st.integers(1, len(rest)))
        passed += cutter.feed(rest[:cut])
        rest = rest[cut:]
    assert seen == frames
    assert passed == b"".join(each for each in frames if int.from_bytes(each[1:3]) % 2 == 0)


def test_what_is_no_amqp_is_passed_on_at_once():
    def never(*_: object) -> bool:
        raise AssertionError("this is no frame")

    assert FrameSplitter(never).feed(b"AMQP\0\0\x09\x01") == b"AMQP\0\0\x09\x01"


def test_a_heartbeat_is_what_the_protocol_says():
    assert frame.marshal(Heartbeat(), 0) == HEARTBEAT
    assert frame.marshal(commands.Channel.OpenOk(), 1)[0] != HEARTBEAT[0]
