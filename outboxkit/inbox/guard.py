"""The guard of a handler's transaction: until it is lifted the database refuses each COMMIT, in whatever words.

The insert of the inbox row sets it, the trigger `outboxkit_guard` refuses. It can be lifted in the transaction of that
row alone: after a ROLLBACK that is an error. A consumer lifts it in the round trip of its COMMIT, and resets there what
a handler has left in its session.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from outboxkit import statements
from outboxkit.errors import TransactionRequired
from outboxkit.session_settings import settings_of

AT_COMMIT = "outboxkit.at_commit"
"""A key in the `info` of a session that commits right after the handlers: the guard need not be lifted before."""
_HELD = "outboxkit.held"
_FAILED = (None, "", "")
_RESET = (
    "RESET SESSION AUTHORIZATION",
    "RESET ALL",
    "RESET ROLE",  # which RESET ALL leaves
    "DISCARD TEMP",
)
"""Like DISCARD ALL, but for prepared statements, which the driver knows of."""


@contextmanager
def held(session: Session, connection: Connection, transaction: str | None, text: str) -> Iterator[None]:
    """Lift the guard at the end of the block, or at the COMMIT. A block in another one leaves that to the outer one.

    The transaction's number came with the inbox row; it is None on SQLite, which has no guard.

    Raises:
        TransactionRequired: the block has ended the transaction; with this text.
    """
    root = connection.get_transaction()
    if transaction is None or connection.info.get(_HELD, _FAILED)[0] is root:
        yield
        return
    connection.info[_HELD] = (root, transaction, text)
    try:
        yield
    except BaseException:
        if not (connection.closed or connection.invalidated):
            connection.info[_HELD] = _FAILED
        raise
    if not (session.info.get(AT_COMMIT) and event.contains(connection.engine, "commit", _commit)):
        del connection.info[_HELD]
        with _error_with(text):
            connection.execute(statements.inbox.lift_guard(), {"transaction": transaction})


def lift_at_commit(engine: Engine) -> None:
    """Have this engine lift the guard in the round trip of each COMMIT, if it has outboxkit's own driver.

    If it is an engine of outboxkit's own, the session is reset in the round trip of a handler's COMMIT or ROLLBACK.
    """
    if engine.dialect.driver == "psycopg" and not event.contains(engine, "commit", _commit):
        event.listen(engine, "commit", _commit)
        event.listen(engine, "rollback", _roll_back)


def _commit(connection: Connection) -> None:
    """Commit in one round trip; the driver's own commit, which follows, finds no transaction and does nothing."""
    root, transaction, text = connection.info.pop(_HELD, _FAILED)
    if root is None or root is not connection.get_transaction():
        return
    try:
        with _error_with(text):
            _send(connection, _lift().replace(":transaction", f"'{transaction}'"), "COMMIT")
    except Exception:
        if not connection.invalidated:  # SQLAlchemy counts the transaction as ended, and would not roll it back
            _send(connection, "ROLLBACK")
        raise


def _roll_back(connection: Connection) -> None:
    """Reset the session also when a handler has failed: its advisory locks outlive a ROLLBACK."""
    if not connection.invalidated and connection.info.pop(_HELD, None) is not None:
        _send(connection, "ROLLBACK")


def _send(connection: Connection, *statements: str) -> None:
    settings = settings_of(connection.engine)
    reset = () if settings is None else (*_RESET, f"SELECT {', '.join(('pg_advisory_unlock_all()', *settings))}")
    connection.exec_driver_sql("; ".join((*statements, *reset)))


@cache
def _lift() -> str:
    """The statement as SQL: to compile it each time would cost more than to send it."""
    return str(statements.inbox.lift_guard())


@contextmanager
def _error_with(text: str) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if statements.inbox.ENDED in str(error.orig):
            raise TransactionRequired(text) from error
        raise
