"""The ledger of requests with an idempotency key. An answer is stored together with the request's work."""

from datetime import timedelta
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from outboxkit import ids, tables, transaction
from outboxkit.errors import ConfigurationError, LeaseLost, TransactionRequired
from outboxkit.idempotency import contention
from outboxkit.idempotency.answer import (
    Fresh,
    InProgress,
    Mismatch,
    Outcome,
    Replay,
    Response,
    answer_of,
    decode_steps,
    response_of,
)
from outboxkit.idempotency.request import KeyRequest, check_span, row_of
from outboxkit.statements import idempotency as statements
from outboxkit.statements.dialects import is_server
from outboxkit.telemetry import catalogue, metrics


def write_fenced(connection: Connection, fresh: Fresh, statement: Any, values: dict[str, Any]) -> None:
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
    row = connection.execute(statements.look_up(connection.dialect.name), this).first()
    raise LeaseLost(f"idempotency key {fresh.key!r}: {_why(fresh, row)}. Nothing was stored; roll back")


def not_here(fresh: Fresh) -> str:
    """The error text for a run without a lease that is completed outside of its own transaction."""
    return (
        f"the request with idempotency key {fresh.key!r} is not open in this transaction: it began in another one, was "
        "rolled back, or has its answer. Nothing was stored; begin again"
    )


def _why(fresh: Fresh, row: Any) -> str:
    if row is None:
        return "the key is not there: it has expired or was forgotten, or its begin was not committed"
    return "this run has its answer" if row.token == fresh.token else "another run has taken over"


DEFAULT_RETENTION = timedelta(hours=24)
"""The retention of an answer, unless the caller gives another."""

_ROUNDS = 5
"""Attempts to take a key or to see its holder. Between the two a holder may end, and another begin."""
_NO_WAIT = timedelta(0)
_WHY = "the key would stay when the request fails, and a repetition would be refused"


def begin(
    session: Session | scoped_session[Any],
    *,
    scope: str,
    principal: str | None,
    key: str,
    fingerprint: bytes,
    retention: timedelta = DEFAULT_RETENTION,
    wait: timedelta = _NO_WAIT,
    lease: timedelta | None = None,
) -> Outcome:
    """Take the key for this request, or return the outcome of the request that has it.

    Without a lease the key belongs to the session's transaction, as the work and the answer do. Until `complete` a
    commit is refused, and a rollback forgets all of it. With a lease the caller commits at once, and works outside of
    any transaction. `Steps` keep finished results, and `complete` fails if another run has taken over.

    Another request under the same key is always a `Mismatch`. On SQLite every call waits until no other transaction
    writes; call it first in the transaction.

    With an `AsyncSession`: `await session.run_sync(idempotency.begin, scope=…, principal=…, key=…, fingerprint=…)`.

    Args:
        session: the one of the request's work.
        scope: the operation, such as `POST /orders`; 1 to 255 characters.
        principal: the caller, whose keys are nobody else's; None: the key is shared by all callers.
        key: the idempotency key, 1 to 255 characters.
        fingerprint: 32 bytes that differ for different requests: `fingerprint`.
        retention: how long the key is kept, by the database's clock, from now on.
        wait: how long to wait for another transaction with the same request. Only for PostgreSQL, without a lease.
        lease: how long this run has the request to itself, from now or from its last finished step.

    Returns:
        `Fresh`: do the request. `Replay`: it was answered. `InProgress`: another run is busy with it. `Mismatch`: the
        key was used for another request.

    Raises:
        TransactionRequired: the connection is in autocommit mode.
        ConfigurationError: retention, wait or lease has a value that the text does not accept.
        ValueError: scope, principal, key or fingerprint is empty or too long.
        TypeError: one of them, or the session, is of another kind.
    """
    session = transaction.session_of(session, "idempotency.begin", "scope=…, principal=…, key=…, fingerprint=…")
    request = KeyRequest(scope, principal, key, fingerprint, ids.new(), retention, lease)
    check_span("wait", wait, zero=True)
    if wait and lease is not None:
        raise ConfigurationError("wait is for requests without a lease: leave out one of the two")
    connection = transaction.connection_of(session, _WHY, clause=tables.idempotency)
    outcome = _take_or_tell(connection, request, wait)
    if isinstance(outcome, Fresh) and lease is None:
        contention.began(session, outcome.token, key)
    return outcome


