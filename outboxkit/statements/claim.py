"""Claiming: the rows of a relay's batch, and the earlier messages of their keys.

A relay has one destination: each statement has it as a parameter, and sees no row of another one.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    String,
    and_,
    any_,
    bindparam,
    case,
    cast,
    column,
    false,
    func,
    literal_column,
    not_,
    null,
    or_,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.sql.selectable import LateralFromClause
from sqlalchemy.types import TypeEngine

from outboxkit.codec.rows import COLUMNS
from outboxkit.statements.dialects import IN_THIS_DATABASE, LOCKS, has_one_writer
from outboxkit.tables import dead_letter, outbox, ready_place

_IS_SMALL = func.length(outbox.c.payload) <= bindparam("payload_limit", type_=BigInteger)
CLAIMED = tuple(
    case((_IS_SMALL, outbox.c.payload)).label(name) if name == "payload" else outbox.c[name]
    for name in ("position", "attempts", *COLUMNS, "expires_at", "discard_unroutable", "due_at", "reply")
)
"""The columns of a claimed row, in the order in which `outboxkit.relay.order` reads them.

A payload over `payload_limit` bytes is null, to be read by `payloads`.
"""
PAYLOAD_PLACE = 2 + COLUMNS.index("payload")
"""Its place in `CLAIMED`."""

_NOW = bindparam("now", type_=outbox.c.due_at.type)
_FLOOR = bindparam("floor", type_=BigInteger)
_LIMIT = bindparam("limit", type_=BigInteger)
_DESTINATION = bindparam("destination", type_=String)
_ORDER = (outbox.c.destination, outbox.c.position)


def ready_rows() -> tuple[ColumnElement[bool], ...]:
    """The conditions of a ready row of a destination above the floor, to be ordered by destination and position.

    It is a range of pairs, whose order only outboxkit_outbox_ready has. With `destination = …` the planner would also
    accept the primary key, which leads over every delayed row and over the rows of all other destinations.
    """
    beyond = tuple_(*_ORDER) > tuple_(_DESTINATION, _FLOOR)
    return outbox.c.due_at.is_(None), beyond, outbox.c.destination <= _DESTINATION


def claim_ready() -> Select[Any]:
    """The oldest ready rows above the floor, in position order.

    Parameters: destination, floor (a position), limit, payload_limit (see `CLAIMED`). Index: outboxkit_outbox_ready,
    from the floor on. Locks: each row FOR UPDATE until the transaction ends; rows that another relay has locked are
    skipped.
    """
    return select(*CLAIMED).where(*ready_rows()).order_by(*_ORDER).limit(_LIMIT).with_for_update(skip_locked=True)


def claim_due() -> Select[Any]:
    """Due rows: retries, rows that wait behind them, and delayed messages; the longest due first.

    Parameters: destination, now, limit, payload_limit. Index: outboxkit_outbox_due, up to `now`. Locks: as
    `claim_ready`.
    """
    return (
        select(*CLAIMED)
        .where(outbox.c.destination == _DESTINATION, outbox.c.due_at <= _NOW)
        .order_by(outbox.c.due_at, outbox.c.position)
        .limit(_LIMIT)
        .with_for_update(skip_locked=True)
    )


def claim_ready_of_share() -> Select[Any]:
    """`claim_ready` for a relay's share of the keys, and for rows without a key. PostgreSQL only.

    Further parameters: except_keys (keys that are left out), relays, rank (the keys whose hash modulo `relays` is
    `rank`), last (a position). Index: outboxkit_outbox_ready, from the floor to `last`, also over rows that are left
    out. Locks: as `claim_ready`.
    """
    last = tuple_(*_ORDER) <= tuple_(_DESTINATION, bindparam("last", type_=BigInteger))
    return claim_ready().where(_of_share(), last)


def claim_due_of_share() -> Select[Any]:
    """`claim_due` for a relay's share of the keys, and for rows without a key. PostgreSQL only.

    Further parameters: except_keys, relays, rank, as of `claim_ready_of_share`. Index: outboxkit_outbox_due, up to
    `now`, also over rows that are left out. Locks: as `claim_ready`.
    """
    return claim_due().where(_of_share())


def payloads(dialect: str) -> Select[Any]:
    """Positions and payloads of locked rows in position order, until their payloads reach so many bytes in all.

    Parameters: positions, budget (bytes). Index: the primary key. Locks: none.
    """
    is_given = (
        outbox.c.position.in_(bindparam("positions", expanding=True, type_=BigInteger))
        if has_one_writer(dialect)
        else outbox.c.position == any_(_array("positions", BigInteger()))
    )
    size = func.length(outbox.c.payload)
    before = (func.sum(size).over(order_by=outbox.c.position) - size).label("before")
    sized = select(outbox.c.position, outbox.c.payload, before).where(is_given).subquery("sized")
    return select(sized.c.position, sized.c.payload).where(sized.c.before < bindparam("budget", type_=BigInteger))


def predecessors(dialect: str) -> Select[Any]:
    """The predecessors of a batch: for each key its first unpublished message that the batch does not hold.

    One row for each key, with null for a predecessor that it does not have. `ready_at` is the position of a ready row,
    which another relay has. `held_at` and `due_at` are of a held one, `parked_at` of a parked dead letter. All of it is
    one snapshot, so that a message that moves from one table to the other is seen in one of them.

    Parameters: destination; keys; own_positions (of this relay's batches); last_positions (for each key its last
    position in the batch) and floor, which are for ready rows. SQLite reads neither: one transaction at a time has
    every row, so a ready predecessor is one that a full batch has no room for, and only a due row has one.

    Own positions are a subquery, which is hashed in any plan. `!= ALL(...)` may compare each row with each of them.

    Indexes: outboxkit_outbox_key above the floor, outboxkit_outbox_held, outboxkit_dead_letter_parked: on PostgreSQL
    one probe a key in each. Locks: none, and rows that others have locked are seen.
    """
    return _predecessors_of_one_writer() if has_one_writer(dialect) else _predecessors()


def _predecessors() -> Select[Any]:
    bounds = (
        func.unnest(_array("keys", String()), _array("last_positions", BigInteger()))
        .table_valued(column("key", String), column("upto", BigInteger))
        .render_derived(name="batch")
    )
    earlier = (
        outbox.c.key == bounds.c.key,
        outbox.c.destination == _DESTINATION,
        outbox.c.position.not_in(select(func.unnest(_array("own_positions", BigInteger())))),
    )
    ready = _first(
        select(outbox.c.position).where(
            *earlier, outbox.c.due_at.is_(None), ready_place > _FLOOR, ready_place < bounds.c.upto
        ),
        ready_place,
    )
    held = _first(
        select(outbox.c.position, outbox.c.due_at).where(*earlier, outbox.c.held, outbox.c.position < bounds.c.upto),
        outbox.c.position,
    )
    parked = (
        select(func.min(dead_letter.c.position))
        .where(dead_letter.c.key == bounds.c.key, dead_letter.c.destination == _DESTINATION, dead_letter.c.parked)
        .scalar_subquery()
    )
    rows = (
        select(
            bounds.c.key,
            ready.c.position.label("ready_at"),
            held.c.position.label("held_at"),
            held.c.due_at.label("due_at"),
            parked.label("parked_at"),
        )
        .select_from(bounds.outerjoin(ready, true()).outerjoin(held, true()))
        .subquery("predecessor")
    )
    return select(rows).where(
        or_(
            rows.c.ready_at.is_not(None),
            rows.c.held_at.is_not(None),
            rows.c.parked_at.is_not(None),
        )
    )


def _predecessors_of_one_writer() -> Select[Any]:
    keys = bindparam("keys", expanding=True, type_=outbox.c.key.type)
    own = select(func.json_each(bindparam("own_positions", type_=JSON)).table_valued("value").c.value)
    parked = (
        select(dead_letter.c.key, func.min(dead_letter.c.position).label("parked_at"))
        .where(dead_letter.c.parked, dead_letter.c.key.in_(keys), dead_letter.c.destination == _DESTINATION)
        .group_by(dead_letter.c.key)
    )
    held = (
        select(outbox.c.key, func.min(outbox.c.position).label("held_at"))
        .where(
            outbox.c.held,
            outbox.c.key.in_(keys),
            outbox.c.destination == _DESTINATION,
            outbox.c.position.not_in(own),
        )
        .group_by(outbox.c.key)
        .subquery("first")
    )
    first = select(
        held.c.key, null().label("ready_at"), held.c.held_at, outbox.c.due_at, null().label("parked_at")
    ).join(outbox, outbox.c.position == held.c.held_at)
    claimed = outbox.alias("claimed")
    due = (
        select(claimed.c.key, func.max(claimed.c.position).label("upto"))
        .where(claimed.c.position.in_(own), claimed.c.due_at.is_not(None))
        .group_by(claimed.c.key)
        .subquery("due")
    )
    ready_at = (
        select(outbox.c.position)
        .where(
            outbox.c.key == due.c.key,
            outbox.c.destination == _DESTINATION,
            outbox.c.due_at.is_(None),
            ready_place < due.c.upto,
            outbox.c.position.not_in(own),
        )
        .order_by(ready_place)
        .limit(literal_column("1"))
        .scalar_subquery()
    )
    ready = select(due.c.key, ready_at, null(), null(), null())
    dead = parked.subquery("parked")
    rows = union_all(first, ready, select(dead.c.key, null(), null(), null(), dead.c.parked_at)).subquery("predecessor")
    return select(
        rows.c.key,
        *(func.max(rows.c[name]).label(name) for name in ("ready_at", "held_at", "due_at", "parked_at")),
    ).group_by(rows.c.key)


def oldest_ready() -> Select[Any]:
    """The lowest position above the floor of a committed ready row, locked or not.

    Parameters: destination, floor. Index: outboxkit_outbox_ready, from the floor on. Locks: none.
    """
    first = select(outbox.c.position).where(*ready_rows()).order_by(*_ORDER).limit(literal_column("1"))
    return select(func.min(first.subquery("first").c.position))


def writers() -> Select[Any]:
    """The other transactions that are writing to the outbox now: PostgreSQL's virtual transaction ids.

    A writer has the table's lock before it gets a position and until it has ended. So a position that is neither
    visible nor of a transaction in this list was rolled back. PostgreSQL only. Index: none, it reads pg_locks. Locks:
    none on tables.
    """
    return select(LOCKS.c.virtualtransaction).where(
        LOCKS.c.locktype == literal_column("'relation'"),
        IN_THIS_DATABASE,
        LOCKS.c.relation == func.to_regclass(literal_column(f"'{outbox.name}'")),
        LOCKS.c.mode == literal_column("'RowExclusiveLock'"),
        LOCKS.c.pid.is_distinct_from(func.pg_backend_pid()),
    )


def join_shares() -> Select[Any]:
    """Take part in the shares until this transaction ends, and list the relays that do: numbers and transactions.

    Parameters: destination, number (this relay's own; null to list only). PostgreSQL only. Index: none, it reads
    pg_locks. Locks: a shared advisory one for the pair of the outbox with the destination and the relay's number, until
    the transaction ends.
    """
    outbox_oid = literal_column(f"'outboxkit ' || '{outbox.name}'::regclass::oid", type_=String)
    group = func.hashtext(outbox_oid.concat(_DESTINATION), type_=BigInteger).bitwise_and(literal_column(str(2**31 - 1)))
    number = bindparam("number", type_=Integer)
    lock = func.pg_try_advisory_xact_lock_shared(cast(group, Integer), number)
    joined = select(group.label("relays"), lock.label("is_in")).offset(literal_column("0")).subquery("joined")
    theirs = and_(
        joined.c.is_in.is_not(false()),
        LOCKS.c.locktype == literal_column("'advisory'"),
        IN_THIS_DATABASE,
        cast(LOCKS.c.classid, BigInteger) == joined.c.relays,
        LOCKS.c.objsubid == literal_column("2"),
    )
    return select(cast(LOCKS.c.objid, BigInteger), LOCKS.c.virtualtransaction).select_from(
        joined.outerjoin(LOCKS, theirs)  # an inner join may read the locks first, find none, and take none
    )


def _array(name: str, kind: TypeEngine[Any]) -> Any:
    return bindparam(name, type_=ARRAY(kind))


def _of_share() -> ColumnElement[bool]:
    hashed = func.hashtext(outbox.c.key, type_=BigInteger).bitwise_and(literal_column(str(2**31 - 1)))
    of_rank = hashed % bindparam("relays", type_=BigInteger) == bindparam("rank", type_=BigInteger)
    is_left_out = outbox.c.key.in_(select(func.unnest(_array("except_keys", String()))))
    return or_(outbox.c.key.is_(None), and_(of_rank, not_(is_left_out)))


def _first(query: Select[Any], place: ColumnElement[int]) -> LateralFromClause:
    return query.order_by(place).limit(literal_column("1")).lateral()


def count_due(now: datetime) -> Select[int]:
    """The number of committed rows of a destination that could be published now, also those that a relay holds.

    Parameters: destination. Indexes: outboxkit_outbox_ready and outboxkit_outbox_due, the destination's part of them
    counted in full. Locks: none.
    """
    ready = _count_of_destination(outbox.c.due_at.is_(None)).scalar_subquery()
    due = _count_of_destination(outbox.c.due_at <= now).scalar_subquery()
    return select(ready + due)


def count_later(now: datetime) -> Select[int]:
    """The number of rows of a destination that wait for a later time.

    Parameters: destination. Index: outboxkit_outbox_due, from `now` on. Locks: none.
    """
    return _count_of_destination(outbox.c.due_at > now)


def _count_of_destination(condition: ColumnElement[bool]) -> Select[int]:
    return select(func.count()).select_from(outbox).where(outbox.c.destination == _DESTINATION, condition)
