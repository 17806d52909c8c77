"""Sessions that hold locks for which outboxkit's sessions wait: the root of each chain, and not its victims."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row

from outboxkit.database.session_names import OURS, is_of_consumer, may_be_of_queue, without_mark
from outboxkit.errors.figures import in_utc, many, printable_name
from outboxkit.operators.findings import LIMITS
from outboxkit.statements import activity

PATIENCE = LIMITS.lock
"""The time for which a session may wait for a lock before it is worth a line."""
_PREPARED = 0
"""The process id that PostgreSQL gives for a prepared transaction, which has no session."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A session that waits for no lock itself, and those of outboxkit that wait for it, directly or behind others.

    Attributes:
        pid: of the session; 0 for a prepared transaction.
        role: the database role; None for a prepared transaction.
        address: of its client; None if it is local or hidden.
        state: such as `idle in transaction`; None if PostgreSQL hides it.
        since: when its transaction began; None if that is hidden.
    """

    pid: int
    name: str | None
    role: str | None
    address: str | None
    state: str | None
    since: datetime | None
    waiting: tuple[Row[Any], ...]

    def __str__(self) -> str:
        """`8 sessions of consumer billing wait for session 1164 (psql), idle in transaction since … UTC`."""
        names = sorted(Counter(without_mark(each.name) for each in self.waiting).items())
        who = " and ".join(
            f"{many(count, 'session')} of {printable_name(name.removeprefix(OURS))}" for name, count in names
        )
        return f"{who} {'waits' if len(self.waiting) == 1 else 'wait'} for {self._what()}"

    def _what(self) -> str:
        if self.pid == _PREPARED:
            return "a prepared transaction that is neither committed nor rolled back"
        where = f" from {self.address}" if self.address else ""
        since = f" since {in_utc(self.since)}" if self.since is not None else ""
        return f"session {self.pid} ({printable_name(self.name)}){where}, {self.state or 'in a hidden state'}{since}"

    @property
    def is_idle(self) -> bool:
        """Whether an application has left its transaction open."""
        return (self.state or "").startswith("idle in transaction") and not is_of_consumer(self.name)

    @property
    def step(self) -> str:
        """The step that lets the waiting sessions go on, in half a sentence."""
        if self.pid == _PREPARED:
            return "commit or roll back the one that this names"
        if is_of_consumer(self.name):
            return "if its handler hangs, restart that consumer, and its messages come again; or end that one"
        return "end that one"

    @property
    def command(self) -> str:
        """The step as SQL."""
        if self.pid == _PREPARED:
            return "SELECT gid, owner, prepared FROM pg_prepared_xacts WHERE database = current_database()"
        return f"SELECT pg_terminate_backend({self.pid})"

    @property
    def cure(self) -> str:
        """The step, and its SQL."""
        return f"{self.step}: {self.command}"

    def blocks_queue(self, queue: str) -> bool:
        """Whether a session of this queue's consumer, by its name, waits for it."""
        return any(may_be_of_queue(each.name, queue) for each in self.waiting)


def read_blockers(connection: Connection, now: datetime, *, patience: timedelta | None = None) -> tuple[Blocker, ...]:
    """The sessions for which outboxkit's sessions have waited for `patience`, or for `PATIENCE`.

    PostgreSQL only. A waiting session that is hidden from this role is not found.
    """
    rows = connection.execute(activity.lock_waits()).all()
    return roots_of(rows, now, patience=PATIENCE if patience is None else patience)


def roots_of(rows: Sequence[Row[Any]], now: datetime, *, patience: timedelta) -> tuple[Blocker, ...]:
    """The roots of what `activity.lock_waits` has read, those with the most waiting sessions first."""
    by_pid = {row.pid: row for row in rows}
    waiting = dict[int, list[Row[Any]]]()
    for row in rows:
        is_ours = row.blockers and (row.name or "").startswith(OURS)
        if is_ours and row.query_start is not None and now - row.query_start >= patience:
            for root in _roots(row.pid, by_pid):
                waiting.setdefault(root, []).append(row)
    blockers = [
        Blocker(root, row.name, row.role, row.address, row.state, row.since, tuple(waiters))
        for root, waiters in waiting.items()
        if (row := by_pid[root]).backend is not None or root == _PREPARED
    ]
    return tuple(sorted(blockers, key=lambda each: (-len(each.waiting), each.pid)))


def _roots(pid: int, by_pid: Mapping[int, Row[Any]]) -> Iterator[int]:
    """The sessions at the ends of a session's chains; none of a circle, which PostgreSQL breaks by itself."""
    seen, left = {pid}, [pid]
    while left:
        each = left.pop()
        ahead = by_pid[each].blockers if each in by_pid else ()
        if not ahead and each != pid and each in by_pid:
            yield each
        left += {*ahead} - seen
        seen |= {*ahead}


def blocker_of(blockers: Sequence[Blocker], pid: int) -> Blocker | None:
    """The session for which this one waits, or None."""
    return next((each for each in blockers if any(waiter.pid == pid for waiter in each.waiting)), None)
