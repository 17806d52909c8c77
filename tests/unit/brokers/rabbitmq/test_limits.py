"""Each limit of docs/reference/wire.md on what a foreign message may hold, from below and from above."""

import json
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outboxkit import DecodeError, Message
from outboxkit.brokers.rabbitmq import decode
from outboxkit.brokers.rabbitmq.encode import HEADER_OVERHEAD, Unwritable, copy_properties
from outboxkit.codec.compression import STREAMS_LIMIT, deflate
from outboxkit.codec.envelopes import CloudEvents
from outboxkit.codec.envelopes.envelope import LONGEST_TIME, MOST_HEADERS
from outboxkit.codec.headers import (
    HEADER_NAME_LIMIT,
    HEADERS_LIMIT,
    MAX_DEPTH,
    MOST_ATTEMPTS,
    MOST_HANDLERS,
    carried,
    read_delivery_headers,
)
from outboxkit.codec.payloads import plain_payload
from outboxkit.message import MAX_VERSION, MOST_STATE, NAME_LIMIT
from outboxkit.telemetry import tracing
from tests.support.grammar import short, sized
from tests.unit.codec.envelopes import samples

PAGE = Path(__file__).parents[4] / "docs/reference/wire.md"
LAST_SECOND = 253_402_300_799


def comes(headers: dict[str, bytes] | None = None, *, id_: bytes = b"m", more: tuple[int, bytes] = (0, b"")) -> bool:
    """Whether a delivery with these headers, encoded, is a message."""
    table = sized(b"".join(short(name.encode()) + value for name, value in (headers or {}).items()))
    flag, value = more
    parts = {0x2000: table, 0x0080: short(id_), 0x0020: b"\x01T"} | ({flag: value} if flag else {})
    data = b"".join(parts[flag] for flag in sorted(parts, reverse=True))
    properties = decode.read_properties(sum(parts), data)
    return isinstance(decode.to_message(properties, b"{}", decode.topic_of(properties, "t")), Message)


def text(value: bytes) -> bytes:
    return b"S" + sized(value)


def nested(levels: int) -> bytes:
    value = b"V"
    for _ in range(levels):
        value = b"A" + sized(value)
    return value


def reads(read: Callable[[], Any]) -> bool:
    try:
        return read() is not None
    except (DecodeError, Unwritable):
        return False


def event(**attributes: Any) -> Message | None:
    document = json.dumps(samples.ATTRIBUTES | attributes).encode()
    return CloudEvents()(replace(samples.STRUCTURED, body=document))


def noted(name: str, value: object) -> Any:
    return read_delivery_headers({f"outboxkit-{name}": value})


def has_state(size: int) -> bool:
    """Whether a `tracestate` of so many characters belongs to the trace context that is read."""
    state = ",".join(f"{name}={'v' * (size // 2 - 3)}" for name in "ab") + " "
    assert len(state) == size
    context = tracing._context_of({"traceparent": f"00-{7:032x}-{7:016x}-01", "tracestate": state})
    assert context is not None
    return bool(context.trace_state)


def left_out(size: int) -> bool:
    """Whether a copy lacks a header that makes its content header so long."""

    def copied(value: bytes) -> tuple[int, bytes, list[str]]:
        return copy_properties(0x2000, sized(b"\x01h" + text(value)), noted("attempt", 2), "t", room=131_064)

    empty = HEADER_OVERHEAD + len(copied(b"")[1])
    return copied(b"x" * (size - empty))[2] == ["h"]


