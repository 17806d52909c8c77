"""Messages that wait for a time are listed, made due at once, or cancelled. Parked ones are dead letters' matter."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Connection, Row
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.operators import audit, sql
from outboxkit.operators.messages import read_now
from outboxkit.operators.sql.waiting import WaitingSelection
from outboxkit.schema import partitions

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


@dataclass(slots=True)
class ChangedMessages:
    """The number of messages that were changed so far, and whether all of the selection were."""

    count: int = 0
    complete: bool = False


def find_waiting(
    connection: Connection, waiting: WaitingSelection, *, limit: int
) -> tuple[Sequence[Row[Any]], datetime]:
    """Waiting messages without payloads, at most `limit`, by destination, next due first. And the database's time."""
    now = read_now(connection)
    return connection.execute(sql.waiting.next_due(waiting), {"limit": limit}).all(), now


def survey_waiting(connection: Connection, waiting: WaitingSelection, change: Change) -> WaitingCounts:
    """Count the messages of a selection that the change would change."""
    counted, now = sql.waiting.count_by_type(waiting, later=change == "due-now"), read_now(connection)
    return WaitingCounts(connection.execute(counted, {"now": now} if change == "due-now" else {}).all())


async def change_waiting(
    engine: AsyncEngine,
    change: Change,
    waiting: WaitingSelection,
    stop: asyncio.Event,
    done: ChangedMessages,
    *,
    upto: int,
    by: str | None = None,
) -> None:
    """Make the messages of a selection due at once, or delete them, page by page; `done` has the progress.

    It is an action in the audit trail. A message that a relay publishes meanwhile is left to it.
    """
    is_due_now = change == "due-now"
    statement = sql.waiting.make_due(waiting) if is_due_now else sql.waiting.delete_waiting(waiting)
    left = sql.waiting.is_any_left(waiting, later=is_due_now)
    async with audit.recorded(engine, f"waiting {change}", audit.filter_of(waiting), by=by) as running:
        async with engine.connect() as connection:
            bounds: dict[str, Any] = {"upto": upto, "limit": PAGE}
            bounds |= {"now": await partitions.clock(connection)} if is_due_now else {}
        while not done.complete and not stop.is_set():
            async with engine.begin() as connection:
                changed = (await connection.execute(statement, bounds)).rowcount
                await running.count(connection, changed)
                # Of a full page some may have been a relay's, which has published them meanwhile: then others are left.
                done.complete = changed < PAGE and not (await connection.execute(left, bounds)).scalar()
            done.count += changed
        running.result = audit.DONE if done.complete else audit.STOPPED
