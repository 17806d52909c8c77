"""The copy of a failed message is in its retry step, confirmed, before the original is acked; what is on it."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from structlog.testing import capture_logs

from outboxkit import Message, Reject, Retry, inbox_handler, tables
from outboxkit.brokers.rabbitmq import confirm_channel, copies
from outboxkit.brokers.rabbitmq.confirms import ConfirmTracker
from tests.integration.consumer.running_consumer import (
    Ordered,
    Start,
    behind_proxy,
    processed,
    publish,
    starter,
    subscriber_of,
)
from tests.support.delays import DELAYS, WAITING
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

SHORT, _, LONG = WAITING


def attempts(engine: Engine) -> dict[str, int]:
    """The attempt at which each handler was done with its message."""
    with engine.connect() as connection:
        asked = select(tables.inbox.c.handler, tables.inbox.c.attempts)
        return {row.handler: row.attempts for row in connection.execute(asked)}


def two_handlers(error: Exception) -> tuple[Counter[str], Callable[..., Any], Callable[..., Any]]:
    """How often they ran, one that succeeds and one that fails twice first."""
    runs = Counter[str]()

    @inbox_handler("Succeed")
    async def succeed(session: AsyncSession, event: Ordered) -> None:
        runs["Succeed"] += 1

    @inbox_handler("FailTwice")
    async def fail_twice(session: AsyncSession, event: Ordered) -> None:
        runs["FailTwice"] += 1
        if runs["FailTwice"] <= 2:
            raise error

    return runs, succeed, fail_twice


async def test_it_says_which_attempt_it_is_when_the_first_one_failed_and_whose_it_is(
    start: Start, pg_engine: Engine, broker: PlainClient
):
    runs, succeed, fail_twice = two_handlers(Retry("later", after=3600))

    @inbox_handler("Refuse")
    async def refuse(session: AsyncSession, event: Ordered) -> None:
        runs["Refuse"] += 1
        raise Reject("not wanted")

    began = datetime.now(UTC) - timedelta(seconds=1)
    async with start(succeed, fail_twice, refuse) as consumer:
        publish(broker, 7, "m", headers={"tenant": "a"}, correlation_id="c")
        await consumer.reaches(processed=1, retried=1, dead=1)
        first = broker.take(LONG)
        assert first is not None
        assert first.body == b'{"number":7}'
        assert (first.properties.message_id, first.properties.type) == ("m", "Ordered")
        assert (first.properties.correlation_id, first.properties.delivery_mode) == ("c", 2)
        headers = first.properties.headers
        assert headers["tenant"] == "a"
        assert headers["outboxkit-attempt"] == 2
        assert headers["outboxkit-handlers"] == ["FailTwice"]
        failed_at = datetime.fromtimestamp(headers["outboxkit-first-failed-at"] / 1000, UTC)
        assert began < failed_at <= datetime.now(UTC)
        broker.publish(first.body, **vars(first.properties))  # as the step does when its time has come
        await consumer.reaches(processed=1, retried=2, dead=1)
        second = broker.take(LONG)
        assert second is not None
        changed = {name for name, value in second.properties.headers.items() if headers.get(name) != value}
        assert changed == {"outboxkit-attempt"}
        assert second.properties.headers["outboxkit-attempt"] == 3
        broker.publish(second.body, **vars(second.properties))
        await consumer.reaches(processed=2, retried=2, dead=1)
    assert runs == {"Succeed": 1, "FailTwice": 3, "Refuse": 1}
    assert attempts(pg_engine) == {"Succeed": 1, "FailTwice": 3}


async def test_its_step_is_deleted_before_it_can_be_put_there(start: Start, pg_engine: Engine, broker: PlainClient):
    runs, succeed, fail_twice = two_handlers(RuntimeError("not yet"))

    async with start(succeed, fail_twice) as consumer:
        broker.delete_queue(SHORT)
        publish(broker, 7, "m")
        await consumer.reaches(retried=1, processed=2, duplicate=2)
    assert runs == {"Succeed": 1, "FailTwice": 3}
    assert attempts(pg_engine) == {"Succeed": 1, "FailTwice": 2}, (
        "what could not be put there was the first attempt all the same"
    )
    assert broker.depth() == broker.depth(SHORT) == 0


async def test_its_confirm_gets_lost(async_pg_engine: AsyncEngine, pg_engine: Engine, broker: PlainClient):
    failing, has_it, may_fail = {"first", "m"}, asyncio.Event(), asyncio.Event()

    @inbox_handler("FailOnce")
    async def fail_once(session: AsyncSession, event: Ordered, message: Message) -> None:
        if message.id == "m":
            has_it.set()
            await may_fail.wait()
        if message.id in failing:
            failing.discard(message.id)
            raise Retry("later", after=3600)

    step = LONG
    with behind_proxy(broker) as (proxy, through):
        async with starter(async_pg_engine, through)(fail_once) as consumer:
            publish(broker, 1, "first")  # the connection for copies is there after it
            await consumer.reaches(retried=1)
            assert broker.take(step) is not None
            publish(broker, 7, "m")
            await has_it.wait()
            proxy.hold_server()
            may_fail.set()
            await eventually_async(lambda: asyncio.to_thread(broker.depth, step), lambda count: count == 1)
            proxy.cut()
            proxy.release()
            await consumer.reaches(retried=1, processed=1)
            copy_ = broker.take(step)
            assert copy_ is not None
            broker.publish(copy_.body, **vars(copy_.properties))
            await consumer.reaches(retried=1, processed=1, duplicate=1)
    assert processed(pg_engine) == [("FailOnce", "m")]
    assert attempts(pg_engine) == {"FailOnce": 1}


async def test_a_nack_is_tried_again_on_a_fresh_connection(broker: PlainClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(copies, "OLD_CONNECTION_SECONDS", 0.0)
    trackers = []

    class Estranged(ConfirmTracker):
        """As a channel that has lost sight of its queue's leader: the first one reads every confirm as a nack."""

        def __init__(self, on_change: Callable[[], None]) -> None:
            super().__init__(on_change)
            trackers.append(self)

        def ack(self, tag: int, *, multiple: bool) -> None:
            (super().nack if trackers[0] is self else super().ack)(tag, multiple=multiple)

    monkeypatch.setattr(confirm_channel, "ConfirmTracker", Estranged)
    subscriber = subscriber_of(broker, {"Ordered"})
    await subscriber.connect()
    for number in range(5):
        broker.publish(b"{}", topic="Ordered", message_id=str(number), type="Ordered")
    deliveries = [await subscriber.receive() for _ in range(5)]
    with capture_logs() as said:
        assert await asyncio.gather(*(each.retry() for each in deliveries if each)) == [DELAYS[0]] * 5
    assert len(trackers) == 2, "all of them on one fresh connection"
    assert said == [], "a nack that a fresh connection mends is not worth a line"
    await subscriber.connect()
    assert subscriber._channel is not None
    assert subscriber._channel.lost is None
    await subscriber.close()
