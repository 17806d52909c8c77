"""Statements of an idle relay: the rows of listeners, for which inserts notify, and the query for its next work."""

from typing import Any

from sqlalchemy import (
    DOUBLE_PRECISION,
    Delete,
    Insert,
    Interval,
    Select,
    String,
    TextClause,
    bindparam,
    delete,
    func,
    literal_column,
    not_,
    select,
    text,
    type_coerce,
)

from outboxkit.statements.claim import oldest_ready
from outboxkit.statements.dialects import SERVER, insert_into
from outboxkit.tables import UtcDateTime, listener, outbox

_NAME = bindparam("name", type_=String)


def channel() -> Select[str, bool]:
    """The channel that inserts notify, and whether they do: if transactions can be prepared they must not.

    PostgreSQL only. Index: the catalogue's own. Locks: none.
    """
    name = literal_column(f"'outboxkit_' || '{outbox.name}'::regclass::oid", type_=String)
    can_prepare = func.current_setting(literal_column("'max_prepared_transactions'")) != literal_column("'0'")
    return select(name.label("channel"), not_(can_prepare).label("notifies"))


def listen(channel: str) -> TextClause:
    """LISTEN: have this connection get notifications. PostgreSQL only. Locks: none on tables."""
    return text(f'LISTEN "{channel}"')


def stop_listening() -> TextClause:
    """UNLISTEN: have this connection get no more notifications. PostgreSQL only. Locks: none on tables."""
    return text("UNLISTEN *")


def register_listener() -> Insert:
    """Register a listener, or renew it, for so many seconds from now by the database's clock. PostgreSQL only.

    Parameters: name, seconds. Index: the primary key. Locks: the listener's own row.
    """
    seconds = bindparam("seconds", type_=DOUBLE_PRECISION)
    until = func.clock_timestamp() + seconds * literal_column("interval '1 second'", type_=Interval)
    row = insert_into(SERVER, listener).values(name=_NAME, until=type_coerce(until, UtcDateTime))
    upsert: Insert = row.on_conflict_do_update(index_elements=[listener.c.name], set_={"until": row.excluded.until})
    return upsert


def remove_listener() -> Delete:
    """Remove a listener's row. Parameters: name. Index: the primary key. Locks: the row."""
    return delete(listener).where(listener.c.name == _NAME)


def forget_listeners() -> Delete:
    """Forget listeners that were killed. PostgreSQL only. Index: outboxkit_listener_until. Locks: their rows."""
    return delete(listener).where(listener.c.until < type_coerce(func.statement_timestamp(), UtcDateTime))


def something_to_do() -> Select[Any]:
    """The lowest position of a ready row above the floor, and the earliest due time; null if there is none.

    Parameters: destination, floor. Indexes: outboxkit_outbox_ready from the floor on, and outboxkit_outbox_due. Locks:
    none, and rows that others have locked are seen.
    """
    ours = outbox.c.destination == bindparam("destination", type_=String)
    ready = oldest_ready()
    # Not min(): if the planner expects few rows, it reads all of them.
    due = (
        select(outbox.c.due_at)
        .where(ours, outbox.c.due_at.is_not(None))
        .order_by(outbox.c.due_at)
        .limit(literal_column("1"))
    )
    return select(ready.scalar_subquery().label("position"), due.scalar_subquery().label("due_at"))
