"""The warning of a forgotten commit: a session is closed, and the messages that were added to it are lost."""

import sys
import warnings
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session, SessionTransaction

from outboxkit.sqlalchemy_asyncio import AsyncSession, async_session

_KEY = "outboxkit.uncommitted"
_seen: dict[str, dict[Any, Any]] = {}  # for each file, the lines that Python's filter `default` has warned of


class UncommittedMessages(UserWarning):
    """A session was closed with messages in a transaction that was neither committed nor rolled back.

    It names the line that added the first of them. The filters of `warnings` turn it off.
    """


class _Place:
    """The line that added the first message of a transaction."""

    def __init__(self, transaction: SessionTransaction, event_type: str) -> None:
        frame = sys._getframe(2)  # noqa: SLF001 - documented, and cheaper than `inspect`
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("outboxkit."):
            frame = frame.f_back
        self.transaction = weakref.ref(transaction)
        self.type = event_type
        self.file, self.line = frame.f_code.co_filename, frame.f_lineno
        self.module = frame.f_globals.get("__name__")

    def warn(self) -> None:
        text = (
            f"{self.type!r} was added to the outbox here, and its session was closed without a commit: it will not be "
            "sent. Commit the session, or roll it back to say that this is meant"
        )
        seen = _seen.setdefault(self.file, {})
        warnings.warn_explicit(text, UncommittedMessages, self.file, self.line, module=self.module, registry=seen)


def note_line(session: Session, event_type: str) -> None:
    """Note the line that adds the first message of the session's transaction, for the warning at its close.

    In a savepoint nothing is noted, nor on a connection that somebody else may commit or roll back.
    """
    transaction = session.get_transaction()
    if transaction is None or session.in_nested_transaction() or isinstance(session.bind, Connection):
        return
    place: _Place | None = session.info.get(_KEY)
    if place is not None and place.transaction() is transaction:
        return
    session.info[_KEY] = _Place(transaction, event_type)
    closed = async_session(session) or session
    if "close" not in vars(closed):
        closed.close = _Close(closed)  # type: ignore[method-assign,assignment]


class _Close:
    """A session's `close`, which looks once more: in the caller's own stack, in which an exception can be seen.

    An event of SQLAlchemy would come too late for that: `async with` closes its session in another task.
    """

    def __init__(self, session: Session | AsyncSession) -> None:
        self._session = session
        self._usual: Callable[[], Awaitable[None] | None] = session.close

    def __call__(self) -> Awaitable[None] | None:
        session = self._session
        if vars(session).get("close") is self:
            del session.close  # a closed session is as it was, and in no reference cycle
        place = _forgotten(session.sync_session if isinstance(session, AsyncSession) else session)
        closing = self._usual()
        if place is None:
            return closing
        if closing is not None:
            return _warn_when_closed(closing, place)
        place.warn()
        return None


def _forgotten(session: Session) -> _Place | None:
    """The place whose transaction is still open, unless an exception is on its way, which ends it for a reason."""
    place: _Place | None = session.info.pop(_KEY, None)
    transaction = session.get_transaction()
    if place is None or transaction is None or place.transaction() is not transaction:
        return None
    return place if transaction.is_active and sys.exc_info()[1] is None else None


async def _warn_when_closed(closing: Awaitable[None], place: _Place) -> None:
    await closing
    place.warn()
