"""The caller's transaction: required, and guarded against an end that would split work that belongs together.

The guard of a handler's transaction: until it is lifted the database refuses each COMMIT, in whatever words. The insert
of the inbox row sets it, the trigger `outboxkit_guard` refuses. It can be lifted in the transaction of that row alone:
after a ROLLBACK that is an error. A consumer's own connections lift it in the round trip of the COMMIT, and reset there
what a handler has left in its session.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from sqlalchemy import Connection, event, select
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from outboxkit import statements
from outboxkit.database import silence
from outboxkit.database.session_settings import RESET_ALONE, GuardedEnd
from outboxkit.database.sqlalchemy_asyncio import AsyncSession, async_scoped_session
from outboxkit.errors import TransactionRequired
from outboxkit.errors.sqlstates import ABORTED, NO_END, sqlstate_of
from outboxkit.statements.dialects import has_one_writer

AnySession = Session | scoped_session[Any] | AsyncSession | async_scoped_session[Any]
"""The kinds of sessions that SQLAlchemy has."""

_KEY, _GUARDED = "outboxkit.guard", "outboxkit.guarded"
_ENDED, _ABORTED = 0, 3
"""libpq's PQTRANS_IDLE and PQTRANS_INERROR, as psycopg and psycopg2 report them."""


def session_of(session: AnySession, caller: str, arguments: str | None = None) -> Session:
    """The session itself, behind a scoped one.

    Raises:
        TypeError: it is of another kind, or an `AsyncSession`, and `caller` does I/O: the text says how such a session
            calls it with these `arguments`. Without any it does none.
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


def read_committed(session: Session, **bind: Any) -> str:
    """Begin the transaction of a session of ours on the database of a `clause`, and return its dialect's name.

    It reads committed rows, whatever the engine's or the database's default is: a stricter isolation ends transactions
    for rows of others, and then what was done in the outside world would not be recorded. SQLite has one writer.
    """
    name: str = session.get_bind(**bind).dialect.name
    if not has_one_writer(name):
        session.connection(bind_arguments=bind, execution_options={"isolation_level": "READ COMMITTED"})
    return name


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
    """Raise an error with a cure if the caller has tried to begin or to end the transaction itself.

    Args:
        error: that of the attempt: a trigger's, which has refused a COMMIT, or SQLAlchemy's for a second `begin()`.
        caller: the handler or the endpoint, for the text.

    Raises:
        TransactionRequired: the error is one of these two. Any other error is left alone.
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


def _reset_at_end(session: Session, _: SessionTransaction, connection: Connection) -> None:
    """Have what a handler begins, after it has ended the session's transaction, reset the session with its end too."""
    driver: Any = connection.connection.driver_connection
    if session.info.get(_KEY) is not None and hasattr(driver, "ending"):
        driver.ending = driver.ending or RESET_ALONE


# Once: to listen to each session costs 25 us.
event.listen(HandlerSession, "before_commit", _refuse_commit)
event.listen(HandlerSession, "after_begin", _reset_at_end)


@contextmanager
def guarded(session: Session, connection: Connection, handler: str) -> Iterator[None]:
    """Keep the block, a handler's work, from ending the transaction. Errors that the block raises pass unchanged.

    Raises:
        TransactionRequired: it committed, which is prevented, or rolled back. Or the database aborted the transaction
            after an error that the handler caught.
    """
    begun, root, savepoint = session.get_transaction(), connection.get_transaction(), session.get_nested_transaction()
    try:
        with forbidden_commit(session, ended(handler)):
            yield
    except Exception as error:
        if sqlstate_of(error) == NO_END:  # the guard's
            raise TransactionRequired(ended(handler)) from error
        refuse_end(error, f"handler {handler!r}")
        raise
    is_undone = savepoint is not None and not savepoint.is_active
    if is_undone or session.get_transaction() is not begun or connection.get_transaction() is not root:
        raise TransactionRequired(ended(handler))
    status = _status(connection)
    if status == _ENDED:
        raise TransactionRequired(ended(handler))
    if status == _ABORTED:
        raise TransactionRequired(
            f"handler {handler!r} caught a database error and went on, but the database has aborted the "
            "transaction, and its COMMIT would be a rollback. Put statements that may fail into session.begin_nested()"
        )


def has_savepoint(session: Session, connection: Connection, outer: object) -> bool:
    """Whether a savepoint is open that was not there before, when `outer` was the session's."""
    return session.get_nested_transaction() is not outer or (outer is None and connection.in_nested_transaction())


def ended(handler: str) -> str:
    """The text of the error for a handler that ended the transaction."""
    return (
        f"handler {handler!r} ended the transaction that holds its inbox row, by a commit, a rollback, or a flush that "
        "failed. Leave commit and rollback to the caller; session.begin_nested() is there for work that may fail alone"
    )


def _status(connection: Connection) -> int | None:
    """The transaction's status as the driver knows it; None: not known, as on SQLite, which aborts none.

    Asyncpg does not know of an abort, so the server is asked.
    """
    driver_connection: Any = connection.connection.driver_connection
    status: int | None = getattr(getattr(driver_connection, "info", None), "transaction_status", None)
    if status is not None:
        return status
    is_open = getattr(driver_connection, "is_in_transaction", None)
    if is_open is None:
        return None
    if not is_open():
        return _ENDED
    try:
        connection.execute(select(1))
    except DBAPIError as error:
        if sqlstate_of(error) != ABORTED:
            raise
        return _ABORTED
    return None


