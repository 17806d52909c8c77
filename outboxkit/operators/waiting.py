"""Messages that wait for a time are listed, made due at once, or cancelled. Parked ones are dead letters' matter."""

import asyncio
from array import array
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
WaitingChange = Literal["due-now", "cancel"]


@dataclass(slots=True)
class WaitingKind:
    """The messages of a selection with one type and destination: their number, and the first and last due times."""

    type: str
    destination: str
    first: datetime
    last: datetime
    count: int = 0


@dataclass(frozen=True, slots=True)
class WaitingPlan:
    """The messages that a change would change: `kinds`, the largest first, and their positions, of 8 bytes each."""

    kinds: Sequence[WaitingKind]
    positions: "array[int]"


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


def plan_change(connection: Connection, waiting: WaitingSelection, change: WaitingChange) -> WaitingPlan:
    """The messages of a selection that the change would change at this moment."""
    is_due_now, kinds, positions = change == "due-now", dict[tuple[str, str], WaitingKind](), array("q")
    parameters = {"now": read_now(connection)} if is_due_now else {}
    statement = sql.waiting.all_waiting(waiting, later=is_due_now)
    for row in connection.execute(statement, parameters, execution_options={"yield_per": PAGE}):
        new = WaitingKind(row.type, row.destination, row.due_at, row.due_at)
        kind = kinds.setdefault((row.type, row.destination), new)
        kind.first, kind.last = min(kind.first, row.due_at), max(kind.last, row.due_at)
        kind.count += 1
        positions.append(row.position)
    return WaitingPlan(sorted(kinds.values(), key=lambda kind: (-kind.count, kind.type, kind.destination)), positions)


async def change_waiting(
    engine: AsyncEngine,
    change: WaitingChange,
    waiting: WaitingSelection,
    positions: Sequence[int],
    stop: asyncio.Event,
    done: ChangedMessages,
    *,
    by: str | None = None,
) -> None:
    """Make the messages of a plan due at once, or delete them, page by page; `done` has the progress.

    It is an action in the audit trail. A message that a relay publishes meanwhile is left to it, and so are those that
    are no longer in the selection, or came to it behind the plan.
    """
    is_due_now, dialect = change == "due-now", engine.dialect.name
    statement = sql.waiting.make_due(dialect, waiting) if is_due_now else sql.waiting.delete_waiting(dialect, waiting)
    async with audit.recorded(engine, f"waiting {change}", audit.filter_of(waiting), by=by) as running:
        async with engine.connect() as connection:
            now = {"now": await partitions.clock(connection)} if is_due_now else {}
        for first in range(0, len(positions), PAGE):
            if stop.is_set():
                running.result = audit.STOPPED
                return
            async with engine.begin() as connection:
                page = {"positions": [*positions[first : first + PAGE]]}
                changed = (await connection.execute(statement, now | page)).rowcount
                await running.count(connection, changed)
            done.count += changed
        done.complete = True
