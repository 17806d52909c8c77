"""Resolving dead letters: put back into the outbox, sent back to their queue or discarded; parked rows are released."""

from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Insert,
    Select,
    Update,
    and_,
    bindparam,
    exists,
    func,
    insert,
    literal,
    literal_column,
    select,
    true,
    union,
    update,
)
from sqlalchemy.sql.dml import ReturningInsert

from outboxkit.codec.rows import COLUMNS
from outboxkit.statements.dead import LISTED
from outboxkit.statements.dialects import among, insert_into, set_locally
from outboxkit.tables import PARKED, UtcDateTime, dead_letter, outbox, readable

Resolution = Literal["replayed", "discarded"]

_ENVELOPE = ("position", *COLUMNS, "discard_unroutable", "destination", "reply")
"""The columns that a message takes back to the outbox; its attempts begin at 0 again, and it does not expire again."""


_NOW = bindparam("now", type_=UtcDateTime)
_PARKED = literal(PARKED, UtcDateTime)


def with_siblings(dialect: str) -> CompoundSelect[Any]:
    """The numbers of these dead letters, and of all others that park one of their keys in its destination.

    Parameters: ids. Indexes: the primary key and outboxkit_dead_letter_parked. Locks: none.
    """
    selected, other = dead_letter.alias("chosen"), dead_letter.alias("other")
    by_ids = among(dialect, selected.c.id, "ids")
    keys = select(selected.c.key, selected.c.destination).where(by_ids, selected.c.parked).distinct().subquery("keys")
    is_sibling = (other.c.key == keys.c.key, other.c.destination == keys.c.destination, other.c.parked)
    return union(select(selected.c.id).where(by_ids), select(other.c.id).join(keys, and_(*is_sibling)))


def lock(dialect: str) -> Select[Any]:
    """Lock the open ones of these dead letters.

    Called with their siblings, so that two operators who resolve dead letters of one key come one after the other. Then
    the second knows that it is the last.

    Parameters: ids. Index: the primary key. Locks: each row FOR UPDATE, in the order of their numbers. A relay parks no
    rows of these keys meanwhile; one that has just parked some is waited for.
    """
    return (
        select(*(dead_letter.c[name] for name in ("id", "position", "key", "parked", "side", "destination")))
        .where(dead_letter.c.resolution.is_(None), among(dialect, dead_letter.c.id, "ids"))
        .order_by(dead_letter.c.id)
        .with_for_update()
    )


def forbid_seqscan() -> Select[Any]:
    """Make this transaction find the rows of a page one by one, by their indexes.

    The planner would rather read a whole table once for 500 rows of it, and again for the next 500. PostgreSQL only.
    Index: none. Locks: none.
    """
    return set_locally(enable_seqscan="off", enable_hashjoin="off", enable_mergejoin="off", jit="off")


def put_back(dialect: str) -> ReturningInsert[Any]:
    """Put dead letters back into the outbox at their old positions; returns these. A taken position is skipped.

    The rows are held, and due at once: rows behind them stay behind them.

    Parameters: ids, now, headers (null: they keep their own). Index: the primary keys. Locks: the new rows.
    """
    names = [*_ENVELOPE, "due_at", "held"]
    values: dict[str, ColumnElement[Any]] = {name: readable(dead_letter.c[name]) for name in _ENVELOPE}
    values["headers"] = func.coalesce(bindparam("headers", type_=outbox.c.headers.type), values["headers"])
    source = select(*values.values(), _NOW, true()).where(
        dead_letter.c.resolution.is_(None), _has_position(), among(dialect, dead_letter.c.id, "ids")
    )
    statement: ReturningInsert[Any] = (
        insert_into(dialect, outbox)
        .from_select(names, source, include_defaults=False)
        .on_conflict_do_nothing(index_elements=[outbox.c.position])
        .returning(outbox.c.position)
    )
    return statement


def envelopes(dialect: str) -> Select[Any]:
    """These dead letters with all their columns but the payload.

    Parameters: ids. Index: the primary key. Locks: none beyond those of `lock`.
    """
    columns = (*LISTED, dead_letter.c.headers)
    return select(*columns).where(among(dialect, dead_letter.c.id, "ids")).order_by(dead_letter.c.id)


def send_back() -> Insert:
    """Put a dead letter of the inbox into the outbox, behind all rows there: a new row of the destination `default`.

    One without an id or a type gets a stand-in, because a row of the outbox has both.

    Parameters: id, headers with its handler, and stand_in; or a list of these. Index: the primary key. Locks: the new
    row.
    """
    headers = bindparam("headers", type_=outbox.c.headers.type)
    stand_in = bindparam("stand_in", type_=outbox.c.message_id.type)
    values: dict[str, ColumnElement[Any]] = {name: readable(dead_letter.c[name]) for name in COLUMNS}
    values |= {name: func.coalesce(dead_letter.c[name], stand_in).label(name) for name in ("message_id", "type")}
    source = select(*(values | {"headers": headers}).values()).where(
        dead_letter.c.resolution.is_(None), dead_letter.c.id == bindparam("id", type_=BigInteger)
    )
    return insert(outbox).inline().from_select(list(COLUMNS), source, include_defaults=False)


def resolve(dialect: str) -> Update:
    """Mark dead letters as replayed or discarded; they no longer park their keys.

    Parameters: ids, as_, by, now. Index: the primary key. Locks: none beyond those of `lock`.
    """
    return (
        update(dead_letter)
        .where(dead_letter.c.resolution.is_(None), among(dialect, dead_letter.c.id, "ids"))
        .values(resolution=bindparam("as_"), resolved_by=bindparam("by"), resolved_at=_NOW, parked=False)
    )


def release_parked(dialect: str) -> Update:
    """Make parked rows of these keys of a destination due at once, unless a parked dead letter precedes them.

    Run it after `resolve` in the same transaction: it sees rows that a relay parked before `lock`.

    Parameters: at_destination, keys, now. Indexes: outboxkit_outbox_held and outboxkit_dead_letter_parked. Locks: the
    rows.
    """
    parking = dead_letter.alias("before")
    earlier = (parking.c.position < outbox.c.position, parking.c.destination == outbox.c.destination)
    is_blocked = exists().where(parking.c.parked, parking.c.key == outbox.c.key, *earlier)
    of_keys = (
        among(dialect, outbox.c.key, "keys"),
        outbox.c.destination == bindparam("at_destination", type_=outbox.c.destination.type),
    )
    return update(outbox).where(*of_keys, outbox.c.held, outbox.c.due_at == _PARKED, ~is_blocked).values(due_at=_NOW)


def role() -> Select[Any]:
    """The database role of this session. PostgreSQL only. Locks: none."""
    return select(literal_column("session_user", outbox.c.key.type))


def _has_position() -> ColumnElement[bool]:
    return (dead_letter.c.side == literal_column("'outbox'")) & dead_letter.c.position.is_not(None)