def complete(session: Session | scoped_session[Any], fresh: Fresh, response: Response) -> None:
    """Store the answer in the session's transaction. After the commit every duplicate gets it as a `Replay`.

    Args:
        session: the one of `begin`, in the same transaction. With a lease any one, usually that of the last work.
        fresh: the result of `begin`.
        response: the answer, byte for byte.

    Raises:
        TransactionRequired: the run has no lease, and did not begin in this transaction, was rolled back, or has its
            answer. Nothing was stored.
        LeaseLost: the run has a lease, and another run has taken over, or it has its answer. Roll back.
        TypeError: a part of the response, or the session, is of another kind.
        ValueError: HTTP has no such status, or a header cannot be sent.
    """
    session = transaction.session_of(session, "idempotency.complete", "fresh, response")
    answer = answer_of(response)
    if fresh.lease is None and not contention.is_unfinished(session, fresh.token):
        raise TransactionRequired(not_here(fresh))
    connection = transaction.connection_of(session, _WHY, clause=tables.idempotency)
    write_fenced(connection, fresh, statements.record_answer(), answer)
    if fresh.lease is None:
        contention.completed(session, fresh.token)


def release(session: Session | scoped_session[Any], fresh: Fresh, *, forget: bool = False) -> None:
    """End the lease of a run that failed, so that the next one need not wait for it. The caller commits.

    Args:
        session: any one.
        fresh: the result of `begin`, with a lease.
        forget: remove the key and its finished steps, too.

    Raises:
        LeaseLost: another run has taken over, or the run has its answer.
        ConfigurationError: the run has no lease: roll back instead.
        TypeError: the session is of another kind.
    """
    session = transaction.session_of(session, "idempotency.release", "fresh")
    if fresh.lease is None:
        raise ConfigurationError("release is for runs with a lease; this one ends with its transaction: roll back")
    connection = transaction.connection_of(session, _WHY, clause=tables.idempotency)
    write_fenced(
        connection, fresh, statements.forget_key() if forget else statements.end_key_lease(connection.dialect.name), {}
    )


def _take_or_tell(connection: Connection, request: KeyRequest, wait: timedelta) -> Outcome:
    shares_transaction = request.lease is None and is_server(connection.dialect.name)
    for _ in range(_ROUNDS):
        outcome = _attempt(connection, request)
        if outcome is None and shares_transaction:
            outcome = contention.find_holder(connection, request.locks())
            if isinstance(outcome, InProgress) and wait:
                outcome = contention.wait(connection, request.locks(), wait, lambda: _attempt(connection, request))
                wait = _NO_WAIT
        if outcome is not None:
            return outcome
    return InProgress()


def _attempt(connection: Connection, request: KeyRequest) -> Outcome | None:
    """Take the key, or read the row that has it; None: that row is not visible, or not any more."""
    dialect, parameters = connection.dialect.name, request.parameters()
    if request.lease is None and is_server(dialect):
        taking, parameters = statements.take_alone(dialect), parameters | request.locks().to_take()
    else:
        taking = statements.take_key(dialect)
    taken = connection.execute(taking, parameters).first()
    if taken is not None:
        if taken.taken_over:
            metrics.measure(catalogue.LEASES_TAKEN_OVER, 1)
        steps = decode_steps(taken.steps)
        return Fresh(
            request.scope,
            request.principal,
            request.key,
            request.token,
            taken.expires_at,
            request.lease,
            steps,
            request.fingerprint,
        )
    this = {name: parameters[name] for name in ("at_scope", "at_principal", "at_key")}
    row = connection.execute(statements.look_up(dialect), this).first()
    return None if row is None else _tell(row, request.fingerprint)


def _tell(row: Any, fingerprint: bytes) -> Outcome | None:
    """The outcome for a request whose key has a row; None: the row's lease has just ended."""
    if row.fingerprint != fingerprint:
        return Mismatch()
    if row.state == "done":
        return Replay(response_of(row), row.expires_at)
    if row.locked_until is None:
        return InProgress()
    after = row.locked_until - row.now
    return InProgress(after) if after > _NO_WAIT else None
