"""Claimed rows and their order by key: which may go, and which wait for an earlier message of their key. Pure.

`shares` chooses the keys that are claimed at all, for speed alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from outboxkit.codec.rows import from_claimed
from outboxkit.message import Message
from outboxkit.tables import PARKED

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


@dataclass(slots=True, eq=False)
class ClaimedRow:
    """An outbox row that this relay holds locked. `unreadable` is the reason for which it cannot be published."""

    position: int
    attempts: int
    message: Message
    expires_at: datetime | None = None
    discard_unroutable: bool = False
    due_at: datetime | None = None
    reply: str | None = None
    unreadable: str | None = None


def read_claimed(rows: Iterable[tuple[Any, ...]]) -> list[ClaimedRow]:
    """Rows from tuples, in the order of `statements.claim.CLAIMED`."""
    batch = []
    for position, attempts, *values, expires_at, discard, due_at, reply in rows:
        message, unreadable = from_claimed(values)
        batch.append(ClaimedRow(position, attempts, message, expires_at, discard, due_at, reply, unreadable))
    return batch


class Predecessors(NamedTuple):
    """The nearest rows before a key's claimed rows that are not this relay's own, as positions; None if there is none.

    Attributes:
        ready_at: a row that another relay holds, or that this one has just given back.
        held_at: a row that waits for its retry, or behind one that does.
        due_at: the time until which that row waits.
        parked_at: a dead letter whose key is parked.
    """

    ready_at: int | None = None
    held_at: int | None = None
    due_at: datetime | None = None
    parked_at: int | None = None


@dataclass(slots=True, eq=False)
class Batch:
    """Rows that were claimed together, and the decisions on them that are made before any is sent.

    Rows in no list but `rows` are given back: the end of the transaction unlocks them.

    Attributes:
        connection: of the open transaction that has the rows locked. They are not locked if `keeps_locks` is off.
        send: rows to publish, in position order.
        waiting: positions that wait, by the time until which they do.
        parked: positions to park if their key is still parked then: an operator may be releasing it.
        blocked_rows: the number of rows of each key that are in no list.
        is_last: whether it has so few rows that no more are ready: later ones are announced, or found by a query.
    """

    connection: "AsyncConnection"
    rows: Sequence[ClaimedRow]
    send: list[ClaimedRow] = field(default_factory=list)
    expired: list[ClaimedRow] = field(default_factory=list)
    waiting: dict[datetime, list[int]] = field(default_factory=dict)
    parked: list[int] = field(default_factory=list)
    blocked_rows: Counter[str] = field(default_factory=Counter)
    is_last: bool = False

    def plan(self, predecessors: Mapping[str, Predecessors], *, now: datetime) -> None:
        """Decide on each row, in position order, by its predecessors."""
        for row in self.rows:
            earlier = predecessors.get(row.message.key) if row.message.key is not None else None
            if earlier is None or not _is_blocked(row, earlier, self):
                (self.expired if _is_expired(row, now) else self.send).append(row)

    def expire(self, *, now: datetime) -> None:
        """Take rows out of `send` that have expired since they were claimed."""
        if any(_is_expired(row, now) for row in self.send):
            self.expired += [row for row in self.send if _is_expired(row, now)]
            self.send = [row for row in self.send if not _is_expired(row, now)]

    def drop_behind(self, blocked: Mapping[str, datetime | None], *, now: datetime) -> None:
        """Take rows out of `send` if their keys were blocked meanwhile: until the time of that key, or for now."""
        send = []
        for row in self.send:
            key = row.message.key
            if key is None or key not in blocked:
                send.append(row)
            elif (due := blocked[key]) == PARKED:
                self.parked.append(row.position)
            elif due is None or due <= now:
                self.blocked_rows[key] += 1
            else:
                self.waiting.setdefault(due, []).append(row.position)
        self.send = send


def _is_blocked(row: ClaimedRow, earlier: Predecessors, batch: Batch) -> bool:
    if earlier.parked_at is not None and earlier.parked_at < row.position:
        batch.parked.append(row.position)
    elif earlier.held_at is not None and earlier.due_at is not None and earlier.held_at < row.position:
        if earlier.due_at == PARKED:
            batch.parked.append(row.position)
        elif row.due_at is not None and row.due_at >= earlier.due_at:  # the earlier one is due: another relay has it
            batch.blocked_rows[str(row.message.key)] += 1
        else:
            batch.waiting.setdefault(earlier.due_at, []).append(row.position)
    elif earlier.ready_at is not None and earlier.ready_at < row.position:
        batch.blocked_rows[str(row.message.key)] += 1
    else:
        return False
    return True


def _is_expired(row: ClaimedRow, now: datetime) -> bool:
    return row.expires_at is not None and row.expires_at <= now
