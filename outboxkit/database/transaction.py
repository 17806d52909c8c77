"""The caller's transaction: required, and guarded against an end that would split work that belongs together."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session, scoped_session

from outboxkit.database.sqlalchemy_asyncio import AsyncSession, async_scoped_session
from outboxkit.errors import TransactionRequired
from outboxkit.errors.sqlstates import NO_END, sqlstate_of
from outboxkit.statements.dialects import has_one_writer

AnySession = Session | scoped_session[Any] | AsyncSession | async_scoped_session[Any]
"""The kinds of sessions that SQLAlchemy has."""

_KEY = "outboxkit.guard"


def session_of(session: AnySession, caller: str, arguments: str | None = None) -> Session:
    """The session itself, behind a scoped one.

    Args:
        session: the user's.
        caller: the function's name, for the text of the error.
        arguments: its other arguments, for the same text. None if it does no I/O, so that it takes an `AsyncSession`,
            too.

    Raises:
        TypeError: it is of another kind; the text says how an `AsyncSession` calls `caller`.
    """
    opened = session() if isinstance(session, scoped_session | async_scoped_session) else session
    if isinstance(opened, Session):
        return opened
    name = type(session).__name__
    if arguments is not None:
        behind = "session()" if isinstance(session, async_scoped_session) else "session"
        passed = ", ".join(filter(None, (caller, arguments)))
        raise TypeError(
            f"{caller} takes a Session, found {name}; with an AsyncSession: await {behind}.run_sync({passed})"
        )
    if isinstance(opened, AsyncSession):
        return opened.sync_session
    raise TypeError(
        f"{caller} takes a SQLAlchemy Session, AsyncSession, scoped_session or async_scoped_session; found {name}"
    )


def connection_of(session: Session, why: str, **bind: Any) -> Connection:
    """The session's connection for a `clause` or a `mapper`, in a transaction that can be rolled back.

    On SQLite a driver in autocommit mode may have executed BEGIN: that is a transaction like any other.

    Raises:
        TransactionRequired: the connection commits its statements one by one; the text goes on with `why`.
    """
    connection = session.connection(bind_arguments=bind)
    if has_one_writer(connection.dialect.name):
        commits = _commits_each_statement(connection.connection.driver_connection)
    else:
        commits = getattr(connection.connection.dbapi_connection, "autocommit", False)
    if commits:
        raise TransactionRequired(f"the connection has isolation level AUTOCOMMIT: {why}. Use an engine without it")
    return connection


def _commits_each_statement(driver_connection: Any) -> bool:
    """Whether a connection of sqlite3 or aiosqlite is in no transaction, and begins none before it writes."""
    commits = getattr(driver_connection, "isolation_level", "") is None
    if getattr(driver_connection, "autocommit", -1) in (True, False):  # Python 3.12: -1 goes by the isolation level
        commits = driver_connection.autocommit
    return commits and not driver_connection.in_transaction


@contextmanager
def forbidden_commit(session: Session, text: str) -> Iterator[None]:
    """Make a commit of the session raise `TransactionRequired` inside the block: the mistake, and the cure."""
    if not isinstance(session, HandlerSession) and not event.contains(session, "before_commit", _refuse_commit):
        event.listen(session, "before_commit", _refuse_commit)
    outer: str | None = session.info.get(_KEY)
    session.info[_KEY] = text
    try:
        yield
    finally:
        session.info[_KEY] = outer


def refuse_end(error: Exception, caller: str) -> None:
    """Give an error of a caller that has handled the transaction itself its cure.

    The error is a trigger's, which has refused a COMMIT, or SQLAlchemy's for a second `begin()`, known by its text.

    Raises:
        TransactionRequired: it is one of them.
    """
    if sqlstate_of(error) == NO_END:
        raise TransactionRequired(
            f"{caller} ended the transaction of its session by a COMMIT, which the database has refused: all of its "
            "work is rolled back. Leave out the COMMIT: its session is committed for it"
        ) from error
    if isinstance(error, InvalidRequestError) and "already begun on this Session" in str(error):
        raise TransactionRequired(
            f"{caller} called begin() of a session that is in a transaction. Its session is in one from the start, and "
            "is committed for it: leave out begin(). session.begin_nested() is there for work that may fail alone"
        ) from error


def _refuse_commit(session: Session) -> None:
    text: str | None = session.info.get(_KEY)
    if text is not None and not session.in_nested_transaction():
        raise TransactionRequired(text)


class HandlerSession(Session):
    """The session of a worker for one transaction of handlers, which it commits right after them."""


event.listen(HandlerSession, "before_commit", _refuse_commit)  # once: to listen to each session costs 25 us
