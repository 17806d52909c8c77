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
_RESET = "RESET SESSION AUTHORIZATION; RESET ALL; RESET ROLE"
"""Reset also what RESET ALL leaves: the role."""


@contextmanager
def held(session: Session, connection: Connection, transaction: str | None, text: str) -> Iterator[None]:
    """Lift the guard at the end of the block, or at the COMMIT. A block in another one leaves that to the outer one.

    The transaction's number came with the inbox row; it is None on SQLite, which has no guard.

    Raises:
        TransactionRequired: the block has ended the transaction; with this text.
    """
    root = connection.get_transaction()
    if transaction is None or connection.info.get(_HELD, (None,))[0] is root:
        yield
        return
    connection.info[_HELD] = (root, transaction, text)
    try:
        yield
    except BaseException:
        if not (connection.closed or connection.invalidated):
            connection.info.pop(_HELD, None)
        raise
    if not (session.info.get(AT_COMMIT) and event.contains(connection.engine, "commit", _commit)):
        del connection.info[_HELD]
        with _error_with(text):
            connection.execute(statements.inbox.lift_guard(), {"transaction": transaction})


def lift_at_commit(engine: Engine) -> None:
    """Have this engine lift the guard in the round trip of each COMMIT, if it has outboxkit's own driver."""
    if engine.dialect.driver == "psycopg" and not event.contains(engine, "commit", _commit):
        event.listen(engine, "commit", _commit)


def _commit(connection: Connection) -> None:
    """Commit in one round trip; the driver's own commit, which follows, finds no transaction and does nothing."""
    root, transaction, text = connection.info.pop(_HELD, (None, "", ""))
    if root is None or root is not connection.get_transaction():
        return
    steps = [_lift().replace(":transaction", f"'{transaction}'"), "COMMIT"]
    if (settings := settings_of(connection.engine)) is not None:
        steps += [_RESET, *settings]
    try:
        with _error_with(text):
            connection.exec_driver_sql("; ".join(steps))
    except Exception:
        if not connection.invalidated:  # SQLAlchemy counts the transaction as ended, and would not roll it back
            connection.exec_driver_sql("ROLLBACK")
        raise


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
