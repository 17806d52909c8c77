"""The finding about a handler that does not end, by the transaction that its consumer has open for it. Pure."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row

from outboxkit.doctor.diagnosis import Diagnosis
from outboxkit.wording import printable_name, span

CONSUMER = "outboxkit consumer "
"""The beginning of the names of a consumer's sessions; its queues follow, cut off at 63 bytes in all."""
LONGEST_NAME = 63
NEVER_NEAR = timedelta.max
CLOSE = timedelta(seconds=10)
"""The time between the begin of a handler and that of its transaction, at most."""
_TIMEOUT = '@inbox_handler("...", timeout=60)'


def is_of_consumer(name: str | None) -> bool:
    """Whether a session of this name is a consumer's."""
    return (name or "").startswith(CONSUMER)


def _has(session: str, queue: str) -> bool:
    """Whether the consumer of this queue may have a session of this name."""
    *queues, last = session.removeprefix(CONSUMER).split(", ")
    is_cut_off = len(session.encode()) >= LONGEST_NAME
    return queue in queues or (queue.startswith(last) if is_cut_off else queue == last)


def of_hung_handler(
    holder: Row[Any], handlers: Sequence[Row[Any]], now: datetime, make: Callable[..., Diagnosis], *, why: str
) -> Diagnosis:
    """The finding about a consumer's session whose transaction is open for long.

    Args:
        holder: the session.
        handlers: those that consumers have registered, with the last message of each that took long.
        now: the database's time.
        make: `problem` or `warning`.
        why: what an open transaction does to the database.
    """
    queues = holder.name.removeprefix(CONSUMER)
    theirs = [row for row in handlers if _has(holder.name, row.queue)]
    long = [row for row in theirs if row.long_since is not None and holder.since is not None]
    nearest = min((abs(row.long_since - holder.since) for row in long), default=NEVER_NEAR)
    known = [row for row in long if abs(row.long_since - holder.since) == nearest <= CLOSE]  # several in a batch
    age = "" if holder.since is None else f" for {span((now - holder.since).total_seconds())}"
    session = f"session {holder.pid}, {holder.state or 'hidden'}, has a transaction open"
    if known:
        names = " and ".join(printable_name(row.handler) for row in known)
        message = printable_name(known[0].long_message_id)
        what = f"Handler {names} of queue {printable_name(known[0].queue)} works on message {message}{age}: {session}."
    else:
        names = " or ".join(printable_name(row.handler) for row in theirs) or "not registered"
        what = f"A handler of queue {printable_name(queues)} ({names}) has not ended{age}: {session}."
    return make(
        "handler-hangs",
        what,
        why=f"Its place in the consumer is taken, and later messages of its key wait. {why}",
        cure="The consumer's log names handler and message: “handler has not ended”. So does the metric "
        "outboxkit_consumer_longest_run_seconds. Restart that consumer: the message comes again, and nothing of it is "
        "done twice. Then mend what the handler waits for, and give it a timeout. The last line frees the database at "
        "once; a handler that waits for something else goes on until the restart:",
        commands=(_TIMEOUT, f"SELECT pg_terminate_backend({holder.pid});"),
    )
