"""Messages with properties that cannot be read: each is tried `max_attempts` times, or is a dead letter at once."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit import Message, Reject, event, inbox_handler
from outboxkit.brokers.rabbitmq.topology import delay_name
from outboxkit.codec.envelopes import CloudEvents, Envelope, Reader
from outboxkit.consumer import ConsumerPolicy
from tests.integration.consumer.running_consumer import dead_letters, declare, starter
from tests.support.delays import DELAYS
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async
from tests.unit.codec.envelopes import samples

NAME, ATTEMPTS, ELSEWHERE = "OrderConfirmed", 3, ["another-queue"]
DEEP: Any = [1]
for _ in range(100):
    DEEP = [DEEP]
NO_TEXT = b"\xff\xfe"
TEXTS = ("message_id", "type", "app_id", "content_type", "content_encoding", "correlation_id", "reply_to", "cluster_id")
UNREADABLE: dict[str, dict[str, Any]] = {
    **{name: {name: NO_TEXT} for name in TEXTS},
    "timestamp": {"timestamp": 2**63},
    "microseconds": {"timestamp": 1_772_600_767_500_000},
    "two of them": {"timestamp": 2**63, "correlation_id": NO_TEXT, "expiration": "3600000", "priority": 3},
    "nested headers": {"headers": {"deep": DEEP}},
    "a header's time": {"headers": {"when": datetime(9999, 12, 31, tzinfo=UTC), "deep": DEEP}},
    "the brokers' own headers": {"timestamp": 2**63, "headers": {"x-death": [{"count": 9}], "BCC": ELSEWHERE}},
    "headers of the wrong types": {
        "timestamp": 2**63,
        "headers": {"outboxkit-attempt": "1", "outboxkit-handlers": {"a": 1}, "x-death": 7, "CC": ELSEWHERE},
    },
    "a forged attempt": {"timestamp": 2**63, "headers": {"outboxkit-attempt": -5, "x-delivery-count": 50}},
}


def till(envelope: Envelope) -> Message | None:
    id_ = envelope.headers.get("receipt")
    return Message(id=id_, type=NAME, payload=envelope.body, key=id_) if isinstance(id_, str) else None


READERS: tuple[Reader, ...] = (
    CloudEvents({"com.example.order.confirmed": NAME}),
    till,
)


def envelopes(id_: str) -> Iterator[Envelope]:
    """One of each system, with this id."""
    yield replace(samples.KNATIVE, headers={**samples.KNATIVE.headers, "ce-id": id_, "ce-partitionkey": id_})
    yield replace(samples.STRUCTURED, body=samples.STRUCTURED.body.replace(b"A-1", f"structured {id_}".encode()))
    yield Envelope(samples.BODY, headers={"receipt": f"receipt {id_}"})


@event(NAME)
@dataclass(frozen=True)
class OrderConfirmed:
    order_id: int


@event("Other")
@dataclass(frozen=True)
class Other:
    number: int


def send_all(broker: PlainClient) -> int:
    """Send each envelope with each unreadable property. Returns how many messages that are."""
    count = 0
    for id_, properties in UNREADABLE.items():
        for envelope in envelopes(id_):
            own = {"content_type": envelope.content_type, "correlation_id": envelope.correlation_id}
            headers = {**envelope.headers, **properties.get("headers", {})}
            broker.publish(envelope.body, topic="orders", **(own | properties | {"headers": headers}))
            count += 1
    return count


@pytest.mark.parametrize("readers", [READERS, ()], ids=["readers", "none"])
@pytest.mark.parametrize("case", ["fails", "no handler", "ordered"])
async def test_each_is_tried_so_often_and_no_oftener_and_is_one_dead_letter(
    async_pg_engine: AsyncEngine, pg_engine: Engine, broker: PlainClient, case: str, readers: tuple[Reader, ...]
):
    ran = Counter[tuple[str, str]]()

    @inbox_handler("Fail")
    async def fail(session: AsyncSession, event: OrderConfirmed, message: Message) -> None:
        ran["Fail", message.id] += 1
        raise ValueError("boom")

    @inbox_handler("Refuse")
    async def refuse(session: AsyncSession, event: OrderConfirmed, message: Message) -> None:
        ran["Refuse", message.id] += 1
        raise Reject("not wanted")

    @inbox_handler("Another")
    async def another(session: AsyncSession, event: Other) -> None:
        raise AssertionError

    functions = (another,) if case == "no handler" else (fail, refuse)
    ordered, delays = case == "ordered", DELAYS[:1]
    await declare(broker, {"#"}, ordered=ordered)
    broker.bind(queue=ELSEWHERE[0])
    count = send_all(broker)
    copies = broker.depth(ELSEWHERE[0])

    async def settled() -> int:
        return len([row for row in await asyncio.to_thread(dead_letters, pg_engine) if row.handler != "Refuse"])

    policy = ConsumerPolicy(max_attempts=ATTEMPTS, retention=timedelta(days=36_500), delays=delays)
    start = starter(async_pg_engine, broker, delays, ordered=ordered)
    async with start(*functions, topics={"#"}, policy=policy, readers=readers) as running:
        await eventually_async(settled, lambda found: found >= count)
        assert [broker.depth(), broker.depth(delay_name(delays[0]))] == [0, 0]
    letters = dead_letters(pg_engine)
    read = [row for row in letters if row.reason not in ("malformed", "undecodable")]
    at_once = [row for row in letters if row.reason in ("malformed", "undecodable")]
    assert {row.attempts for row in at_once} == {1}
    ids = Counter((row.handler, row.message_id) for row in read)
    assert set(ids.values()) <= {1}
    if not readers:
        assert (len(at_once), ran) == (count, {})
    elif case == "no handler":
        assert len(read) + len(at_once) == count
        assert {row.attempts for row in read} == {ATTEMPTS}
        assert running.consumer.outcomes["retried"] == (ATTEMPTS - 1) * len(read)
    else:
        assert len(read) // 2 + len(at_once) == count
        assert ran == {key: ATTEMPTS if key[0] == "Fail" else 1 for key in ids}
        assert len(ran) == len(ids) > 2 * len(UNREADABLE), "most of them are read"
    assert broker.depth(ELSEWHERE[0]) == copies, "the sender's copies alone: no attempt adds one"
