"""Claimed rows and their order by key: which may go, and which wait for an earlier message of their key. Pure.

Keys that keep blocking claims are left out of the next ones for a moment.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from outboxkit.codec.rows import from_claimed
from outboxkit.message import Message
from outboxkit.tables import PARKED


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


@dataclass(slots=True)
class BatchPlan:
    """The decisions on claimed rows. Rows in no list are given back: the end of the transaction unlocks them.

    Attributes:
        send: rows to publish, in position order.
        expired: rows that are too late to publish.
        waiting: positions that wait, by the time until which they do.
        parked: positions to park if their key is still parked then: an operator may be releasing it.
        blocked: the number of rows of each key that are in no list.
    """

    send: list[ClaimedRow] = field(default_factory=list)
    expired: list[ClaimedRow] = field(default_factory=list)
    waiting: dict[datetime, list[int]] = field(default_factory=dict)
    parked: list[int] = field(default_factory=list)
    blocked: Counter[str] = field(default_factory=Counter)


def plan_batch(rows: Sequence[ClaimedRow], predecessors: Mapping[str, Predecessors], *, now: datetime) -> BatchPlan:
    """Decide on each row, in position order, by its predecessors."""
    plan = BatchPlan()
    for row in rows:
        earlier = predecessors.get(row.message.key) if row.message.key is not None else None
        if earlier is not None and _is_blocked(row, earlier, plan):
            continue
        (plan.expired if _is_expired(row, now) else plan.send).append(row)
    return plan


def drop_behind(plan: BatchPlan, blocked: Mapping[str, datetime | None], *, now: datetime) -> None:
    """Take rows out of `send` if their keys were blocked meanwhile: until the time of that key, or for now."""
    send = []
    for row in plan.send:
        key = row.message.key
        if key is None or key not in blocked:
            send.append(row)
        elif (due := blocked[key]) == PARKED:
            plan.parked.append(row.position)
        elif due is None or due <= now:
            plan.blocked[key] += 1
        else:
            plan.waiting.setdefault(due, []).append(row.position)
    plan.send = send


def _is_blocked(row: ClaimedRow, earlier: Predecessors, plan: BatchPlan) -> bool:
    if earlier.parked_at is not None and earlier.parked_at < row.position:
        plan.parked.append(row.position)
    elif earlier.held_at is not None and earlier.due_at is not None and earlier.held_at < row.position:
        if earlier.due_at == PARKED:
            plan.parked.append(row.position)
        elif row.due_at is not None and row.due_at >= earlier.due_at:  # the earlier one is due: another relay has it
            plan.blocked[str(row.message.key)] += 1
        else:
            plan.waiting.setdefault(earlier.due_at, []).append(row.position)
    elif earlier.ready_at is not None and earlier.ready_at < row.position:
        plan.blocked[str(row.message.key)] += 1
    else:
        return False
    return True


def _is_expired(row: ClaimedRow, now: datetime) -> bool:
    return row.expires_at is not None and row.expires_at <= now


PATIENCE = 3
"""After so many claims in a row with more than half of their rows blocked, the relay leaves their keys to others."""
AVOID_SECONDS = 0.25


class ContendedKeys:
    """The keys that have blocked claims lately, so that they do not fill every batch while other keys wait.

    Args:
        monotonic: a monotonic clock in seconds, for tests.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._blocked_claims = 0
        self._new: list[str] = []
        self._until: dict[str, float] = {}

    def keys(self) -> list[str]:
        """The keys that the next claim leaves out. Their time begins with it, as the relay may pause before."""
        if self._new or self._until:
            now = self._monotonic()
            self._until |= dict.fromkeys(self._new, now + AVOID_SECONDS)
            self._new = []
            self._until = {key: until for key, until in self._until.items() if until > now}
        return list(self._until)

    def saw(self, rows: int, blocked: Counter[str]) -> None:
        """Note the rows of a claim, and how many of them, by key, have to wait for another relay."""
        if blocked.total() * 2 <= rows:
            self._blocked_claims = 0
            return
        self._blocked_claims += 1
        if self._blocked_claims >= PATIENCE:
            self._new = list(blocked)
