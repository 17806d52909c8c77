"""Engines for trials: with the settings of the test's own engine, and with connections of their own."""

from typing import Any

from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import AsyncAdaptedQueuePool

from outboxkit.errors import ConfigurationError
from outboxkit.runtime import process
from outboxkit.statements.dialects import is_server

CONNECTIONS = 8


def plain_engine(source: Engine | URL, *, begins_immediately: bool) -> Engine:
    """A new engine for handlers that are plain functions."""
    if isinstance(source, Engine):
        engine = _copy_of(source, QueuePool)
    else:
        driver = process.ASYNC_DRIVERS[source.get_backend_name()].removesuffix("+aiosqlite")
        engine = create_engine(source.set(drivername=driver), pool_size=CONNECTIONS)
    if begins_immediately:
        _begin_immediately(engine)
    return engine


def asynchronous_engine(source: AsyncEngine | URL) -> AsyncEngine:
    """A new engine for handlers that are coroutine functions."""
    if isinstance(source, AsyncEngine):
        return AsyncEngine(_copy_of(source.sync_engine, AsyncAdaptedQueuePool))
    text_ = source.render_as_string(hide_password=False)
    return process.engine(text_, name="outboxkit.testing", pool_size=CONNECTIONS)


def engine_of(bound: Any) -> Engine | AsyncEngine:
    """The engine behind an object.

    Raises:
        ConfigurationError: there is none, or the object is in a transaction that other connections cannot see.
    """
    target = bound
    if isinstance(target, sessionmaker | async_sessionmaker):
        target = target.kw.get("bind")
    if isinstance(target, scoped_session | async_scoped_session):
        target = target()
    if isinstance(target, Session | AsyncSession):
        _refuse_unseen(target)
        target = target.bind if target.bind is not None else target.get_bind()
    if isinstance(target, str):
        target = create_engine(target)
    if isinstance(target, Engine | AsyncEngine):
        return target
    if isinstance(target, Connection | AsyncConnection):
        raise ConfigurationError(
            "the session is bound to one connection, and several are needed, which do not see its transaction. "
            "Give an engine=, and commit the rows that the test needs"
        )
    raise ConfigurationError(f"engine is {bound!r}; an Engine, an AsyncEngine, or a session with one is accepted")


def _refuse_unseen(session: Session | AsyncSession) -> None:
    """Refuse a session with rows that no other transaction can see."""
    plain = session.sync_session if isinstance(session, AsyncSession) else session
    unseen = bool(plain.new or plain.dirty or plain.deleted)
    if (
        not unseen
        and plain.in_transaction()
        and isinstance(session, Session)
        and isinstance(session.get_bind(), Engine)
    ):
        connection = session.connection()
        if is_server(connection.dialect.name):
            unseen = connection.execute(text("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")).scalar_one()
        else:
            unseen = bool(getattr(connection.connection.driver_connection, "in_transaction", False))
    if unseen:
        raise ConfigurationError(
            "the session has changes that are not committed, and other connections do not see them: commit it before"
        )


def _copy_of(engine: Engine, pool: Any) -> Engine:
    """The same engine, with its listeners, and with connections of its own."""
    creator = engine.pool._creator  # noqa: SLF001 - it has the arguments of the test's own engine
    connections = pool(creator, pool_size=CONNECTIONS, _dispatch=engine.pool.dispatch, dialect=engine.dialect)
    copy = Engine(connections, engine.dialect, engine.url, hide_parameters=engine.hide_parameters)
    copy.dispatch = copy.dispatch._join(engine.dispatch)  # noqa: SLF001
    return copy.execution_options(**engine.get_execution_options()) if engine.get_execution_options() else copy


def _begin_immediately(engine: Engine) -> None:
    """Let transactions on a file take its lock at their start, as those of a consumer do."""

    @event.listens_for(engine, "connect", insert=True)
    def _settle_in(connection: Any, _: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin", insert=True)
    def _begin(connection: Any) -> None:
        if not connection.connection.driver_connection.in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
