"""How a delivery is settled: in which order its copy, its records and its dead letters are written."""

import asyncio
import sqlite3
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event as events
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from structlog.testing import capture_logs

from outboxkit import Retry, inbox_handler, tables
from outboxkit.brokers.memory import MemoryDelivery
from outboxkit.consumer import Concurrency
from tests.unit.consumer.conftest import AT_ONCE, Bench, fails, order
from tests.unit.shop import OrderConfirmed, message


async def test_while_a_copy_waits_no_start_is_on_record(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    retry, recorded = MemoryDelivery.retry, list[Any]()

    async def look(self: MemoryDelivery, *given: Any, **more: Any) -> timedelta:
        recorded.append([row["starts"] for row in bench.rows(tables.attempt)])
        return await retry(self, *given, **more)

    monkeypatch.setattr(MemoryDelivery, "retry", look)
    bench.put_redelivered(message())
    await bench.run_until_settled(fails, max_attempts=2)
    assert recorded == [[]]


async def test_a_start_stays_on_record_if_the_dead_letter_was_not_written(bench: Bench):
    def refuse(*given: Any) -> None:
        if given[2].startswith(f"INSERT INTO {tables.dead_letter.name}"):
            bench.stop.set()
            busy = sqlite3.OperationalError("database is locked")
            busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise OperationalError(given[2], {}, busy)

    events.listen(bench.engine.sync_engine, "before_cursor_execute", refuse)
    bench.put_redelivered(message())
    async with asyncio.timeout(120):
        await bench.consumer(fails, max_attempts=1).run(bench.stop)
    assert [row["starts"] for row in bench.rows(tables.attempt)] == [1]
    assert len(bench.subscriber.queue.ready) == 1


async def test_in_order_a_message_that_came_back_often_stays_in_front_of_its_key(bench: Bench):
    handled: list[int] = []

    @inbox_handler("Ordered")
    async def ordered(session: AsyncSession, event: OrderConfirmed) -> None:
        handled.append(event.order_id)

    bench.put_redelivered(message(key="k"), times=12)
    bench.put(order(8, key="k"))
    await bench.run_until_settled(ordered, concurrency=Concurrency(2, ordered=True))
    assert handled == [7, 8]


async def test_in_order_one_that_may_have_killed_a_process_is_a_suspect_at_each_attempt(bench: Bench):
    starts: list[Any] = []

    @inbox_handler("Fails")
    async def looks(session: AsyncSession, event: OrderConfirmed) -> None:
        starts.extend(row["starts"] for row in bench.rows(tables.attempt))
        raise ValueError("boom")

    bench.put_redelivered(message(key="k"))
    await bench.run_until_settled(looks, concurrency=Concurrency(2, ordered=True))
    assert starts == [1, 1, 1]


@pytest.mark.parametrize(("crashes", "reason"), [(0, "failed"), (3, "crash")])
async def test_in_order_a_dead_letter_tells_of_the_failures_before_a_restart(bench: Bench, crashes: int, reason: str):
    records = bench.consumer(fails)._runner.records
    failed = await records.fail("m-1", 1, bench.stop)
    assert failed is not None
    for _ in range(crashes):
        await records.start("m-1", bench.stop)
    bench.put_redelivered(message(key="k"))
    await bench.run_until_settled(fails, max_attempts=2, concurrency=Concurrency(2, ordered=True))
    (letter,) = bench.letters()
    assert (letter["reason"], letter["attempts"], letter["first_failed_at"]) == (reason, 2, failed.first_failed_at)


@pytest.mark.unexpected
async def test_in_order_a_batch_that_breaks_is_handled_singly_and_nothing_passes_one_that_waits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    handled: list[int] = []

    @inbox_handler("Shared", batch=True)
    async def shared(session: AsyncSession, event: OrderConfirmed) -> None:
        handled.append(event.order_id)
        if handled == [1]:
            raise ValueError("boom")

    async def broken(*_: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("outboxkit.consumer.batch.BatchRunner.handle", broken)
    bench.put(*(order(number, key="k") for number in (1, 2, 3)))
    await bench.run_until_settled(shared, concurrency=Concurrency(2, ordered=True))
    assert handled == [1, 1, 2, 3]


@pytest.mark.parametrize("error", [Retry("soon", after=AT_ONCE[0]), ValueError("asks for no delay")])
async def test_of_the_delays_of_failed_handlers_the_shortest_counts(bench: Bench, error: Exception):
    @inbox_handler("Soon")
    async def soon(session: AsyncSession, event: OrderConfirmed) -> None:
        raise error

    @inbox_handler("Late")
    async def late(session: AsyncSession, event: OrderConfirmed) -> None:
        raise Retry("late", after=AT_ONCE[2])

    bench.put(message())
    with capture_logs() as said:
        await bench.run_until_settled(soon, late, max_attempts=2)
    assert {line["after"] for line in said if "after" in line} == {f"{AT_ONCE[0].total_seconds():g}s"}
