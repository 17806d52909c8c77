"""The transaction that holds an inbox row together with its handler's work: asked for, and guarded."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.orm import Session, scoped_session

from outboxkit import tables, transaction
from outboxkit.errors import TransactionRequired

_ENDED, _ABORTED = 0, 3
"""libpq's PQTRANS_IDLE and PQTRANS_INERROR, which psycopg and psycopg2 pass on."""


def opened(session: Session | scoped_session[Any], caller: str, arguments: str) -> tuple[Session, Connection]:
    """The session itself, and its connection, in a transaction that can be rolled back.

    Raises:
        TransactionRequired: the session is in no transaction, or its connection in autocommit mode.
        TypeError: the session is of another kind.
    """
    session = transaction.session_of(session, f"inbox.{caller}", arguments)
    if not session.in_transaction():
        raise TransactionRequired(
            f"{caller} was called outside a transaction: its inbox row must commit or roll back together with the "
            "handler's work. Call it inside `with session.begin():`"
        )
    why = "the inbox row would stay when the handler fails, and the message would be lost"
    return session, transaction.connection_of(session, tables.inbox, why)


@contextmanager
def guarded(session: Session, connection: Connection, handler: str) -> Iterator[None]:
    """Refuse that the block, a handler's work, ends the transaction; what it raises itself is left alone.

    Raises:
        TransactionRequired: it committed, which is prevented, or rolled back, or the database has given up the
            transaction at an error that the handler caught.
    """
    begun, root = session.get_transaction(), connection.get_transaction()
    outer = transaction.forbid_commit(session, _ended(handler), for_good=True)
    try:
        yield
    finally:
        transaction.allow_commit(session, but=outer)
    if session.get_transaction() is not begun or connection.get_transaction() is not root:
        raise TransactionRequired(_ended(handler))
    status = _status(connection) if connection.dialect.name == "postgresql" else None
    if status == _ENDED:
        raise TransactionRequired(_ended(handler))
    if status == _ABORTED:
        raise TransactionRequired(
            f"handler {handler!r} caught an error of the database and went on, but the database has given up the "
            "transaction, and its COMMIT would be a rollback. Put what may fail into session.begin_nested()"
        )


def _ended(handler: str) -> str:
    return (
        f"handler {handler!r} ended the transaction that holds its inbox row. Leave commit and rollback to the "
        "caller; session.begin_nested() is there for work that may fail alone"
    )


def _status(connection: Connection) -> int | None:
    driver_connection: Any = connection.connection.driver_connection
    status = getattr(getattr(driver_connection, "info", None), "transaction_status", None)
    if status is None:
        connection.execute(select(1))  # a driver that does not tell: the database does, by an error
    return status