def first_row(session: Session, connection: Connection, statement: Any, parameters: dict[str, Any]) -> Any:
    """The first row of a statement; None if there is none. A worker's own connection reads it from the driver itself.

    SQLAlchemy's statement contexts and result objects would cost 4 to 9 % more of a consumer's CPU time.
    """
    driver: Any = connection.connection.driver_connection
    if _is_workers(session, driver):
        return driver.first_row(connection, statement, parameters)
    return connection.execute(statement, parameters).first()


def first_of_application(connection: Connection, statement: Any, parameters: dict[str, Any]) -> Any:
    """The first row of a statement on an application's own connection; None if there is none.

    Psycopg is asked itself: through SQLAlchemy a request's two statements take a quarter to a third more CPU time. Not
    if the application listens to its statements, logs them or translates names of schemas: all that is SQLAlchemy's.
    """
    heard, options = connection.dispatch, connection.get_execution_options()
    is_seen = heard.before_cursor_execute or heard.after_cursor_execute or heard.before_execute or heard.after_execute
    is_own = hasattr(connection.connection.driver_connection, "first_row")  # with a listener to errors of outboxkit's
    is_handled = connection.dialect.dispatch.handle_error and not is_own
    is_plain = not (is_seen or is_handled or connection.engine.echo or "schema_translate_map" in options)
    if connection.dialect.driver == "psycopg" and is_plain:
        from outboxkit.database import driver_rows  # noqa: PLC0415 - psycopg, which SQLite does without

        return driver_rows.first(connection, statement, parameters)
    return connection.execute(statement, parameters).first()


def _is_workers(session: Session, driver: Any) -> bool:
    """Whether this is a session of a worker, with a connection of outboxkit's own."""
    return isinstance(session, HandlerSession) and hasattr(driver, "ending")


@contextmanager
def guard_until_end(session: Session, connection: Connection, transaction: str | None, text: str) -> Iterator[None]:
    """Keep the guard until the end of the block, or the COMMIT. A block in another one leaves that to the outer one.

    A worker's connection (`_commit` in `database/connections.py`) sends the lift with its COMMIT. On any other session
    this executes it at the end of the block.

    The transaction's number came with the inbox row; it is None on SQLite, which has no guard.

    Raises:
        TransactionRequired: the block has ended the transaction; with this text.
    """
    root = connection.get_transaction()
    if transaction is None or connection.info.get(_GUARDED) is root:
        yield
        return
    driver: Any = connection.connection.driver_connection
    is_ours = _is_workers(session, driver)
    if is_ours:
        driver.patience = silence.HANDLER_PATIENCE
        driver.ending = driver.ending or RESET_ALONE
    connection.info[_GUARDED] = root
    try:
        yield
    except (Exception, asyncio.CancelledError):
        if is_ours and not (connection.closed or connection.invalidated):  # else the driver's is another one's by now
            driver.ending = RESET_ALONE  # again: a ROLLBACK at the driver has taken it
        raise
    finally:
        if is_ours:
            driver.patience = None
        if not (connection.closed or connection.invalidated):
            del connection.info[_GUARDED]
    if is_ours:
        driver.ending = GuardedEnd(_lift().replace(":transaction", f"'{transaction}'"), _refusal(text))
        return
    try:
        connection.execute(statements.inbox.lift_guard(), {"transaction": transaction})
    except DBAPIError as error:
        raise _refusal(text)(error) from error


def still_in(connection: Connection, transaction: str | None, *, unmarked: str) -> Callable[[], bool]:
    """A function that tells whether the connection is still in the transaction of a batch's inbox rows.

    `ROLLBACK AND CHAIN` ends it, and the driver sees a transaction as before: one that no guard keeps from a COMMIT,
    with what the next handlers of a batch do. But the session has its old name again, which the server has told the
    driver. The server is asked if the driver does not know the name, or if a handler has changed it.

    Args:
        connection: the session's.
        transaction: the number of the transaction; None: there is none on SQLite.
        unmarked: the session's name before the rows were inserted.
    """
    marked = current_session_name(connection)

    def is_same() -> bool:
        if transaction is None or unmarked != marked == current_session_name(connection):
            return True
        return bool(connection.scalar(statements.inbox.is_transaction(), {"transaction": transaction}))

    return is_same


def current_session_name(connection: Connection) -> str:
    """The `application_name`, as psycopg, psycopg2 or asyncpg know it; empty: they do not."""
    driver: Any = connection.connection.driver_connection
    if hasattr(driver, "get_settings"):
        return getattr(driver.get_settings(), "application_name", "")
    ask = getattr(getattr(driver, "info", None), "parameter_status", None)
    return (ask("application_name") or "") if ask is not None else ""


@cache
def _lift() -> str:
    """The statement as SQL: to compile it each time would cost more than to send it."""
    return str(statements.inbox.lift_guard())


@cache
def _refusal(text: str) -> Callable[[Exception], Exception]:
    """Turns the error of a guard that cannot be lifted to one with this text."""

    def refusal(error: Exception) -> Exception:
        is_refused = statements.inbox.ENDED in str(getattr(error, "orig", error))
        return TransactionRequired(text) if is_refused else error

    return refusal
