"""A handler that does not end, on PostgreSQL and RabbitMQ: the log names it, status and doctor its session."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from structlog.testing import capture_logs

from outboxkit import inbox_handler
from outboxkit.consumer import reports
from outboxkit.operators.doctor import sessions
from outboxkit.runtime import process
from outboxkit.telemetry import catalogue
from tests.integration.consumer.running_consumer import Billed, Ordered, publish, starter
from tests.integration.operators.doctoring import look
from tests.support.measured import measuring
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async


async def test_a_handler_that_hangs_is_named(
    pg_engine: Engine, postgresql_url: str, broker: PlainClient, monkeypatch: pytest.MonkeyPatch
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

    async def found() -> list[str]:
        return await asyncio.to_thread(findings)

    engine: AsyncEngine = process.engine(postgresql_url, name=f"outboxkit consumer {broker.queue}"[:63])
    with capture_logs() as said, measuring() as measured:
        async with starter(engine, broker)(bill, send_receipt) as running:
            publish(broker, 1, "m-1")
            try:
                (what,) = await eventually_async(found, bool)
                ages: dict[Any, float] = measured.of(catalogue.LONGEST_RUN, "handler")
            finally:
                gate.set()
            await running.reaches(processed=1)
            assert measured.of(catalogue.LONGEST_RUN, "handler") == {"SendReceipt": 0, "Bill": 0}
    assert what.startswith(f"A handler of queue {broker.queue} has not ended for ")
    assert ages["SendReceipt"] > ages["Bill"] == 0
    await engine.dispose()
    line = next(line for line in said if line["event"].startswith("handler has not ended for "))
    assert (line["handler"], line["message_id"], line["log_level"]) == ("SendReceipt", "m-1", "warning")
