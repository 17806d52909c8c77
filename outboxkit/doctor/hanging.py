"""The finding about a handler that does not end, by the transaction that its consumer has open for it. Pure."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from outboxkit.doctor.diagnosis import Diagnosis
from outboxkit.hanging import hanging_run

_TIMEOUT = '@inbox_handler("...", timeout=60)'


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
    run = hanging_run((holder.pid, holder.name, holder.since), handlers, now)
    return make(
        "handler-hangs",
        f"{run}: session {holder.pid}, {holder.state or 'hidden'}, has a transaction open.",
        why=f"Its place in the consumer is taken, and later messages of its key wait. {why}",
        cure="The consumer's log names handler and message: “handler has not ended”. So does the metric "
        "outboxkit_consumer_longest_run_seconds. Restart that consumer: the message comes again, and nothing of it is "
        "done twice. Then mend what the handler waits for, and give it a timeout. The last line frees the database at "
        "once; a handler that waits for something else goes on until the restart:",
        commands=(_TIMEOUT, f"SELECT pg_terminate_backend({holder.pid});"),
    )
