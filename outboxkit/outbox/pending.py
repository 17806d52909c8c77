"""Messages between `add` and the flush: kept in the session, written when the business rows have been.

A session knows how to forget what a rollback, a rollback to a savepoint, `expunge_all` or `close` takes back, but only
of objects. So it is given one, `Pending`, which carries any number of messages and is mapped to nothing that could be
inserted. Its flush writes them with Core.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

from sqlalchemy import Connection, event, literal_column, select
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, registry, scoped_session

from outboxkit import statements, transaction
from outboxkit.outbox.drafts import Draft, Row
from outboxkit.tables import outbox

AnySession = Session | scoped_session[Any] | AsyncSession | async_scoped_session[Any]

_WHY = "a rollback would not take the message back"
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 1000, 16 * 1024 * 1024
_KEY = "outboxkit.pending"
_numbers = count(1)


class Pending:
    """Messages that wait for the flush, in their order. A new object to the session, and no row of its own."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.rows: list[Row] = []
        self.strict_keys: set[str] = set()
        self.connection: Connection | None = None
        """What the flush that is under way writes on: looked at before it began."""


# Selected from the outbox, so that `Session(binds={...})` finds its engine; without a column of it, so that the flush
# has nothing to insert.
_nothing = select(literal_column("0").label("number")).select_from(outbox).subquery("pending")
_mapper = registry().map_imperatively(Pending, _nothing, primary_key=[_nothing.c.number])

_INSERT_ONE, _INSERT_MANY = statements.write.insert_one(), statements.write.insert_many()
_LOCK_KEYS = statements.write.lock_keys()


def session_of(session: AnySession) -> Session:
    """The session itself, behind an `AsyncSession` or a scoped one.

    Raises:
        TypeError: it is none of the four kinds.
    """
    match session:
        case Session():
            return session
        case AsyncSession():
            return session.sync_session
        case scoped_session() | async_scoped_session():
            return session_of(session())
    raise TypeError(
        f"outbox.add takes a SQLAlchemy Session, AsyncSession, scoped_session or async_scoped_session; "
        f"found {type(session).__name__}"
    )


def wait_for_flush(session: Session, drafts: list[Draft]) -> None:
    """Hand messages to the session, behind those that it has already.

    Raises:
        TransactionRequired: it is known already that the session's connection will be in autocommit mode.
    """
    _refuse_known_autocommit(session)
    pending: Pending | None = session.info.get(_KEY)
    if pending is None or pending not in session:
        pending = session.info[_KEY] = Pending()
        session.add(pending)
    pending.rows += [draft.row for draft in drafts]
    pending.strict_keys.update(draft.strict_key for draft in drafts if draft.strict_key is not None)


def connection_of(session: Session) -> Connection:
    """The connection on which the session writes to the outbox, in a transaction that can be rolled back.

    Raises:
        TransactionRequired: the connection is in autocommit mode.
    """
    connection = session.connection(bind_arguments={"mapper": _mapper})
    transaction.refuse_autocommit(connection, _WHY)
    return connection


def _refuse_known_autocommit(session: Session) -> None:
    """Refuse at the call what `connection_of` refuses at the flush; a `get_bind` of the user's own is asked there."""
    if type(session).get_bind is not Session.get_bind:
        return
    try:
        bind = session.get_bind(mapper=_mapper)
    except UnboundExecutionError:  # the flush says so
        return
    transaction.refuse_autocommit_engine(bind, _WHY)


@event.listens_for(Session, "before_flush")
def _check(session: Session, *_: object) -> None:
    """Refuse autocommit mode before the flush has written any business row, which a rollback would not take back."""
    pending: Pending | None = session.info.get(_KEY)
    if pending is not None and pending in session:
        pending.connection = connection_of(session)


@event.listens_for(Session, "after_flush")
def _write(session: Session, _: object) -> None:
    """Write what is pending, behind the business rows: their locks come first, and then the positions.

    The flush takes it all back where this fails. What is added from here on waits for the next flush.
    """
    pending: Pending | None = session.info.pop(_KEY, None)
    if pending is None or pending not in session:
        return
    connection = pending.connection or connection_of(session)
    if pending.strict_keys and connection.dialect.name != "sqlite":
        connection.execute(_LOCK_KEYS, {"keys": sorted(pending.strict_keys)})
    for rows in _portions(pending.rows):
        _insert(connection, rows)


def _insert(connection: Connection, rows: list[Row]) -> None:
    """Insert some rows in their order; one with `dedup` among them does not touch the others."""
    unless_there = any(row.dedup for row in rows)
    if len(rows) > 1 and connection.dialect.name != "sqlite":
        statement = statements.write.insert_many_unless_there() if unless_there else _INSERT_MANY
        connection.execute(statement, dict(zip(Row._fields, map(list, zip(*rows, strict=True)), strict=True)))
        return
    one = statements.write.insert_one_unless_there(connection.dialect.name) if unless_there else _INSERT_ONE
    connection.execute(one, [row._asdict() for row in rows])


def _portions(rows: list[Row]) -> Iterator[list[Row]]:
    """Parts of at most a thousand rows, and of a size that a statement can carry."""
    start = size = 0
    for place, row in enumerate(rows):
        if place - start == _ROWS_AT_ONCE or size + len(row.payload) > _BYTES_AT_ONCE > 0 < place - start:
            yield rows[start:place]
            start, size = place, 0
        size += len(row.payload)
    if rows:
        yield rows[start:]
