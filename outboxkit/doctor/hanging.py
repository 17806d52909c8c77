"""The finding about a handler that does not end, by the transaction that its consumer has open for it. Pure."""

from collections.abc import Callable, Sequence

from outboxkit.doctor.diagnosis import Diagnosis
from outboxkit.hanging import HangingRun
from outboxkit.wording import many

_TIMEOUT = '@inbox_handler("...", timeout=60)'


def of_hung_handler(
    run: HangingRun, others: Sequence[HangingRun], make: Callable[..., Diagnosis], *, why: str
) -> Diagnosis:
    """The finding about a consumer whose transactions are open for long.

    Args:
        run: one of its runs.
        others: the other ones.
        make: `problem` or `warning`.
        why: what an open transaction does to the database.
    """
    more = f" {many(len(others), 'more session')} of that consumer too." if others else ""
    return make(
        "handler-hangs",
        f"{run}: its session, {run.pid}, has a transaction open.{more}",
        why=f"Its place in the consumer is taken, and later messages of its key wait. {why}",
        cure="The consumer's log names handler and message: “handler has not ended”. So does the metric "
        "outboxkit_consumer_longest_run_seconds. Restart that consumer: the message comes again, and nothing of it is "
        "done twice. Then mend what the handler waits for, and give it a timeout. The last lines free the database at "
        "once; a handler that waits for something else goes on until the restart:",
        commands=(_TIMEOUT, *(f"SELECT pg_terminate_backend({each.pid});" for each in (run, *others))),
    )
