"""Messages between `add` and the flush: kept in the session, and written after the business rows.

A session forgets objects after a rollback, a rollback to a savepoint, `expunge_all` or `close`, but only objects. So it
gets one, `Pending`, which carries any number of messages and is mapped to a query that has no columns to insert. Its
flush writes them with Core.
"""

import sys
import warnings
import weakref
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any

from sqlalchemy import Connection, event, literal_column, select
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction, registry

from outboxkit import schema, statements, transaction
from outboxkit.outbox.drafts import Draft
from outboxkit.sqlalchemy_asyncio import AsyncSession, async_session
from outboxkit.statements.dialects import has_one_writer, is_server
from outboxkit.statements.write import NAMES
from outboxkit.tables import outbox

_WHY = "a rollback would not take the message back"
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 1000, 16 * 1024 * 1024
_KEY = "outboxkit.pending"
_numbers = count(1)


class Pending:
    """Messages that wait for the flush, in their order. To the session it is a new object; it has no row of its own."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.drafts: list[Draft] = []
        self.strict_keys: set[str] = set()
        self.connection: Connection | None = None
        """The connection of the current flush, set and checked before it writes."""
        self.transaction: Callable[[], SessionTransaction | None] = lambda: None
        """A weak reference to the transaction or savepoint in which it was added."""


# Selected from the outbox, so that `Session(binds={...})` finds its engine; without its columns, so that the flush has
# nothing to insert.
_nothing = select(literal_column("0").label("number")).select_from(outbox).subquery("pending")
_mapper = registry().map_imperatively(Pending, _nothing, primary_key=[_nothing.c.number])

_INSERT_ONE = statements.write.insert_one()
_LOCK_KEYS = statements.write.lock_keys()


def wait_for_flush(session: Session, drafts: list[Draft]) -> None:
    """Hand messages to the session, behind those that it already has.

    Raises:
        TransactionRequired: the session's connection is known to be in autocommit mode.
    """
    _refuse_known_autocommit(session)
    pending: Pending | None = session.info.get(_KEY)
    if pending is None or pending not in session:
        _warn_of_expunged(session)
        pending = session.info[_KEY] = Pending()
        session.add(pending)
        pending.transaction = weakref.ref(session.get_nested_transaction() or session.get_transaction())
        if drafts:
            note_line(session, drafts[0].message.type)
    pending.drafts += drafts
    pending.strict_keys.update(draft.strict_key for draft in drafts if draft.strict_key is not None)


def pending_drafts(session: Session) -> list[Draft]:
    """The messages that the session has not flushed, in their order."""
    pending: Pending | None = session.info.get(_KEY)
    return list(pending.drafts) if pending is not None and pending in session else []


def writing_connection(session: Session) -> Connection:
    """The connection on which the session writes to the outbox, in a transaction that can be rolled back.

    Raises:
        TransactionRequired: the connection is in autocommit mode.
    """
    return transaction.connection_of(session, _WHY, mapper=_mapper)


def _refuse_known_autocommit(session: Session) -> None:
    """Refuse rows at the call that the flush would refuse; a `get_bind` of the user's own is asked there."""
    if type(session).get_bind is not Session.get_bind:
        return
    try:
        bind = session.get_bind(mapper=_mapper)
    except UnboundExecutionError:  # the flush says so
        return
    transaction.refuse_autocommit_engine(bind, _WHY)


@event.listens_for(Session, "before_flush")
def _check(session: Session, *_: object) -> None:
    """Refuse autocommit mode before the flush writes a business row, which no rollback could undo."""
    pending: Pending | None = session.info.get(_KEY)
    if pending is not None and pending in session:
        pending.connection = writing_connection(session)


@event.listens_for(Session, "after_flush")
def _write(session: Session, _: object) -> None:
    """Write the pending messages after the business rows: the locks of those come first, and then the positions.

    If this fails, the flush rolls all of it back. Messages that are added from here on wait for the next flush.
    """
    pending: Pending | None = session.info.pop(_KEY, None)
    if pending is None or pending not in session:
        return
    connection = pending.connection or writing_connection(session)
    if pending.strict_keys and not has_one_writer(connection.dialect.name):
        connection.execute(_LOCK_KEYS, {"keys": sorted(pending.strict_keys)})
    _warn_of_two_databases(session)
    try:
        for drafts in _portions(pending.drafts):
            _insert(connection, drafts)
    except DBAPIError as error:
        if (cure := schema.cure_of(error)) is not None:
            error.add_note(f"outboxkit: the database {cure}")
        raise


@event.listens_for(Session, "before_commit")
def _look_back(session: Session) -> None:
    """Warn of messages that were expunged, and of a second database since the flush."""
    _warn_of_expunged(session)
    if _noted(session) is not None:
        _warn_of_two_databases(session)


