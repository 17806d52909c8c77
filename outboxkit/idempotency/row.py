"""Writing to the row of a run, which only the run that has it may do."""

from typing import Any

from sqlalchemy import Connection

from outboxkit.errors import LeaseLost, TransactionRequired
from outboxkit.idempotency.asked import row_of
from outboxkit.idempotency.outcome import Fresh
from outboxkit.statements import idempotency as statements


def write(connection: Connection, fresh: Fresh, statement: Any, values: dict[str, Any]) -> None:
    """Execute a statement that is fenced by the run's token.

    Raises:
        TransactionRequired: the row is not the run's, which has no lease.
        LeaseLost: the row is not the run's any more; the text says why.
    """
    this = row_of(fresh.scope, fresh.principal, fresh.key)
    if connection.execute(statement, this | {"at_token": fresh.token} | values).rowcount == 1:
        return
    if fresh.lease is None:
        raise TransactionRequired(not_here(fresh))
    found = connection.execute(statements.look_up(connection.dialect.name), this).first()
    raise LeaseLost(f"idempotency key {fresh.key!r}: {_why(fresh, found)}. Nothing was stored; roll back")


def not_here(fresh: Fresh) -> str:
    """Why a run without a lease cannot be completed where this was tried."""
    return (
        f"the request with idempotency key {fresh.key!r} is not open in this transaction: it began in another one, was "
        "rolled back, or has its answer. Nothing was stored; begin again"
    )


def _why(fresh: Fresh, found: Any) -> str:
    if found is None:
        return "the key is not there: it has expired or was forgotten, or its begin was not committed"
    return "this run has its answer" if found.token == fresh.token else "another run has taken over"
