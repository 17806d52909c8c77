"""Handlers that do not end, by the transactions that their consumers have open for them. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import Row

from outboxkit.database.session_names import is_of_consumer, may_be_of_queue, queues_of
from outboxkit.errors.wording import printable_name, span

NEVER_NEAR = timedelta.max
CLOSE = timedelta(seconds=10)
"""The time between the begin of a handler and that of its transaction, at most."""
LONG = timedelta(minutes=1)
"""A handler that has run for so long is named; its consumer notes it then."""

OpenSession = tuple[int, str, datetime | None]
"""The pid of a session, its name, and when its transaction began."""


@dataclass(frozen=True, slots=True)
class HangingRun:
    """A run of handlers whose transaction is open for long.

    Attributes:
        queue: the consumer's, or its queues.
        handlers: those that run; if no message is known, those that may.
        message_id: of the message, the first one of a batch; None if the consumer has not noted it.
        seconds: since the transaction began; None if PostgreSQL hides that.
        pid: of the session.
    """

    queue: str
    handlers: tuple[str, ...]
    message_id: str | None
    seconds: float | None
    pid: int

    def __str__(self) -> str:
        """A sentence without its end: the handler, the message and how long, as far as they are known."""
        queue = printable_name(self.queue)
        age = "" if self.seconds is None else f" for {span(self.seconds)}"
        if self.message_id is None:
            names = " or ".join(map(printable_name, self.handlers)) or "not registered"
            return f"A handler of queue {queue} ({names}) has not ended{age}"
        names = " and ".join(map(printable_name, self.handlers))
        return f"Handler {names} of queue {queue} works on message {printable_name(self.message_id)}{age}"


def long_runs(sessions: Iterable[OpenSession], handlers: Sequence[Row[Any]], now: datetime) -> tuple[HangingRun, ...]:
    """The runs of consumers, among these sessions, whose transactions are open for long."""
    long = [
        (pid, name, since)
        for pid, name, since in sessions
        if is_of_consumer(name) and since is not None and now - since >= LONG
    ]
    return tuple(hanging_runs(long, handlers, now).values())


def hanging_runs(sessions: Sequence[OpenSession], handlers: Sequence[Row[Any]], now: datetime) -> dict[int, HangingRun]:
    """The runs for which these sessions of consumers have their transactions open, by pid.

    A consumer notes one message for each of its handlers. So of several runs of a handler one has a message: the one
    that began at the nearest time. If they began at once, it may be another one's.

    Args:
        sessions: those that are open for long.
        handlers: those that consumers have registered, with the last message of each that took long.
        now: the database's time.
    """
    noted = dict[int, list[tuple[timedelta, Row[Any]]]]()
    for row in handlers:
        near = [
            (abs(row.long_since - since), pid)
            for pid, name, since in sessions
            if row.long_since is not None and since is not None and may_be_of_queue(name, row.queue)
        ]
        distance, pid = min(near, default=(NEVER_NEAR, 0))
        if distance <= CLOSE:
            noted.setdefault(pid, []).append((distance, row))
    return {session[0]: _run(session, noted.get(session[0], []), handlers, now) for session in sessions}


def _run(
    session: OpenSession, noted: Sequence[tuple[timedelta, Row[Any]]], handlers: Sequence[Row[Any]], now: datetime
) -> HangingRun:
    pid, name, since = session
    nearest = min((distance for distance, _ in noted), default=NEVER_NEAR)
    known = [row for distance, row in noted if distance == nearest]  # several in a batch
    return HangingRun(
        queue=known[0].queue if known else queues_of(name),
        handlers=tuple(row.handler for row in known or handlers if known or may_be_of_queue(name, row.queue)),
        message_id=known[0].long_message_id if known else None,
        seconds=None if since is None else max(0.0, round((now - since).total_seconds(), 1)),
        pid=pid,
    )


def by_consumer(runs: Iterable[HangingRun]) -> Iterator[tuple[HangingRun, list[HangingRun]]]:
    """The runs of each consumer: first one whose message is known, or else the longest one; and the others."""
    ordered = sorted(runs, key=lambda run: (run.queue, run.message_id is None, -(run.seconds or 0)))
    for _, group in groupby(ordered, key=lambda run: run.queue):
        first, *others = group
        yield first, others