LIMITS: dict[str, list[tuple[bool, bool]]] = {
    "`message_id`, `type`": [(comes(id_=b"m"), comes(id_=b"")), (comes(id_=b"m" * NAME_LIMIT), comes(id_=b"m\0"))],
    "other text properties, `outboxkit-key`, `outboxkit-causation-id`, `outboxkit-topic`": [
        (comes(more=(0x0400, short(b"c" * 255))), comes(more=(0x0400, short(b"c\0")))),
        (comes(more=(0x8000, short("é".encode()))), comes(more=(0x8000, short(b"\xe9")))),
        (comes({"outboxkit-key": text(b"k" * 255)}), comes({"outboxkit-key": text(b"k" * 256)})),
        (comes({"outboxkit-causation-id": text(b"k" * 255)}), comes({"outboxkit-causation-id": text(b"k" * 256)})),
        (comes({"outboxkit-topic": text(b"t" * 255)}), comes({"outboxkit-topic": text(b"t" * 256)})),
    ],
    "`timestamp`": [
        (
            comes(more=(0x0040, struct.pack(">Q", LAST_SECOND * 1000))),
            comes(more=(0x0040, struct.pack(">Q", LAST_SECOND * 1000 + 1000))),
        ),
    ],
    "`headers`": [
        (comes({"a": nested(MAX_DEPTH)}), comes({"a": nested(MAX_DEPTH + 1)})),
        *(
            (comes({"a": kind + bytes(8)[:size]}), comes({"a": b"?"}))
            for kind, size in ((b"l", 8), (b"x", 4), (b"D", 5))
        ),
    ],
    "`outboxkit-version`": [
        (
            comes({"outboxkit-version": b"I" + struct.pack(">i", MAX_VERSION)}),
            comes({"outboxkit-version": b"I\0\0\0\0"}),
        ),
        (
            comes({"outboxkit-version": text(b"%d" % MAX_VERSION)}),
            comes({"outboxkit-version": text(b"%d" % (MAX_VERSION + 1))}),
        ),
        (comes({"outboxkit-version": text(b"0000000007")}), comes({"outboxkit-version": text(b"00000000007")})),
    ],
    "`outboxkit-attempt`": [
        (
            noted("attempt", MOST_ATTEMPTS).attempt == MOST_ATTEMPTS,
            noted("attempt", MOST_ATTEMPTS + 1).attempt > MOST_ATTEMPTS,
        ),
        (noted("attempt", 2).attempt == 2, noted("attempt", 0).attempt != 1),
    ],
    "`outboxkit-handlers`": [
        (
            len(noted("handlers", [f"h{n}" for n in range(MOST_HANDLERS)]).handlers) == MOST_HANDLERS,
            len(noted("handlers", [f"h{n}" for n in range(MOST_HANDLERS + 1)]).handlers) > MOST_HANDLERS,
        ),
        (
            bool(noted("handlers", ["h" * NAME_LIMIT]).handlers),
            bool(noted("handlers", ["h" * (NAME_LIMIT + 1)]).handlers),
        ),
    ],
    "`outboxkit-first-failed-at`, `outboxkit-accepted-at`": [
        (noted(name, moment).headers() != {}, noted(name, beyond).headers() != {})
        for name in ("first-failed-at", "accepted-at")
        for moment, beyond in ((0, -1), (253_402_128_000_000, 253_402_128_000_001))
    ],
    "`tracestate`": [(has_state(MOST_STATE), has_state(MOST_STATE + 2))],
    "headers of a retry copy": [(not left_out(131_064), not left_out(131_065))],
    "headers of a replayed dead letter": [
        (
            "n" * HEADER_NAME_LIMIT in carried({"n" * HEADER_NAME_LIMIT: 1}),
            bool(carried({"n" * (HEADER_NAME_LIMIT + 1): 1})),
        ),
        ("h" in carried({"h": "x" * (HEADERS_LIMIT - 7)}), "h" in carried({"h": "x" * (HEADERS_LIMIT - 6)})),
    ],
    "a compressed body": [
        (
            reads(lambda: plain_payload(deflate(b"", "gzip") * STREAMS_LIMIT, "gzip")),
            reads(lambda: plain_payload(deflate(b"", "gzip") * (STREAMS_LIMIT + 1), "gzip")),
        ),
    ],
    "a CloudEvent": [
        (
            reads(lambda: event(**{f"x{n}": 1 for n in range(MOST_HEADERS - 1)})),
            reads(lambda: event(**{f"x{n}": 1 for n in range(MOST_HEADERS)})),
        ),
        (
            reads(lambda: event(x="x" * (HEADERS_LIMIT - 200))),
            reads(lambda: event(x="x" * HEADERS_LIMIT)),
        ),
    ],
}


def test_the_page_lists_the_limits_that_are_tested():
    section = PAGE.read_text().partition("## What a foreign message may hold\n")[2].partition("\n## ")[0]
    rows = [row.split(" | ")[0].removeprefix("| ") for row in section.splitlines() if row.startswith("| ")][1:]
    assert rows == list(LIMITS)
    shown = re.sub(r"(?<=\d) (?=\d{3})", "", section)
    for limit in (NAME_LIMIT, decode.MAX_SECONDS, MAX_DEPTH, MAX_VERSION, MOST_ATTEMPTS, MOST_HANDLERS, HEADERS_LIMIT):
        assert str(limit) in shown
    for limit in (MOST_STATE, HEADER_NAME_LIMIT, STREAMS_LIMIT, MOST_HEADERS, LONGEST_TIME):
        assert str(limit) in shown


@pytest.mark.parametrize("place", LIMITS)
def test_each_limit_is_where_the_page_has_it(place: str):
    assert LIMITS[place] == [(True, False)] * len(LIMITS[place])


def test_a_longer_time_of_a_cloud_event_is_ignored():
    longest = "2026-03-01T12:00:00." + "0" * (LONGEST_TIME - 26) + "+00:00"
    assert len(longest) == LONGEST_TIME
    for time, is_read in ((longest, True), (longest.replace("+", "0+"), False)):
        message = event(time=time)
        assert message is not None
        assert (message.created_at is not None) is is_read
