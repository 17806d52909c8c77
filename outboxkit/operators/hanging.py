"""Handlers that do not end, by the transactions that their consumers have open for them. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from outboxkit.database.session_names import is_of_consumer, queues_of
from outboxkit.errors.wording import printable_name, span
from outboxkit.operators.findings import LIMITS

LONG = LIMITS.handler
"""A transaction that is open for so long is named. Its consumer's log names the handler and the message then."""


@dataclass(frozen=True, slots=True)
class HangingRun:
    """A run of handlers whose transaction is open for long.

    Attributes:
        queue: the consumer's, or its queues.
        seconds: since the transaction began; None if PostgreSQL hides that.
        pid: of the session.
    """

    queue: str
    seconds: float | None
    pid: int

    @classmethod
    def of(cls, pid: int, session: str, since: datetime | None, now: datetime) -> "HangingRun":
        """The run for which the session of this name has a transaction open."""
        seconds = None if since is None else max(0.0, round((now - since).total_seconds(), 1))
        return cls(queues_of(session), seconds, pid)

    def __str__(self) -> str:
        """A sentence without its end: the queue and how long."""
        age = "" if self.seconds is None else f" for {span(self.seconds)}"
        return f"A handler of queue {printable_name(self.queue)} has not ended{age}"


def long_runs(sessions: Iterable[tuple[int, str, datetime | None]], now: datetime) -> tuple[HangingRun, ...]:
    """The runs of consumers whose transactions are open for long. A session is a pid, a name and that begin."""
    return tuple(
        HangingRun.of(pid, name, since, now)
        for pid, name, since in sessions
        if is_of_consumer(name) and since is not None and now - since >= LONG
    )


def by_consumer(runs: Iterable[HangingRun]) -> Iterator[tuple[HangingRun, list[HangingRun]]]:
    """The longest run of each consumer, and the others."""
    ordered = sorted(runs, key=lambda run: (run.queue, -(run.seconds or 0)))
    for _, group in groupby(ordered, key=lambda run: run.queue):
        first, *others = group
        yield first, others
