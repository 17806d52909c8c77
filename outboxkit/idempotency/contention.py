"""Contention for a key: its holder on PostgreSQL, and runs in the caller's transaction that are not complete."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction

from outboxkit import transaction
from outboxkit.idempotency.answer import Fresh, InProgress, Mismatch, Outcome
from outboxkit.idempotency.request import Locks
from outboxkit.sqlstates import LOCKED, sqlstate_of
from outboxkit.statements import idempotency as statements
from outboxkit.transaction import Guard

_OF_KEY = 1
_LONGEST_MS = 2**31 - 1


def find_holder(connection: Connection, locks: Locks) -> InProgress | Mismatch | None:
    """The outcome for a key that another transaction holds, for the same request or another one; None: it has ended."""
    return judge_locks(connection.execute(statements.held_locks(), locks.to_find()).all(), locks.part_shown)


def judge_locks(rows: Any, part: int) -> InProgress | Mismatch | None:
    """The verdict on rows of `held_locks`, for the half that stands for this fingerprint.

    A transaction that has the key's lock and shows no fingerprint is a stranger's. To be safe, it counts as busy.
    """
    holders = {row.holder for row in rows if row.subid == _OF_KEY}
    if not holders:
        return None
    parts = {row.part for row in rows if row.subid != _OF_KEY and row.holder in holders}
    return InProgress() if not parts or part in parts else Mismatch()


def wait(
    connection: Connection, locks: Locks, longest: timedelta, attempt: Callable[[], Outcome | None]
) -> Outcome | None:
    """Wait for the holder's end, then `attempt`; None: it did not end in time.

    All of it is in a savepoint, whose rollback restores the transaction's lock_timeout and gives the lock back, even
    after an error of the database. Only a run that begins here keeps the lock.
    """
    savepoint = connection.begin_nested()
    try:
        limit = min(max(round(longest / timedelta(milliseconds=1)), 1), _LONGEST_MS)
        before = connection.execute(statements.limit_wait(), {"limit": f"{limit}ms"}).one()[0]
        connection.execute(statements.wait_for_end(), {"request_lock": locks.request})
        connection.execute(statements.limit_wait(), {"limit": before})
        outcome = attempt()
    except DBAPIError as error:
        savepoint.rollback()
        if sqlstate_of(error) in LOCKED:
            return None
        raise
    if isinstance(outcome, Fresh):
        savepoint.commit()
    else:
        savepoint.rollback()
    return outcome


_KEY = "outboxkit.idempotency"
_COMMITS = "outboxkit.idempotency.commits"


@dataclass(slots=True)
class _Run:
    key: str
    begun_in: SessionTransaction
    completed_in: SessionTransaction | None = None


@dataclass(slots=True)
class _Runs:
    """The runs of one transaction, by their tokens, and the guard that forbade its commit before."""

    root: SessionTransaction
    by_token: dict[str, _Run] = field(default_factory=dict)
    outer: Guard | None = None
    forbidding: bool = False


def leave_commit(session: Session, text: str) -> None:
    """Have a commit before the answer refused with this text, in place of the one for callers of the ledger."""
    session.info[_COMMITS] = text


def began(session: Session, token: str, key: str) -> None:
    """A run has begun in the session's transaction."""
    runs, innermost = _runs(session), _innermost(session)
    if runs is None:
        runs = session.info[_KEY] = _Runs(_root(session))
    runs.by_token[token] = _Run(key, innermost)
    _guard(session, runs)


def is_unfinished(session: Session, token: str) -> bool:
    """Whether the run has begun in the session's transaction, was not rolled back, and has no answer yet."""
    runs = _runs(session)
    run = runs.by_token.get(token) if runs is not None else None
    return run is not None and run.completed_in is None


def completed(session: Session, token: str) -> None:
    """A run has its answer."""
    runs = _runs(session)
    if runs is not None:
        runs.by_token[token].completed_in = _innermost(session)
        _guard(session, runs)


@event.listens_for(Session, "after_soft_rollback")
def _take_back(session: Session, ended: SessionTransaction) -> None:
    """Forget runs that began, and answers that were given, in a transaction or savepoint that was rolled back."""
    runs: _Runs | None = session.info.get(_KEY)
    if runs is None:
        return
    for token, run in list(runs.by_token.items()):
        if _is_within(run.begun_in, ended):
            del runs.by_token[token]
        elif run.completed_in is not None and _is_within(run.completed_in, ended):
            run.completed_in = None
    _guard(session, runs)
    if not runs.by_token:
        del session.info[_KEY]


def _guard(session: Session, runs: _Runs) -> None:
    waiting = [run.key for run in runs.by_token.values() if run.completed_in is None]
    if not waiting:
        if runs.forbidding:
            transaction.allow_commit(session, but=runs.outer)
            runs.forbidding = False
        return
    text: str | None = session.info.get(_COMMITS)
    before = transaction.forbid_commit(
        session,
        text
        or f"the request with idempotency key {waiting[0]!r} has no answer that could be committed with its work: "
        "call idempotency.complete first, or roll back",
    )
    if not runs.forbidding:
        runs.outer, runs.forbidding = before, True


def _runs(session: Session) -> _Runs | None:
    """The runs of the session's present transaction."""
    runs: _Runs | None = session.info.get(_KEY)
    return runs if runs is not None and runs.root is session.get_transaction() else None


def _root(session: Session) -> SessionTransaction:
    root = session.get_transaction()
    if root is None:
        raise RuntimeError("the session has a connection and no transaction")
    return root


def _innermost(session: Session) -> SessionTransaction:
    return session.get_nested_transaction() or _root(session)


def _is_within(inner: SessionTransaction, outer: SessionTransaction) -> bool:
    return any(one is outer for one in _upwards(inner))


def _upwards(inner: SessionTransaction) -> Iterator[SessionTransaction]:
    one: SessionTransaction | None = inner
    while one is not None:
        yield one
        one = one.parent
