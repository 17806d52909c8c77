"""One call of a handler, sync or async: limited by its timeout, in a transaction that it cannot end."""

import asyncio
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from outboxkit import tables
from outboxkit.database import silence, transaction
from outboxkit.database.sqlalchemy_asyncio import await_
from outboxkit.errors import TransactionRequired
from outboxkit.errors.sqlstates import ABORTED, NO_END, sqlstate_of
from outboxkit.inbox.handlers import Handler
from outboxkit.inbox.invoke import invoke
from outboxkit.message import Message, Origin, handling
from outboxkit.statements.dialects import has_one_writer, is_server

_ENDED, _ABORTED = 0, 3
"""libpq's PQTRANS_IDLE and PQTRANS_INERROR, as psycopg and psycopg2 report them."""


def opened(session: Session | scoped_session[Any], caller: str, arguments: str) -> tuple[Session, Connection]:
    """The session itself and its connection, in a transaction that can be rolled back.

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
    return session, transaction.connection_of(session, why, clause=tables.inbox)


@contextmanager
def guarded(session: Session, connection: Connection, handler: str) -> Iterator[None]:
    """Keep the block, a handler's work, from ending the transaction. Errors that the block raises pass unchanged.

    Raises:
        TransactionRequired: it committed, which is prevented, or rolled back. Or the database aborted the transaction
            after an error that the handler caught.
    """
    begun, root = session.get_transaction(), connection.get_transaction()
    try:
        with transaction.forbidden_commit(session, ended(handler)):
            yield
    except Exception as error:
        if sqlstate_of(error) == NO_END:  # the guard's
            raise TransactionRequired(ended(handler)) from error
        transaction.refuse_second_begin(error, f"handler {handler!r}")
        raise
    if session.get_transaction() is not begun or connection.get_transaction() is not root:
        raise TransactionRequired(ended(handler))
    status = _status(connection) if is_server(connection.dialect.name) else None
    if status == _ENDED:
        raise TransactionRequired(ended(handler))
    if status == _ABORTED:
        raise TransactionRequired(
            f"handler {handler!r} caught a database error and went on, but the database has aborted the "
            "transaction, and its COMMIT would be a rollback. Put statements that may fail into session.begin_nested()"
        )


def ended(handler: str) -> str:
    """The text of the error for a handler that ended the transaction."""
    return (
        f"handler {handler!r} ended the transaction that holds its inbox row, by a commit, a rollback, or a flush that "
        "failed. Leave commit and rollback to the caller; session.begin_nested() is there for work that may fail alone"
    )


def _status(connection: Connection) -> int | None:
    """The transaction's status as the driver knows it. Asyncpg does not know of an abort, so the server is asked."""
    driver_connection: Any = connection.connection.driver_connection
    status: int | None = getattr(getattr(driver_connection, "info", None), "transaction_status", None)
    if status is not None:
        return status
    is_open = getattr(driver_connection, "is_in_transaction", None)
    if is_open is not None and not is_open():
        return _ENDED
    try:
        connection.execute(select(1))
    except DBAPIError as error:
        if sqlstate_of(error) != ABORTED:
            raise
        return _ABORTED
    return None


LONG = 0.1
"""Seconds: from here on a handler's duration is recorded. For quicker ones it is not worth a round trip."""
LIMIT = "outboxkit.limit"
"""A key in the `info` of a session of a thread: the function that stands for `_limited`."""


def call(
    handler: Handler,
    session: Session,
    connection: Connection,
    event: object,
    message: Message,
    *,
    attempt: int,
    installation: str,
    flush: bool,
) -> int | None:
    """Run the handler for attempt `attempt` of `message`, and flush the session if `flush` is set.

    Messages that it adds have ids that follow from `message`, its own name and the `installation` of the tables.

    Returns:
        The handler's duration in milliseconds; None if it was shorter than `LONG`.

    Raises:
        TimeoutError: it took longer than its timeout.
        TransactionRequired: it ended the transaction.
        ConfigurationError: it is async and the session is not. Or it is sync and returned an awaitable.
    """
    started = perf_counter()
    file = (connection.engine.url.database or ":memory:") if has_one_writer(connection.dialect.name) else None
    with (
        handling(message, handler=handler.name, database=file, origin=Origin(session, installation)),
        guarded(session, connection, handler.name),
        session.info.get(LIMIT, _limited)(handler, connection),
        silence.lent(connection.connection.driver_connection),
    ):
        invoke(handler, session, event, message, attempt)
        if flush:
            session.flush()
    seconds = perf_counter() - started
    return round(seconds * 1000) if seconds >= LONG else None


@contextmanager
def _limited(handler: Handler, connection: Connection) -> Iterator[None]:
    """Cancel the block after the handler's timeout: its current await gets a CancelledError, and this raises.

    In an asynchronous session it also limits a plain `def`: its database calls are awaits of the same task.
    """
    task = asyncio.current_task() if handler.timeout and connection.dialect.is_async else None
    if task is None or handler.timeout is None:
        yield
        return
    seconds = handler.timeout.total_seconds()
    text = f"handler {handler.name!r} took longer than {seconds:g} s and was cancelled"
    before = task.cancelling()
    deadline = asyncio.timeout(seconds)
    await_(deadline.__aenter__())
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:
        with suppress(TimeoutError):
            await_(deadline.__aexit__(type(error), error, error.__traceback__))
        # A cancellation from elsewhere, such as a stop, is not the handler's fault and is raised unchanged.
        if deadline.expired() and task.cancelling() <= before:
            if has_one_writer(connection.dialect.name):
                # These frames keep the cursor alive, and with it the statement that holds the write lock.
                traceback.clear_frames(error.__traceback__)
            raise TimeoutError(text) from error
        raise
    await_(deadline.__aexit__(None, None, None))
    if deadline.expired():
        raise TimeoutError(text)
