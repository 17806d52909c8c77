"""Order by key: which claimed rows may go, and which wait for an earlier message of their key. Pure.

Keys that keep blocking claims are left out of the next ones for a moment.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from outboxkit.relay.rows import Claimed
from outboxkit.tables import PARKED


class Predecessors(NamedTuple):
    """What stands before a key's rows and is not in this relay's hands, as positions; None where nothing does.

    Attributes:
        ready_at: a row that another relay holds, or that this one has just given back.
        held_at: a row that waits for its retry, or behind one that does.
        due_at: until when that row waits.
        parked_at: a dead letter whose key is parked.
    """

    ready_at: int | None = None
    held_at: int | None = None
    due_at: datetime | None = None
    parked_at: int | None = None


@dataclass(slots=True)
class BatchPlan:
    """What to do with claimed rows. Rows in no list are given back: the end of the transaction unlocks them.

    Attributes:
        send: to be published, in position order.
        expired: too late to be published.
        waiting: positions to hold, by the moment until which they wait.
        parked: positions to park, those of them whose key is still parked then: an operator may be releasing it.
        blocked: how many rows of each key are in no list.
    """

    send: list[Claimed] = field(default_factory=list)
    expired: list[Claimed] = field(default_factory=list)
    waiting: dict[datetime, list[int]] = field(default_factory=dict)
    parked: list[int] = field(default_factory=list)
    blocked: Counter[str] = field(default_factory=Counter)


def plan_batch(rows: Sequence[Claimed], before: Mapping[str, Predecessors], *, now: datetime) -> BatchPlan:
    """Decide for each row, in position order, by what stands before it."""
    lineup = BatchPlan()
    for row in rows:
        found = before.get(row.message.key) if row.message.key is not None else None
        if found is not None and _is_blocked(row, found, lineup):
            continue
        (lineup.expired if _is_expired(row, now) else lineup.send).append(row)
    return lineup


def drop_behind(lineup: BatchPlan, stuck: Mapping[str, datetime | None], *, now: datetime) -> None:
    """Take out of `send` what stands behind keys that have got stuck meanwhile: until the moment given, or for now."""
    kept = []
    for row in lineup.send:
        key = row.message.key
        if key is None or key not in stuck:
            kept.append(row)
        elif (due := stuck[key]) == PARKED:
            lineup.parked.append(row.position)
        elif due is None or due <= now:
            lineup.blocked[key] += 1
        else:
            lineup.waiting.setdefault(due, []).append(row.position)
    lineup.send = kept


def _is_blocked(row: Claimed, found: Predecessors, lineup: BatchPlan) -> bool:
    if found.parked_at is not None and found.parked_at < row.position:
        lineup.parked.append(row.position)
    elif found.held_at is not None and found.due_at is not None and found.held_at < row.position:
        if found.due_at == PARKED:
            lineup.parked.append(row.position)
        elif row.due_at is not None and row.due_at >= found.due_at:  # that one comes first: somebody else has it
            lineup.blocked[str(row.message.key)] += 1
        else:
            lineup.waiting.setdefault(found.due_at, []).append(row.position)
    elif found.ready_at is not None and found.ready_at < row.position:
        lineup.blocked[str(row.message.key)] += 1
    else:
        return False
    return True


def _is_expired(row: Claimed, now: datetime) -> bool:
    return row.expires_at is not None and row.expires_at <= now


PATIENCE = 3
"""How many claims in a row may be blocked for the most part: relays that meet at a key get out of each other's way."""
AVOIDED_KEYS = 32
AVOID_SECONDS = 0.25


class ContendedKeys:
    """Remembers which keys have blocked claims, so that they do not fill every batch while other keys wait.

    Args:
        monotonic: seconds, for tests.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._blocked_claims = 0
        self._until: dict[str, float] = {}

    def keys(self) -> list[str]:
        """What the next claim leaves out."""
        if self._until:
            now = self._monotonic()
            self._until = {key: until for key, until in self._until.items() if until > now}
        return list(self._until)

    def saw(self, rows: int, blocked: Counter[str]) -> None:
        """Note how many rows a claim had, and how many of them, by key, were not this relay's turn."""
        if blocked.total() * 2 <= rows:
            self._blocked_claims = 0
            return
        self._blocked_claims += 1
        if self._blocked_claims >= PATIENCE:
            until = self._monotonic() + AVOID_SECONDS
            self._until |= {key: until for key, _ in blocked.most_common(AVOIDED_KEYS)}
