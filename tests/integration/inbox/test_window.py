"""The proof of the window, tried on the tables: real statements and partitions, in any order.

The histories play in the year 2100, so that `processed_at` is always the message's own time: the least that the proof
allows it to be.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncConnection

from outboxkit import statements
from outboxkit.runtime import process
from outboxkit.schema.partitions import drop_before, make_ahead, make_behind
from outboxkit.statements.partitions import INBOX
from tests.support.histories import ACCEPTED, DAY, HOUR, History, plays
from tests.support.night import by_night


class Tables:
    """The inbox of a real database."""

    def __init__(self, engine: Engine, run: Callable[[Callable[[AsyncConnection], Awaitable[None]]], None]) -> None:
        self._engine = engine
        self._run = run
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM outboxkit_inbox"))

    def record(self, message_id: str, made: datetime, now: datetime) -> bool:
        row = {"handler": "H", "message_id": message_id, "type": "T", "attempts": 1, "payload_crc": None, "made": made}
        with self._engine.begin() as connection:
            statement = statements.inbox.record_processed("postgresql")
            return connection.execute(statement, row).scalar() is not None

    def forget(self, before: datetime, now: datetime, luck: int) -> None:
        """A round of pruning, or a part of it."""

        async def prune(connection: AsyncConnection) -> None:
            if luck % 2:
                await drop_before(connection, before, INBOX)
            if luck & 2:
                async with connection.begin():
                    await connection.execute(statements.retention.prune_inbox("postgresql", before, 1 + luck))
            if luck & 4:
                await make_behind(connection, before - timedelta(days=2), now + timedelta(days=31))
            if luck == 7:
                await make_ahead(connection, INBOX, now)

        self._run(prune)


@settings(
    max_examples=by_night(60, else_=12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example(play=(10 * DAY, DAY, ACCEPTED))
@given(play=plays(8 * HOUR))
def test_no_message_has_two_effects_whatever_the_order(
    pg_engine: Engine, postgresql_url: str, play: tuple[timedelta, timedelta, list[tuple[Any, ...]]]
):
    retention, skew, steps = play
    engine = process.engine(postgresql_url, name="test")

    async def on_a_connection(work: Callable[[AsyncConnection], Awaitable[None]]) -> None:
        async with engine.connect() as connection:
            await work(connection)

    with asyncio.Runner() as runner:
        History(Tables(pg_engine, lambda work: runner.run(on_a_connection(work))), retention, skew).play(steps)
        runner.run(engine.dispose())
