"""Which queue's consumer has a handler of which name: written down by consumers, compared by them and by `status`."""

from datetime import UTC, datetime, timedelta
from functools import cache

from sqlalchemy import Delete, Insert, Select, Update, bindparam, delete, func, literal_column, select, update

from outboxkit.statements.conflicts import insert_into
from outboxkit.tables import handler

SEEN = timedelta(days=1)
"""For so long after a consumer was seen with a handler, other queues are told of it; a queue may have been renamed."""
NEVER = datetime(1970, 1, 1, tzinfo=UTC)
_NOW = func.current_timestamp()


@cache
def register(dialect: str) -> Insert:
    """Note that a queue's consumer has a handler, now.

    Parameters: handler, queue, function; or a list of them, which must be in the order of the names, so that two who
    write the same do not wait for each other. Index: the primary key. Locks: the row.
    """
    row = {name: bindparam(name, type_=handler.c[name].type) for name in ("handler", "queue", "function")}
    made: Insert = (
        insert_into(dialect, handler)
        .values(row | {"last_seen": _NOW})
        .on_conflict_do_update(
            index_elements=list(handler.primary_key), set_={"function": row["function"], "last_seen": _NOW}
        )
    )
    return made


def release(names: list[str]) -> Update:
    """Say that a queue's consumer is no longer seen with any handler but these.

    Parameters: of_queue. Index: none, the table has a row for each queue and handler. Locks: the rows.
    """
    gone = (handler.c.queue == bindparam("of_queue"), handler.c.handler.not_in(names), handler.c.last_seen > NEVER)
    return update(handler).where(*gone).values(last_seen=NEVER)


def of_other_queues(names: list[str], seen_since: datetime) -> Select[str, str]:
    """Other queues whose consumers have a handler of one of these names, and the names.

    Parameters: queue. Index: the primary key. Locks: none.
    """
    others = (handler.c.queue != bindparam("queue"), handler.c.last_seen >= seen_since)
    columns = (handler.c.queue, handler.c.handler)
    return select(*columns).where(handler.c.handler.in_(names), *others).order_by(*columns)


def of_several_queues(seen_since: datetime) -> Select[str, str]:
    """Names of handlers that more than one queue's consumers have, and the queues, a row each.

    Index: none, the table has a row for each queue and handler. Locks: none.
    """
    seen = handler.c.last_seen >= seen_since
    several = (
        select(handler.c.handler).where(seen).group_by(handler.c.handler).having(func.count() > literal_column("1"))
    )
    columns = (handler.c.handler, handler.c.queue)
    return select(*columns).where(seen, handler.c.handler.in_(several)).order_by(*columns)


def prune_handlers(before: datetime) -> Delete:
    """Forget handlers that no consumer was seen with since before this moment.

    Index: none, the table has few rows. Locks: the rows that it deletes.
    """
    return delete(handler).where(handler.c.last_seen < before)
