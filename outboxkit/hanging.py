"""Handlers that do not end, by the transactions that their consumers have open for them. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row

from outboxkit.wording import printable_name, span

CONSUMER = "outboxkit consumer "
"""The beginning of the names of a consumer's sessions; its queues follow, cut off at 63 bytes in all."""
LONGEST_NAME = 63
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


def is_of_consumer(name: str | None) -> bool:
    """Whether a session of this name is a consumer's."""
    return (name or "").startswith(CONSUMER)


def hanging_run(session: OpenSession, handlers: Sequence[Row[Any]], now: datetime) -> HangingRun:
    """The run for which a consumer's session has its transaction open.

    Args:
        session: its pid, its name, and when its transaction began; None if that is hidden.
        handlers: those that consumers have registered, with the last message of each that took long.
        now: the database's time.
    """
    pid, name, since = session
    theirs = [row for row in handlers if _has(name, row.queue)]
    long = [row for row in theirs if row.long_since is not None and since is not None]
    nearest = min((abs(row.long_since - since) for row in long), default=NEVER_NEAR)
    known = [row for row in long if abs(row.long_since - since) == nearest <= CLOSE]  # several in a batch
    return HangingRun(
        queue=known[0].queue if known else name.removeprefix(CONSUMER),
        handlers=tuple(row.handler for row in known or theirs),
        message_id=known[0].long_message_id if known else None,
        seconds=None if since is None else max(0.0, round((now - since).total_seconds(), 1)),
        pid=pid,
    )


def hanging_runs(sessions: Iterable[OpenSession], handlers: Sequence[Row[Any]], now: datetime) -> Iterator[HangingRun]:
    """The runs of those sessions that are consumers' and have their transaction open for long."""
    for session in sessions:
        _, name, since = session
        if is_of_consumer(name) and since is not None and now - since >= LONG:
            yield hanging_run(session, handlers, now)


def _has(session: str, queue: str) -> bool:
    """Whether the consumer of this queue may have a session of this name."""
    *queues, last = session.removeprefix(CONSUMER).split(", ")
    is_cut_off = len(session.encode()) >= LONGEST_NAME
    return queue in queues or (queue.startswith(last) if is_cut_off else queue == last)
