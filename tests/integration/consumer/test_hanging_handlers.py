"""Handlers that do not end, on PostgreSQL and RabbitMQ: the log, status and doctor name them, and who holds a lock."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from structlog.testing import capture_logs

from outboxkit import inbox_handler
from outboxkit.consumer import Concurrency, reports
from outboxkit.operators import blockers
from outboxkit.operators.doctor import sessions
from outboxkit.runtime import process
from outboxkit.runtime.outage import utc_now
from outboxkit.telemetry import catalogue
from tests.integration.consumer.running_consumer import Billed, Ordered, publish, starter
from tests.integration.operators.doctoring import look
from tests.support.measured import measuring
from tests.support.pages import libpq
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

ACCOUNT = "CREATE TABLE account (owner text PRIMARY KEY, cents int); INSERT INTO account VALUES ('bob', 0)"


@pytest.fixture
async def engine(postgresql_url: str, broker: PlainClient) -> AsyncIterator[AsyncEngine]:
    """A consumer's engine, by whose name status and doctor know it."""
    made = process.engine(postgresql_url, name=f"outboxkit consumer {broker.queue}"[:63])
    yield made
    await made.dispose()


async def test_a_handler_that_hangs_is_named(
    engine: AsyncEngine, postgresql_url: str, broker: PlainClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reports, "LONG_SECONDS", 0)
    monkeypatch.setattr(reports, "WATCH_SECONDS", 0.01)
    gate = asyncio.Event()

    @inbox_handler("SendReceipt")
    async def send_receipt(session: AsyncSession, event: Ordered) -> None:
        await gate.wait()

    @inbox_handler("Bill")
    async def bill(session: AsyncSession, event: Billed) -> None: ...

    def findings() -> list[str]:
        hung = [each for each in look(postgresql_url, sessions.check_handlers) if each.code == "handler-hangs"]
        return [each.what for each in hung if broker.queue in each.what]

    with capture_logs() as said, measuring() as measured:
        async with starter(engine, broker)(bill, send_receipt) as running:
            publish(broker, 1, "m-1")
            try:
                (what,) = await eventually_async(lambda: asyncio.to_thread(findings))
                ages: dict[Any, float] = measured.of(catalogue.LONGEST_RUN, "handler")
            finally:
                gate.set()
            await running.reaches(processed=1)
            assert measured.of(catalogue.LONGEST_RUN, "handler") == {"SendReceipt": 0, "Bill": 0}
    assert what.startswith(f"A handler of queue {broker.queue} has not ended for ")
    assert ages["SendReceipt"] > ages["Bill"] == 0
    line = next(line for line in said if line["event"].startswith("handler has not ended for "))
    assert (line["handler"], line["message_id"], line["log_level"]) == ("SendReceipt", "m-1", "warning")


async def test_the_session_that_holds_the_lock_is_named_and_not_its_victims(
    engine: AsyncEngine, pg_engine: Engine, postgresql_url: str, broker: PlainClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(blockers, "PATIENCE", timedelta(0))

    @inbox_handler("Book")
    async def book(session: AsyncSession, event: Ordered) -> None:
        await session.execute(text("UPDATE account SET cents = cents + 1 WHERE owner = 'bob'"))

    def found() -> tuple[blockers.Blocker, ...]:
        with pg_engine.connect() as connection:
            return blockers.read_blockers(connection, utc_now(), patience=timedelta(0))

    def waiting(all_: tuple[blockers.Blocker, ...]) -> bool:
        return [len(each.waiting) for each in all_] == [3]

    with pg_engine.begin() as connection:
        connection.execute(text(ACCOUNT))
    with psycopg.connect(libpq(postgresql_url), application_name="psql ann") as psql, capture_logs():
        pid = psql.info.backend_pid
        psql.execute("UPDATE account SET cents = 1 WHERE owner = 'bob'")
        async with starter(engine, broker)(book, concurrency=Concurrency(3)) as running:
            for number in range(3):
                publish(broker, number, f"m-{number}")
            try:
                (blocker,) = await eventually_async(lambda: asyncio.to_thread(found), waiting)
                findings: list[Any] = await asyncio.to_thread(look, postgresql_url, sessions.check_locks)
                findings += await asyncio.to_thread(look, postgresql_url, sessions.check_transactions)
            finally:
                psql.rollback()
            await running.reaches(processed=3)
    line = f"3 sessions of consumer {broker.queue} wait for session {pid} (psql ann) from 127.0.0.1, idle in transac"
    assert str(blocker).startswith(line)
    assert [each.code for each in findings] == ["sessions-blocked", "transaction-open"]
    assert findings[0].what.startswith(line)
    assert {command for each in findings for command in each.commands if "terminate" in command} == {
        f"SELECT pg_terminate_backend({pid});"
    }
