"""Messages between `add` and the flush: kept in the session, and written after the business rows.

A session forgets objects after a rollback, a rollback to a savepoint, `expunge_all` or `close`, but only objects. So it
gets one, `Pending`, which carries any number of messages and is mapped to a query that has no columns to insert. Its
flush writes them with Core. Only sessions that messages are added to are listened to.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

from sqlalchemy import Connection, event, literal_column, select
from sqlalchemy.orm import Session, object_session, registry

from outboxkit import schema, statements
from outboxkit.database import transaction
from outboxkit.message import Message
from outboxkit.statements.dialects import has_one_writer
from outboxkit.tables import outbox

_WHY = "a rollback would not take the message back"
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 1000, 16 * 1024 * 1024
_KEY = "outboxkit.pending"
_numbers = count(1)


class Draft(NamedTuple):
    """A message, its new row, and the key whose writers wait for each other, if the event has `strict_order`."""

    message: Message
    row: dict[str, Any]
    strict_key: str | None


class Pending:
    """Messages that wait for the flush, in their order. To the session it is a new object; it has no row of its own."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.drafts: list[Draft] = []
        self.strict_keys: set[str] = set()
        self.connection: Connection | None = None
        """The connection of the current flush, set and checked before it writes."""


# Selected from the outbox, so that `Session(binds={...})` finds its engine; without its columns, so that the flush has
# nothing to insert.
_nothing = select(literal_column("0").label("number")).select_from(outbox).subquery("pending")
_mapper = registry().map_imperatively(Pending, _nothing, primary_key=[_nothing.c.number])

_LOCK_KEYS = statements.write.lock_keys()


def keep_until_flush(session: Session, drafts: list[Draft]) -> None:
    """Hand messages to the session, behind those that it already has.

    `_refuse_autocommit` runs before the flush, `_write_after` in it, and `_write`, which inserts the rows, at its end.
    """
    pending: Pending | None = session.info.get(_KEY)
    if pending is None or pending not in session:
        pending = session.info[_KEY] = Pending()
        session.add(pending)
        if not session._flushing and not event.contains(session, "before_flush", _refuse_autocommit):  # noqa: SLF001 - as its documentation does
            event.listen(session, "before_flush", _refuse_autocommit)
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


def _refuse_autocommit(session: Session, *_: object) -> None:
    """Refuse autocommit mode before the flush writes a business row, which no rollback could undo."""
    pending: Pending | None = session.info.get(_KEY)
    if pending is not None and pending in session:
        pending.connection = writing_connection(session)


@event.listens_for(Pending, "before_insert")
def _write_after(_mapper: object, _connection: Connection, pending: Pending) -> None:
    """Have the flush that has come to `pending` write it at its end: it asks the session's listeners only then."""
    session = object_session(pending)
    if session is not None and not event.contains(session, "after_flush", _write):
        event.listen(session, "after_flush", _write)


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
    with schema.explained():
        for drafts in _portions(pending.drafts):
            _insert(connection, drafts)


def _insert(connection: Connection, drafts: list[Draft]) -> None:
    """Insert some rows in their order; one with `dedup` does not affect the others."""
    unless_there, rows = any(draft.row["dedup"] for draft in drafts), [draft.row for draft in drafts]
    connection.execute(*statements.write.insert_rows(connection.dialect.name, rows, unless_there=unless_there))


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
