"""The transaction that holds an inbox row together with its handler's work: asked for, and guarded."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, event, select
from sqlalchemy.orm import Session, scoped_session

from outboxkit import tables
from outboxkit.errors import TransactionRequired

_KEY = "outboxkit.handler"
_ABORTED = 3
"""libpq's PQTRANS_INERROR, which psycopg and psycopg2 pass on."""


def opened(session: Session | scoped_session[Any], caller: str, arguments: str) -> tuple[Session, Connection]:
    """The session itself, and its connection, in a transaction that can be rolled back.

    Raises:
        TransactionRequired: the session is in no transaction, or its connection in autocommit mode.
        TypeError: the session is of another kind.
    """
    session = session() if isinstance(session, scoped_session) else session
    if not isinstance(session, Session):
        raise TypeError(
            f"{caller} takes a Session, found {type(session).__name__}; "
            f"with an AsyncSession: await session.run_sync(inbox.{caller}, {arguments})"
        )
    if not session.in_transaction():
        raise TransactionRequired(
            f"{caller} was called outside a transaction: its inbox row must commit or roll back together with the "
            "handler's work. Call it inside `with session.begin():`"
        )
    connection = session.connection(bind_arguments={"clause": tables.inbox})
    if connection.dialect.name == "sqlite":  # a driver in autocommit mode is how SQLAlchemy users get real transactions
        return session, connection
    driver_connection = connection.connection.dbapi_connection
    if driver_connection is not None and connection.dialect.detect_autocommit_setting(driver_connection):
        raise TransactionRequired(
            f"{caller} was called on a connection with isolation level AUTOCOMMIT: the inbox row would stay when the "
            "handler fails, and the message would be lost. Use an engine without it"
        )
    return session, connection


@contextmanager
def guarded(session: Session, connection: Connection, handler: str) -> Iterator[None]:
    """Refuse that the block, a handler's work, ends the transaction; what it raises itself is left alone.

    Raises:
        TransactionRequired: it committed, which is prevented, or rolled back, or the database has given up the
            transaction at an error that the handler caught.
    """
    transaction, root = session.get_transaction(), connection.get_transaction()
    outer = session.info.get(_KEY)
    session.info[_KEY] = handler
    try:
        yield
    finally:
        session.info[_KEY] = outer
    if session.get_transaction() is not transaction or connection.get_transaction() is not root:
        raise _ended(handler)
    if connection.dialect.name == "postgresql" and _is_aborted(connection):
        raise TransactionRequired(
            f"handler {handler!r} caught an error of the database and went on, but the database has given up the "
            "transaction, and its COMMIT would be a rollback. Put what may fail into session.begin_nested()"
        )


@event.listens_for(Session, "before_commit")
def _refuse_commit(session: Session) -> None:
    """A commit in a handler would keep inbox rows whose handlers have not run, or not to their end."""
    handler = session.info.get(_KEY)
    if handler is not None and not session.in_nested_transaction():
        raise _ended(handler)


def _ended(handler: str) -> TransactionRequired:
    return TransactionRequired(
        f"handler {handler!r} ended the transaction that holds its inbox row. Leave commit and rollback to the "
        "caller; session.begin_nested() is there for work that may fail alone"
    )


def _is_aborted(connection: Connection) -> bool:
    driver_connection: Any = connection.connection.driver_connection
    status = getattr(getattr(driver_connection, "info", None), "transaction_status", None)
    if status is None:
        connection.execute(select(1))  # a driver that does not tell: the database does, by an error
    return status == _ABORTED