def _warn_of_expunged(session: Session) -> None:
    """Warn of messages that have left the session, though their transaction has not been rolled back."""
    pending: Pending | None = session.info.get(_KEY)
    if pending is None or pending in session or (lost_in := pending.transaction()) is None:
        return
    if lost_in in (session.get_nested_transaction(), session.get_transaction()):
        del session.info[_KEY]
        _warn(session, _EXPUNGED.format(pending.drafts[0].message.type if pending.drafts else "a message"))


def _warn_of_two_databases(session: Session) -> None:
    """Warn if the session commits several databases one after the other: the messages are in one of them."""
    transaction = session.get_transaction()
    if transaction is None or session.twophase:
        return
    begun = {connection.engine for connection, *_ in transaction._connections.values()}  # noqa: SLF001 - no event is as cheap
    if len(begun) > 1:
        _warn(session, _TWO_DATABASES)


def _warn(session: Session, text: str) -> None:
    """Warn at the line that added the first message of the transaction, if it was noted."""
    place = _noted(session)
    if place is not None:
        place.warn(text)
    else:
        warnings.warn(text, UncommittedMessages, stacklevel=2)


def _noted(session: Session) -> "_Place | None":
    place: _Place | None = session.info.get(_NOTED)
    return place if place is not None and place.transaction() is session.get_transaction() else None


def _insert(connection: Connection, drafts: list[Draft]) -> None:
    """Insert some rows in their order; one with `dedup` does not affect the others."""
    unless_there, rows = any(draft.dedup for draft in drafts), [draft.row for draft in drafts]
    dialect = connection.dialect.name
    if len(rows) > 1 and is_server(dialect):
        many = statements.write.insert_many_unless_there if unless_there else statements.write.insert_many
        connection.execute(many(dialect), dict(zip(NAMES, map(list, zip(*rows, strict=True)), strict=True)))
        return
    one = statements.write.insert_one_unless_there(dialect) if unless_there else _INSERT_ONE
    connection.execute(one, [dict(zip(NAMES, row, strict=True)) for row in rows])


def _portions(drafts: list[Draft]) -> Iterator[list[Draft]]:
    """Parts of at most a thousand rows, and of a size that one statement can carry."""
    start = size = 0
    for index, draft in enumerate(drafts):
        length = len(draft.message.payload)
        if index - start == _ROWS_AT_ONCE or size + length > _BYTES_AT_ONCE > 0 < index - start:
            yield drafts[start:index]
            start, size = index, 0
        size += length
    if drafts:
        yield drafts[start:]


_NOTED = "outboxkit.uncommitted"
_CLOSED = (
    "{!r} was added to the outbox here, and its session was closed without a commit: it will not be sent. Commit the "
    "session, or roll it back to say that this is meant"
)
_EXPUNGED = (
    "{!r} was added to the outbox, and expunged from its session before it was flushed. It is not sent, though the "
    "session commits. Flush before you expunge, or roll back"
)
_TWO_DATABASES = (
    "messages were added to the outbox of one database in a session that has also begun a transaction in another one. "
    "SQLAlchemy commits one after the other, so that a message may be sent whose rows are rolled back, or the reverse. "
    "Use Session(twophase=True), or a session for each database"
)
_seen: dict[str, dict[Any, Any]] = {}  # for each file, the lines that Python's filter `default` has warned of


class UncommittedMessages(UserWarning):
    """Messages of a session that are not committed, or not together with the session's rows.

    The session was closed without a commit or a rollback, or they were expunged from it, or it has two databases. It
    names the line that added the first of them. The filters of `warnings` turn it off.
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

    def warn(self, text: str | None = None) -> None:
        text = text or _CLOSED.format(self.type)
        seen = _seen.setdefault(self.file, {})
        warnings.warn_explicit(text, UncommittedMessages, self.file, self.line, module=self.module, registry=seen)


def note_line(session: Session, event_type: str) -> None:
    """Note the line that adds the first message of the session's transaction, for the warning at its close.

    In a savepoint nothing is noted, nor on a connection that somebody else may commit or roll back.
    """
    transaction = session.get_transaction()
    if transaction is None or session.in_nested_transaction() or isinstance(session.bind, Connection):
        return
    place: _Place | None = session.info.get(_NOTED)
    if place is not None and place.transaction() is transaction:
        return
    session.info[_NOTED] = _Place(transaction, event_type)
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
    place: _Place | None = session.info.pop(_NOTED, None)
    transaction = session.get_transaction()
    if place is None or transaction is None or place.transaction() is not transaction:
        return None
    return place if transaction.is_active and sys.exc_info()[1] is None else None


async def _warn_when_closed(closing: Awaitable[None], place: _Place) -> None:
    await closing
    place.warn()
