"""The ledger of requests with an idempotency key. An answer is stored together with the request's work.

Without a lease, the session's transaction has the key, and may not commit before the answer is stored.
"""

import logging
import re
import struct
from collections.abc import Mapping
from datetime import UTC, timedelta
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, scoped_session

from outboxkit import defaults, ids, schema, tables
from outboxkit.database import transaction
from outboxkit.errors import ConfigurationError, LeaseLost, TransactionRequired
from outboxkit.http.answer import Fresh, InProgress, Judgement, Mismatch, Replay, Response, columns_of, response_of
from outboxkit.statements import idempotency as statements
from outboxkit.statements.dialects import is_server

__all__ = [
    "Fresh",
    "InProgress",
    "Judgement",
    "Mismatch",
    "Replay",
    "Response",
    "begin",
    "complete",
    "release",
]

REQUESTS_LOGGER = logging.getLogger("outboxkit.http")
"""A standard logger, for what an operator should know of requests."""
LENGTH = 255
"""Characters of a scope, a principal and a key."""

_FINGERPRINT_BYTES = 32
_LONGEST = timedelta(days=36_525)
_ROUNDS = 5
"""Attempts to take a key or to see its holder. Between the two a holder may end, and another begin."""
_UNSIGNED = 0xFFFF_FFFF
_DIGEST = "sha256:"
_UNKEPT = re.compile("[\0\ud800-\udfff]")
_OPEN = "outboxkit.http.open"
"""A key in the `info` of a session: its transaction, and the runs of it that have no answer."""
_REQUEST = "outboxkit.http.request"
"""A key in the `info` of a session: the run of the endpoint that works on it, until it is answered."""
_WHY = "the key would stay when the request fails, and a repetition would be refused"


@schema.explained()
def begin(
    session: Session | scoped_session[Any],
    *,
    scope: str,
    principal: str | None,
    key: str,
    fingerprint: bytes,
    retention: timedelta = defaults.REQUEST_RETENTION,
    lease: timedelta | None = None,
) -> Judgement:
    """Take the key for this request, or return the outcome of the request that has it.

    Without a lease the key belongs to the session's transaction, as the work and the answer do. Until `complete` a
    commit is refused, and a rollback forgets all of it. With a lease the caller commits at once, and works outside of
    any transaction. `Steps` keep finished results, and `complete` fails if another run has taken over.

    Another request under the same key is always a `Mismatch`. On SQLite every call waits until no other transaction
    writes; call it first in the transaction.

    With an `AsyncSession`: `await session.run_sync(ledger.begin, scope=…, principal=…, key=…, fingerprint=…)`.

    Args:
        session: the one of the request's work.
        scope: the operation, such as `POST /orders`; 1 to 255 characters.
        principal: the caller, whose keys are its own; None: the key is shared by all callers.
        key: the idempotency key, 1 to 255 characters.
        fingerprint: 32 bytes that differ for different requests: `request.fingerprint`.
        retention: how long the key is kept, by the database's clock, from now on.
        lease: how long this run has the request to itself, from now or from its last finished step.

    Returns:
        `Fresh`: do the request. `Replay`: it was answered. `InProgress`: another run is busy with it. `Mismatch`: the
        key was used for another request.

    Raises:
        TransactionRequired: the connection is in autocommit mode.
        ConfigurationError: retention or lease has a value that the text does not accept.
        ValueError: scope, principal, key or fingerprint is of another length.
        TypeError: one of them, or the session, is of another kind.
    """
    session = transaction.session_of(session, "ledger.begin", "scope=…, principal=…, key=…, fingerprint=…")
    _check_request(scope, principal, key, fingerprint)
    check_span("retention", retention)
    if lease is not None:
        check_span("lease", lease)
        if lease > retention:
            raise ConfigurationError(f"lease {lease} is longer than retention {retention}")
    connection = transaction.connection_of(session, _WHY, clause=tables.idempotency)
    dialect, this = connection.dialect.name, _row_of(scope, principal, key)
    locks = _locks_of(this, fingerprint) if lease is None and is_server(dialect) else {}
    taking = statements.take_alone(dialect) if locks else statements.take_key(dialect)
    token = ids.new()
    run = this | {"asked": fingerprint, "token_now": token, "retention": retention, "lease": lease} | locks
    for _ in range(_ROUNDS):
        if (taken := transaction.first_of_application(connection, taking, run)) is not None:
            expires_at, steps = taken
            fresh = Fresh(scope, principal, key, token, expires_at.astimezone(UTC), lease, steps, fingerprint)
            if lease is None:
                _note_open(session, fresh)
            return fresh
        row = connection.execute(statements.look_up(dialect), this).first()
        outcome = _judge_row(row, fingerprint) if row is not None else _find_holder(connection, locks)
        if outcome is not None:
            if isinstance(outcome, Mismatch):
                REQUESTS_LOGGER.warning(
                    "idempotency key %r of %s was used for another request: refused", key[:80], scope
                )
            return outcome
    return InProgress()


