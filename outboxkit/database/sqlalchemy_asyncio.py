"""The asyncio side of SQLAlchemy. An application with synchronous sessions does without it, and without greenlet."""

from typing import TYPE_CHECKING, Any

from sqlalchemy.util import await_only as await_  # the name that 2.0 and 2.1 both have
from sqlalchemy.util import greenlet_spawn

__all__ = [
    "AsyncConnection",
    "AsyncEngine",
    "AsyncSession",
    "async_scoped_session",
    "async_session",
    "async_sessionmaker",
    "await_",
    "create_async_engine",
    "greenlet_spawn",
]

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import (
        AsyncConnection,
        AsyncEngine,
        AsyncSession,
        async_scoped_session,
        async_session,
        async_sessionmaker,
        create_async_engine,
    )
else:
    try:
        from sqlalchemy.ext.asyncio import (
            AsyncConnection,
            AsyncEngine,
            AsyncSession,
            async_scoped_session,
            async_session,
            async_sessionmaker,
            create_async_engine,
        )
    except ImportError as error:  # SQLAlchemy 2.1 does not bring greenlet by itself
        _WHY = f"{error}".partition(".")[0]

        class AsyncConnection:
            """A stand-in that no object is an instance of."""

        class AsyncEngine:
            """A stand-in that no object is an instance of."""

        class AsyncSession:
            """A stand-in that no object is an instance of."""

        class _OfSessions:
            def __class_getitem__(cls, _: Any) -> type:
                return cls

        class async_scoped_session(_OfSessions):  # noqa: N801 - SQLAlchemy's name
            """A stand-in that no object is an instance of."""

        class async_sessionmaker(_OfSessions):  # noqa: N801
            """A stand-in that no object is an instance of."""

        def async_session(session: Any) -> None:
            """The async session that a session belongs to: there is none."""

        def create_async_engine(*_: Any, **__: Any) -> Any:
            """Refuse."""
            raise ModuleNotFoundError(_WHY, name="greenlet")
