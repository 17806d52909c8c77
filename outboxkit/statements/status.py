"""What is counted: by a relay that drains, and by `outboxkit status`.

The statements of `status` read a bounded part of a table, however many rows it has: the first ones of an index, or a
sample of the pages. Those that read from the lowest position on also walk over what vacuum has not removed there yet.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Float,
    FromClause,
    Integer,
    Select,
    String,
    Subquery,
    Table,
    bindparam,
    case,
    cast,
    column,
    func,
    literal_column,
    select,
    union,
)

from outboxkit.statements.dialects import has_one_writer
from outboxkit.tables import PARKED, dead_letter, effect, idempotency, inbox, outbox, published

_LIMIT = bindparam("limit", type_=Integer)
_DESTINATION = bindparam("destination", type_=String)
_ROWS = func.count().label("rows")
_ROWID = literal_column("rowid", Integer)
_PARKED = bindparam("parked_until", PARKED, type_=outbox.c.due_at.type)


def count_due(now: datetime) -> Select[int]:
    """How many committed rows of a destination could be published now, whoever holds them.

    Parameters: destination. Indexes: outboxkit_outbox_ready and outboxkit_outbox_due, the destination's part of them
    counted in full. Locks: none.
    """
    ours = select(func.count()).select_from(outbox).where(outbox.c.destination == _DESTINATION)
    ready = ours.where(outbox.c.due_at.is_(None)).scalar_subquery()
    due = ours.where(outbox.c.due_at <= now).scalar_subquery()
    return select(ready + due)


def count_later(now: datetime) -> Select[int, datetime | None]:
    """How many rows of a destination wait for a later time, and the next such time.

    Parameters: destination. Index: outboxkit_outbox_due, from `now` on. Locks: none.
    """
    waiting = (outbox.c.destination == _DESTINATION, outbox.c.due_at > now)
    return select(func.count(), func.min(outbox.c.due_at)).where(*waiting)


def by_index() -> Select[Any]:
    """Have this transaction read the first rows in an index's order, also where the planner expects few rows in all.

    Without statistics it would expect so of a table that was filled a moment ago, and read and sort all of it. And do
    not wait for longer than five seconds while a table is being altered. PostgreSQL only. Index: none. Locks: none.
    """
    wanted = dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "enable_sort", "jit"), "off") | {
        "lock_timeout": "5s"
    }
    return select(
        *(
            func.set_config(literal_column(f"'{name}'"), literal_column(f"'{value}'"), literal_column("true"))
            for name, value in wanted.items()
        )
    )


def destinations() -> Select[str]:
    """The destinations of rows in the outbox, and of up to `limit` parked dead letters; at most `most` of each kind.

    However many rows there are, it reads one for each destination. Parameters: most, limit. Indexes:
    outboxkit_outbox_ready, outboxkit_outbox_due and outboxkit_dead_letter_parked. Locks: none.
    """
    letters = _first(select(dead_letter.c.destination).where(dead_letter.c.parked), dead_letter.c.key)
    found = union(
        _each_destination("ready", outbox.c.due_at.is_(None)),
        _each_destination("due", outbox.c.due_at.is_not(None)),
        select(letters.c.destination),
    ).subquery("found")
    return select(found.c.destination).order_by(found.c.destination)


def ready() -> Select[int, Any]:
    """How many rows of a destination wait for nothing, and the creation of the oldest, among the first `limit` of them.

    Parameters: destination, limit. Index: outboxkit_outbox_ready. Locks: none.
    """
    # A range of one, and both columns in the order: for an equation the planner would take the primary key's order.
    ours = outbox.c.destination.between(_DESTINATION, _DESTINATION)
    found = select(outbox.c.created_at).where(ours, outbox.c.due_at.is_(None))
    first = _first(found, outbox.c.destination, outbox.c.position)
    return select(func.count(), func.min(first.c.created_at)).select_from(first)


def waiting() -> Select[Any]:
    """For held and for delayed rows: how many, the next time and the oldest creation, among the `limit` next due ones.

    Of a destination. Parameters: destination, limit. Index: outboxkit_outbox_due, up to the parked rows. Locks: none.
    """
    columns = (outbox.c.held, outbox.c.due_at, outbox.c.created_at)
    first = _first(_to_destination(*columns).where(outbox.c.due_at < _PARKED), outbox.c.due_at, outbox.c.position)
    earliest = (func.min(first.c.due_at), func.min(first.c.created_at))
    return select(first.c.held, func.count(), *earliest).group_by(first.c.held)


def retried() -> Select[Any]:
    """The error of the row whose retry is farthest off, and how many have one, among the `limit` next due rows.

    The farther off, the later the failure. Of a destination. Parameters: destination, limit. Index:
    outboxkit_outbox_due, up to the parked rows. Locks: none.
    """
    columns = (outbox.c.last_error, outbox.c.due_at, outbox.c.position)
    first = _first(_to_destination(*columns).where(outbox.c.due_at < _PARKED), outbox.c.due_at, outbox.c.position)
    failed = select(first.c.last_error, func.count().over()).where(first.c.last_error.is_not(None))
    return failed.order_by(first.c.due_at.desc(), first.c.position.desc()).limit(literal_column("1"))


def parked() -> Select[Any]:
    """How many rows of a destination wait behind a parked dead letter: at most `limit` are counted.

    Parameters: destination, limit. Index: outboxkit_outbox_due, its upper end. Locks: none.
    """
    return select(func.count()).select_from(_parked_rows())


def parked_keys() -> Select[Any]:
    """The keys with parked dead letters, those with the most waiting rows first; of all of them, keys and dead letters.

    Of a destination; of its waiting rows, and of the dead letters of all destinations, the first `limit` are counted.
    Parameters: destination, limit, top (how many keys). Indexes: outboxkit_outbox_due, its upper end, and
    outboxkit_dead_letter_parked. Locks: none.
    """
    rows = _parked_rows()
    behind = select(rows.c.key, func.count().label("rows")).group_by(rows.c.key).cte("behind")
    letters = _first(
        select(dead_letter.c.key, dead_letter.c.destination).where(dead_letter.c.parked), dead_letter.c.key
    )
    ours = select(letters.c.key, func.count().label("rows")).where(letters.c.destination == _DESTINATION)
    dead = ours.group_by(letters.c.key).cte("dead")
    waiting_rows = func.coalesce(behind.c.rows, literal_column("0", Integer))
    return (
        select(dead.c.key, waiting_rows, dead.c.rows, func.count().over(), func.sum(dead.c.rows).over())
        .select_from(dead.outerjoin(behind, behind.c.key == dead.c.key))
        .order_by(waiting_rows.desc(), dead.c.key)
        .limit(bindparam("top", type_=Integer))
    )


def oldest_by_type() -> Select[Any]:
    """The `limit` rows with the lowest positions, by type, destination and state; how many of them failed before.

    Parameters: limit. Index: the primary key. Locks: none.
    """
    columns = (outbox.c.type, outbox.c.destination, outbox.c.due_at, outbox.c.held, outbox.c.attempts)
    return _by_type(_first(select(*columns), outbox.c.position))


def sampled_by_type(dialect: str) -> Select[Any]:
    """As `oldest_by_type`, of a sample of the rows (see `size`). Locks: none."""
    return _by_type(_sample(dialect, outbox))


def dead_open() -> Select[Any]:
    """Open dead letters by side and reason, among the first `limit` of them.

    Parameters: limit. Index: outboxkit_dead_letter_open. Locks: none.
    """
    columns = (dead_letter.c.side, dead_letter.c.reason)
    first = _first(select(*columns).where(dead_letter.c.resolution.is_(None)), dead_letter.c.id)
    by = (first.c.side, first.c.reason)
    return select(*by, _ROWS).group_by(*by).order_by(*by)


def sampled_dead(dialect: str) -> Select[Any]:
    """Dead letters by side, reason and resolution (null: open), in a sample of the rows (see `size`). Locks: none."""
    rows = _sample(dialect, dead_letter)
    by = (rows.c.side, rows.c.reason, rows.c.resolution)
    return select(*by, _ROWS).group_by(*by).order_by(*by)


def sampled_processed(dialect: str) -> Select[Any]:
    """How many messages each handler has processed, in a sample of the inbox (see `size`). Locks: none."""
    rows = _sample(dialect, inbox)
    return select(rows.c.handler, _ROWS).group_by(rows.c.handler).order_by(rows.c.handler)


def sampled_published(dialect: str) -> Select[Any]:
    """How many published messages are kept, in a sample of them (see `size`). Locks: none."""
    return select(_ROWS).select_from(_sample(dialect, published))


def sampled_remembered(dialect: str) -> Select[Any]:
    """How many requests with an idempotency key are remembered, in a sample of them (see `size`). Locks: none."""
    return select(_ROWS).select_from(_sample(dialect, idempotency))


def unknown_effects() -> Select[Any]:
    """How many effects were started, and have neither an end nor a lease any more: at most `limit` are counted.

    Parameters: limit, now. Index: outboxkit_effect_open. Locks: none.
    """
    is_open = effect.c.state == literal_column("'started'")
    over = effect.c.locked_until < bindparam("now", type_=effect.c.locked_until.type)
    return select(func.count()).select_from(_first(select(effect.c.key).where(is_open, over), effect.c.locked_until))


def oldest_published() -> Select[Any]:
    """When the oldest message that is kept was published. Index: the primary key, of each partition. Locks: none."""
    return select(func.min(published.c.published_at))


def size(dialect: str, table: Table) -> Select[Any]:
    """What a table is sampled from: on PostgreSQL its pages and its partitions', on SQLite the span of its rowids.

    A sample is a random `percent` of the pages on PostgreSQL, which reads those pages only, and on SQLite the `limit`
    oldest rows. Index: none, it reads sizes. Locks: none.
    """
    if has_one_writer(dialect):
        lowest, highest = (select(end(_ROWID)).select_from(table).scalar_subquery() for end in (func.min, func.max))
        return select(func.coalesce(highest - lowest + literal_column("1"), literal_column("0")))
    name = func.to_regclass(literal_column(f"'{table.name}'"))
    tree = func.pg_partition_tree(name).table_valued(column("relid"))
    parts = select(func.sum(func.pg_relation_size(tree.c.relid))).scalar_subquery()
    octets = func.coalesce(parts, func.pg_relation_size(name))
    return select(octets / cast(func.current_setting(literal_column("'block_size'")), Integer))


def _first(query: Select[Any], *order: Any) -> Subquery:
    """The order keeps the planner on the index: without it a limit over most of a table is read from its start."""
    return query.order_by(*order).limit(_LIMIT).subquery("first")


def _parked_rows() -> Subquery:
    # No row is due later; but by the position alone the planner would take the primary key's order.
    return _first(_to_destination(outbox.c.key).where(outbox.c.due_at >= _PARKED), outbox.c.due_at, outbox.c.position)


def _to_destination(*columns: Any) -> Select[Any]:
    return select(*columns).where(outbox.c.destination == _DESTINATION)


def _each_destination(name: str, where: ColumnElement[bool]) -> Select[Any]:
    """Each destination by one look into the index: the next one behind the last."""
    first = select(func.min(outbox.c.destination)).where(where).scalar_subquery()
    one = literal_column("1", Integer)
    found = select(first.label("destination"), one.label("number")).cte(name, recursive=True)
    behind = select(func.min(outbox.c.destination)).where(where, outbox.c.destination > found.c.destination)
    following = select(behind.correlate(found).scalar_subquery(), found.c.number + one).where(
        found.c.destination.is_not(None), found.c.number < bindparam("most", type_=Integer)
    )
    each = found.union_all(following)
    return select(each.c.destination).where(each.c.destination.is_not(None))


def _sample(dialect: str, table: Table) -> FromClause:
    if has_one_writer(dialect):
        return select(table).order_by(_ROWID).limit(_LIMIT).subquery("sample")
    return table.tablesample(func.system(bindparam("percent", type_=Float)), name="sample")


def _by_type(rows: FromClause) -> Select[Any]:
    state = case(
        (rows.c.due_at.is_(None), literal_column("'ready'", String)),
        (rows.c.due_at == _PARKED, literal_column("'parked'", String)),
        (rows.c.held, literal_column("'held'", String)),
        else_=literal_column("'delayed'", String),
    ).label("state")
    failed = func.count().filter(rows.c.attempts > literal_column("0", Integer)).label("failed")
    by = (rows.c.type, rows.c.destination)
    return select(*by, state, failed, _ROWS).group_by(*by, literal_column("state"))