def begin_request(session: Session, **question: Any) -> Judgement:
    """`begin` for an endpoint, whose session is committed with its answer alone, also after a rollback of its own."""
    outcome = begin(session, **question)
    if isinstance(outcome, Fresh) and outcome.lease is None:
        session.info[_REQUEST] = outcome
    return outcome


def roll_back(session: Session) -> None:
    """Roll back the work of an endpoint. Its session belongs to no request any more."""
    session.info.pop(_REQUEST, None)
    session.rollback()


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
    session = transaction.session_of(session, "ledger.complete", "fresh, response")
    columns = columns_of(response)
    connection = transaction.connection_of(session, _WHY, clause=tables.idempotency)
    if fresh.lease is not None:
        write_fenced(connection, fresh, statements.record_answer(), columns)
        return
    runs = _open_runs(session)
    if fresh not in runs or not _write(connection, fresh, statements.record_answer(), columns):
        raise TransactionRequired(
            f"the request with idempotency key {fresh.key!r} is not open in this transaction: it began in another one, "
            "was rolled back, or has its answer. Nothing was stored; begin again"
        )
    session.info.pop(_REQUEST, None)
    if not session.in_nested_transaction():  # a savepoint may take the answer back
        runs.remove(fresh)


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
    session = transaction.session_of(session, "ledger.release", "fresh")
    if fresh.lease is None:
        raise ConfigurationError("release is for runs with a lease; this one ends with its transaction: roll back")
    connection = transaction.connection_of(session, _WHY, clause=tables.idempotency)
    dialect = connection.dialect.name
    write_fenced(connection, fresh, statements.forget_key() if forget else statements.end_key_lease(dialect), {})


def write_fenced(connection: Connection, fresh: Fresh, statement: Any, values: dict[str, Any]) -> None:
    """Execute a statement of a run with a lease, which is fenced by the run's token.

    Raises:
        LeaseLost: the row is not the run's any more; the text says why.
    """
    if _write(connection, fresh, statement, values):
        return
    row = connection.execute(statements.look_up(connection.dialect.name), _row_of_run(fresh)).first()
    why = "this run has its answer" if row and row.token == fresh.token else "another run has taken over"
    if row is None:
        why = "the key is not there: it has expired or was forgotten, or its begin was not committed"
    raise LeaseLost(f"idempotency key {fresh.key!r}: {why}. Nothing was stored; roll back")


def _note_open(session: Session, fresh: Fresh) -> None:
    """Have the session refuse to commit before this run has its answer. Only sessions that have runs are listened to.

    On PostgreSQL the trigger `outboxkit_answered` refuses a COMMIT in whatever words; this one says it before.
    """
    if not event.contains(session, "before_commit", _refuse_commit):
        event.listen(session, "before_commit", _refuse_commit)
    session.info[_OPEN] = session.get_transaction(), [*_open_runs(session), fresh]


def _open_runs(session: Session) -> list[Fresh]:
    """The runs without a lease of the session's transaction, without those that were answered outside of savepoints."""
    begun, runs = session.info.get(_OPEN, (None, []))
    return runs if begun is session.get_transaction() else []


def _refuse_commit(session: Session) -> None:
    """Refuse the commit if a run has no answer. Savepoints may have taken back a run or its answer: the table tells."""
    if session.in_nested_transaction():
        return
    runs, request = _open_runs(session), session.info.get(_REQUEST)
    if request is not None and request not in runs:
        raise TransactionRequired(
            f"the endpoint has rolled back the transaction that holds idempotency key {request.key!r}, and a commit "
            "now would have no answer. Let the error out, or return without a commit. session.begin_nested() is there "
            "for work that may fail alone"
        )
    for fresh in runs:
        connection = transaction.connection_of(session, _WHY, clause=tables.idempotency)
        row = connection.execute(statements.look_up(connection.dialect.name), _row_of_run(fresh)).first()
        if row is not None and row.token == fresh.token and row.state != "done":
            raise TransactionRequired(
                f"the request with idempotency key {fresh.key!r} has no answer that could be committed with its work. "
                "In an endpoint leave out the commit: its integration commits work and answer together. In your own "
                "code call ledger.complete first, or roll back"
            )


