"""Starts and failures of messages that may have killed a consumer, or that wait in one."""

import asyncio

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outboxkit import tables
from outboxkit.consumer.records import CrashRecord, CrashRecords
from outboxkit.outage import Outage
from tests.unit.shop import rows


async def test_starts_and_failures_are_counted_for_each_message_of_a_queue(
    async_engine: AsyncEngine, database_url: str
):
    stop = asyncio.Event()
    billing, shipping = (
        CrashRecords(async_engine, queue=queue, outage=Outage("t")) for queue in ("billing", "shipping")
    )
    assert [(await billing.start("m", stop)).starts for _ in range(3)] == [1, 2, 3]
    assert (await billing.start("n", stop)).starts == 1
    assert (await shipping.start("m", stop)).starts == 1
    failed = await billing.fail("m", stop)
    assert (failed.starts, failed.failures, failed.first_failed_at is not None) == (0, 1, True)
    again = await billing.start("m", stop)
    assert (again.starts, again.failures, again.first_failed_at) == (1, 1, failed.first_failed_at)
    assert (await billing.fail("m", stop)).first_failed_at == failed.first_failed_at
    assert await billing.forget("m", stop)
    assert (await billing.start("m", stop)).failures == 0
    assert [(row["queue"], row["message_id"]) for row in rows(database_url, tables.attempt)] == [
        ("billing", "m"),
        ("billing", "n"),
        ("shipping", "m"),
    ]


async def test_a_start_that_a_stop_has_ended_does_not_count(async_engine: AsyncEngine, database_url: str):
    stop = asyncio.Event()
    billing = CrashRecords(async_engine, queue="billing", outage=Outage("t"))
    first = await billing.start("m", stop)
    await billing.call_off("m", first, stop)
    assert rows(database_url, tables.attempt) == []
    await billing.start("m", stop)
    second = await billing.start("m", stop)
    await billing.call_off("m", second, stop)
    assert [(row["message_id"], row["starts"]) for row in rows(database_url, tables.attempt)] == [("m", 1)]


async def test_a_stop_does_not_wait_for_a_database_that_is_away():
    stop = asyncio.Event()
    stop.set()
    away = create_async_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    billing = CrashRecords(away, queue="billing", outage=Outage("t"))
    assert await billing.start("m", stop) is None
    await billing.call_off("m", CrashRecord(starts=2), stop)
