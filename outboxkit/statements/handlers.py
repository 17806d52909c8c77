"""The handlers that consumers have registered, by queue."""

from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    Delete,
    Insert,
    Select,
    Update,
    bindparam,
    delete,
    exists,
    func,
    literal_column,
    select,
    update,
)

from outboxkit.statements.dialects import insert_into
from outboxkit.tables import handler, inbox

SEEN = timedelta(days=1)
"""The time for which other queues know a queue's handler after it was seen; a queue may have been renamed."""

NEVER = datetime(1970, 1, 1, tzinfo=UTC)

_NOW = func.current_timestamp()

_NOTED = ("function", "types", "retention")

_KNOWN = tuple(
    handler.c[name] for name in ("queue", "handler", "function", "types", "first_seen", "last_seen", "retention")
)


@cache
def register_handlers(dialect: str) -> Insert:
    """Note that a queue's consumer has a handler, now.

    Parameters: handler, queue, function, types, retention; or a list of them. It must be in the order of the names, so
    that consumers that write the same rows do not deadlock. Index: the primary key. Locks: the row.
    """
    row = {name: bindparam(name, type_=handler.c[name].type) for name in ("handler", "queue", *_NOTED)}
    upsert: Insert = (
        insert_into(dialect, handler)
        .values(row | {"last_seen": _NOW})
        .on_conflict_do_update(
            index_elements=list(handler.primary_key),
            set_={name: row[name] for name in _NOTED} | {"last_seen": _NOW},
        )
    )
    return upsert


def retire_handlers(names: list[str]) -> Update:
    """Say that a queue's consumer is no longer seen with any handler but these.

    Parameters: of_queue. Index: none, the table has a row for each queue and handler. Locks: the rows.
    """
    gone = (handler.c.queue == bindparam("of_queue"), handler.c.handler.not_in(names), handler.c.last_seen > NEVER)
    return update(handler).where(*gone).values(last_seen=NEVER)


def of_all_handlers() -> Select[Any]:
    """The handlers of all queues.

    Index: none, the table has a row for each queue and handler. Locks: none.
    """
    return select(*_KNOWN).order_by(handler.c.queue, handler.c.handler)


def of_all_retentions(seen_since: datetime) -> Select[Any]:
    """The queues whose consumers were seen lately, and the retention in seconds that each counts on, if it is known.

    Index: none, the table has a row for each queue and handler. Locks: none.
    """
    known = (handler.c.last_seen >= seen_since, handler.c.retention.is_not(None))
    longest = func.max(handler.c.retention).label("retention")
    return select(handler.c.queue, longest).where(*known).group_by(handler.c.queue).order_by(handler.c.queue)


def of_several_queues(seen_since: datetime) -> Select[Any]:
    """The handlers of names that more than one queue's consumers have.

    Index: none, the table has a row for each queue and handler. Locks: none.
    """
    seen = handler.c.last_seen >= seen_since
    several = (
        select(handler.c.handler).where(seen).group_by(handler.c.handler).having(func.count() > literal_column("1"))
    )
    return select(*_KNOWN).where(seen, handler.c.handler.in_(several)).order_by(handler.c.handler, handler.c.queue)


def has_handled() -> Select[bool]:
    """Whether the inbox has a message of a handler.

    Parameters: handler. Index: the primary key, of each partition until the first row. Locks: none.
    """
    return select(exists().where(inbox.c.handler == bindparam("handler")))


def forget_handlers(names: list[str]) -> Delete:
    """Forget these handlers of a queue.

    Parameters: of_queue. Index: the primary key. Locks: the rows that it deletes.
    """
    return delete(handler).where(handler.c.queue == bindparam("of_queue"), handler.c.handler.in_(names))


def of_all_queues() -> Select[Any]:
    """The queues whose consumers have registered handlers, and when each was last seen.

    Index: none, the table has a row for each queue and handler. Locks: none.
    """
    last = func.max(handler.c.last_seen).label("last_seen")
    return select(handler.c.queue, last).group_by(handler.c.queue).order_by(handler.c.queue)