def _write(connection: Connection, fresh: Fresh, statement: Any, values: dict[str, Any]) -> bool:
    """Execute a statement of this run; whether the run still has the key, and no answer."""
    run = _row_of_run(fresh) | {"at_token": fresh.token} | values
    return transaction.first_of_application(connection, statement, run) is not None


def _judge_row(row: Any, fingerprint: bytes) -> Judgement | None:
    """The outcome for a request whose key has a row; None: the row's lease has just ended."""
    if row.fingerprint != fingerprint:
        return Mismatch()
    if row.state == "done":
        return Replay(response_of(row), row.expires_at)
    if row.locked_until is None:
        return InProgress()
    after = row.locked_until - row.now
    return InProgress(after) if after > timedelta(0) else None


def _find_holder(connection: Connection, locks: Mapping[str, int]) -> InProgress | Mismatch | None:
    """The outcome for a key that another transaction holds, for the same request or another one; None: it has ended.

    `pg_locks` shows the halves of a lock unsigned.
    """
    if not locks:
        return None
    finding = {"request_lock": locks["request_lock"], "request_part": locks["request_part"] & _UNSIGNED}
    rows = connection.execute(statements.held_locks(), finding).all()
    return judge_locks(rows, locks["asked_part"] & _UNSIGNED)


def judge_locks(rows: Any, part: int) -> InProgress | Mismatch | None:
    """The outcome by the rows of `held_locks`, for the half of a lock that stands for this fingerprint.

    A lock without a fingerprint is not ours (a hash collision); the key counts as busy.
    """
    holders = {row.holder for row in rows if row.subid == 1}
    if not holders:
        return None
    parts = {row.part for row in rows if row.subid != 1 and row.holder in holders}
    return InProgress() if not parts or part in parts else Mismatch()


def _row_of(scope: str, principal: str | None, key: str) -> dict[str, str]:
    """The key of the row, as parameters.

    A principal that is too long is replaced by its digest, and so is one that looks like a digest.
    """
    stored = principal or ""
    if len(stored) > LENGTH or stored.startswith(_DIGEST):
        stored = _DIGEST + sha256(stored.encode()).hexdigest()
    return {"at_scope": scope, "at_principal": stored, "at_key": key}


def _row_of_run(fresh: Fresh) -> dict[str, str]:
    return _row_of(fresh.scope, fresh.principal, fresh.key)


def _locks_of(row: Mapping[str, str], fingerprint: bytes) -> dict[str, int]:
    """The numbers of the advisory locks: the key's, and a pair for the key and the fingerprint.

    They are hashes. A request that shares one by chance waits, or is refused as in progress.
    """
    texts = [row[name].encode() for name in ("at_scope", "at_principal", "at_key")]
    framed = b"".join(struct.pack(">I", len(text)) + text for text in texts)
    request, part = struct.unpack(">qi", sha256(b"outboxkit idempotency" + framed).digest()[:12])
    return {"request_lock": request, "request_part": part, "asked_part": struct.unpack(">i", fingerprint[:4])[0]}


def _check_request(scope: str, principal: str | None, key: str, fingerprint: bytes) -> None:
    check_text("scope", scope, LENGTH)
    check_text("key", key, LENGTH)
    if principal is not None:
        check_text("principal", principal, None)
    if not isinstance(fingerprint, bytes) or len(fingerprint) != _FINGERPRINT_BYTES:
        raise ValueError(f"fingerprint is {fingerprint!r}; {_FINGERPRINT_BYTES} bytes are accepted")


def check_text(name: str, value: object, limit: int | None) -> None:
    """Refuse what is not text that both databases can hold, of at most `limit` characters."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}; a str is accepted")
    if not value or (limit is not None and len(value) > limit):
        accepted = f"1 to {limit}" if limit is not None else "at least 1"
        raise ValueError(f"{name} has {len(value)} characters; {accepted} are accepted")
    if _UNKEPT.search(value):
        raise ValueError(f"{name} {value!r} holds a NUL or a lone surrogate, which no database keeps")


def check_span(name: str, value: object) -> None:
    """Refuse what is not a duration that can be added to a time."""
    if not isinstance(value, timedelta) or not timedelta(milliseconds=1) <= value <= _LONGEST:
        raise ConfigurationError(f"{name} is {value!r}; a timedelta of a millisecond to a hundred years is accepted")
