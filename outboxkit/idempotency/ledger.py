"""The ledger: a request with an idempotency key begins, and its answer is stored with what it did."""

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
from outboxkit.idempotency.request import Asked, check_span, row_of
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


DEFAULT_RETENTION = timedelta(hours=24)
"""For how long an answer is remembered, unless somebody says otherwise."""

_ROUNDS = 5
"""How often a holder may end between two looks at it, and another one take its place."""
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
    """Take the key for this request, or say what became of the request that has it.

    Without a lease the key belongs to the session's transaction, as the work does and the answer: until `complete` a
    commit is refused, and a rollback forgets all of it. With a lease the caller commits at once, and works outside of
    any transaction: `Steps` keep what is finished, and `complete` fails where another run has taken over.

    Another request under the same key is a `Mismatch`, whatever became of the first. On SQLite every call waits until
    no other transaction writes; call it first in the transaction.

    With an `AsyncSession`: `await session.run_sync(idempotency.begin, scope=…, principal=…, key=…, fingerprint=…)`.

    Args:
        session: what the work is done with.
        scope: the operation, such as `POST /orders`; 1 to 255 characters.
        principal: the caller, whose keys are nobody else's; None: the key is shared by all callers.
        key: the idempotency key, 1 to 255 characters.
        fingerprint: 32 bytes that differ for different requests: `fingerprint`.
        retention: how long the key is remembered, by the database's clock, from now on.
        wait: how long to wait for another transaction with the same request; it counts on PostgreSQL, without a lease.
        lease: how long this run has the request to itself, from now or from its last finished step.

    Returns:
        `Fresh`: do the request. `Replay`: it was answered. `InProgress`: another run is busy with it. `Mismatch`: the
        key was used for another request.

    Raises:
        TransactionRequired: the connection is in autocommit mode.
        ConfigurationError: retention, wait or lease cannot be used; the text says what is accepted.
        ValueError: scope, principal, key or fingerprint is empty or too long.
        TypeError: one of them, or the session, is of another kind.
    """
    session = transaction.session_of(session, "idempotency.begin", "scope=…, principal=…, key=…, fingerprint=…")
    asked = Asked(scope, principal, key, fingerprint, ids.new(), retention, lease)
    check_span("wait", wait, zero=True)
    if wait and lease is not None:
        raise ConfigurationError("wait is for requests without a lease: nobody waits for a run in steps. Leave one out")
    connection = transaction.connection_of(session, tables.idempotency, _WHY)
    outcome = _take_or_tell(connection, asked, wait)
    if isinstance(outcome, Fresh) and lease is None:
        contention.began(session, outcome.token, key)
    return outcome


def complete(session: Session | scoped_session[Any], fresh: Fresh, response: Response) -> None:
    """Remember the answer, in the session's transaction: it is a `Replay` for everybody once that is committed.

    Args:
        session: the one of `begin`, in the same transaction; with a lease any one, the one of the last piece of work.
        fresh: what `begin` returned.
        response: the answer, byte for byte.

    Raises:
        TransactionRequired: without a lease, where the transaction is not the one in which the run began, or this was
            rolled back, or has its answer. Nothing was stored.
        LeaseLost: with a lease, where another run has taken over, or the run has its answer. Roll back.
        TypeError: a part of the response, or the session, is of another kind.
        ValueError: the status is none of HTTP.
    """
    session = transaction.session_of(session, "idempotency.complete", "fresh, response")
    answer = answer_of(response)
    if fresh.lease is None and not contention.is_unfinished(session, fresh.token):
        raise TransactionRequired(not_here(fresh))
    connection = transaction.connection_of(session, tables.idempotency, _WHY)
    write(connection, fresh, statements.finish(), answer)
    if fresh.lease is None:
        contention.completed(session, fresh.token)


def release(session: Session | scoped_session[Any], fresh: Fresh, *, forget: bool = False) -> None:
    """End the lease of a run that failed, so that the next try need not wait for its end; the caller commits.

    Args:
        session: any one.
        fresh: what `begin` returned, with a lease.
        forget: remove the key and its finished steps, too, as if it had never come.

    Raises:
        LeaseLost: another run has taken over, or the run has its answer.
        ConfigurationError: the run has no lease: roll back instead.
        TypeError: the session is of another kind.
    """
    session = transaction.session_of(session, "idempotency.release", "fresh")
    if fresh.lease is None:
        raise ConfigurationError("release is for runs with a lease; this one ends with its transaction: roll back")
    connection = transaction.connection_of(session, tables.idempotency, _WHY)
    write(connection, fresh, statements.forget() if forget else statements.end_lease(connection.dialect.name), {})


def _take_or_tell(connection: Connection, asked: Asked, wait: timedelta) -> Outcome:
    shares_transaction = asked.lease is None and connection.dialect.name == "postgresql"
    for _ in range(_ROUNDS):
        outcome = _attempt(connection, asked)
        if outcome is None and shares_transaction:
            outcome = contention.ask(connection, asked.locks())
            if isinstance(outcome, InProgress) and wait:
                outcome = contention.wait(connection, asked.locks(), wait, lambda: _attempt(connection, asked))
                wait = _NO_WAIT
        if outcome is not None:
            return outcome
    return InProgress()


def _attempt(connection: Connection, asked: Asked) -> Outcome | None:
    """Take the key, or read what has it; None: that cannot be seen, or not any more."""
    dialect, parameters = connection.dialect.name, asked.parameters()
    if asked.lease is None and dialect == "postgresql":
        taking, parameters = statements.take_alone(), parameters | asked.locks().to_take()
    else:
        taking = statements.take(dialect)
    taken = connection.execute(taking, parameters).first()
    if taken is not None:
        steps = decode_steps(taken.steps)
        return Fresh(
            asked.scope,
            asked.principal,
            asked.key,
            asked.token,
            taken.expires_at,
            asked.lease,
            steps,
            asked.fingerprint,
        )
    this = {name: parameters[name] for name in ("at_scope", "at_principal", "at_key")}
    found = connection.execute(statements.look_up(dialect), this).first()
    return None if found is None else _tell(found, asked.fingerprint)


def _tell(found: Any, fingerprint: bytes) -> Outcome | None:
    """What a row says to a request; None: its lease has just ended."""
    if found.fingerprint != fingerprint:
        return Mismatch()
    if found.state == "done":
        return Replay(response_of(found), found.expires_at)
    if found.locked_until is None:
        return InProgress()
    after = found.locked_until - found.now
    return InProgress(after) if after > _NO_WAIT else None
