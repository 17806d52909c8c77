"""Messages that wait for a time are listed, made due at once, or cancelled. Parked ones are dead letters' matter."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import schema, statements
from outboxkit.operators import audit, sql
from outboxkit.operators.sql.waiting import WaitingSelection
from outboxkit.schema import partitions
from outboxkit.statements.dialects import is_server

PAGE = 500
"""Messages that are changed in one transaction."""
Change = Literal["due-now", "cancel"]


@dataclass(frozen=True, slots=True)
class WaitingCounts:
    """The messages of a selection.

    Attributes:
        kinds: a row for each type and destination: `type`, `destination`, `rows`, and `first` and `last` due times.
    """

    kinds: Sequence[Row[Any]]

    @property
    def count(self) -> int:
        """All of them."""
        return sum(row.rows for row in self.kinds)

    @property
    def upto(self) -> int:
        """The highest position of them."""
        return max((row.upto for row in self.kinds), default=0)


async def _prepare(connection: AsyncConnection) -> datetime:
    """Check the tables, have the next statement use an index, and return the database's time."""
    await connection.run_sync(schema.check)
    if is_server(connection.dialect.name):
        await connection.execute(statements.status.forbid_sorting())
    return await partitions.clock(connection)


async def find_waiting(
    engine: AsyncEngine, waiting: WaitingSelection, *, limit: int
) -> tuple[Sequence[Row[Any]], datetime]:
    """Waiting messages without payloads, at most `limit`, by destination, next due first. And the database's time."""
    async with engine.connect() as connection:
        now = await _prepare(connection)
        return (await connection.execute(sql.waiting.next_due(waiting), {"limit": limit})).all(), now


async def survey_waiting(engine: AsyncEngine, waiting: WaitingSelection) -> WaitingCounts:
    """Count the messages of a selection."""
    async with engine.connect() as connection:
        await _prepare(connection)
        return WaitingCounts((await connection.execute(sql.waiting.count_by_type(waiting))).all())


async def change_waiting(
    engine: AsyncEngine,
    change: Change,
    waiting: WaitingSelection,
    stop: asyncio.Event,
    *,
    upto: int,
    by: str | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Make the messages of a selection due at once, or delete them, page by page; returns how many were.

    It is an action in the audit trail. A message that a relay publishes meanwhile is left to it.
    """
    done, is_any = 0, True
    found = sql.waiting
    statement, left = (
        (found.make_due(waiting), found.is_any_later(waiting))
        if change == "due-now"
        else (found.delete_waiting(waiting), found.is_any_waiting(waiting))
    )
    async with audit.recorded(engine, f"waiting {change}", audit.filter_of(waiting), by=by) as running:
        async with engine.connect() as connection:
            bounds: dict[str, Any] = {"upto": upto, "limit": PAGE}
            bounds |= {"now": await partitions.clock(connection)} if change == "due-now" else {}
        while is_any and not stop.is_set():
            async with engine.begin() as connection:
                changed = (await connection.execute(statement, bounds)).rowcount
                await running.count(connection, changed)
                # Of a full page some may have been a relay's, which has published them meanwhile: then others are left.
                is_any = changed == PAGE or bool((await connection.execute(left, bounds)).scalar())
            done += changed
            progress(done)
        running.result = audit.STOPPED if is_any else audit.DONE
    return done
