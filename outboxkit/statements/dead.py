"""Dead letters: kept, listed, replayed, discarded."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Insert,
    Select,
    Update,
    and_,
    any_,
    bindparam,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    true,
    union,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert

from outboxkit.tables import PARKED, UtcDateTime, dead_letter, outbox

Resolution = Literal["replayed", "discarded"]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters: each condition that is given must hold.

    Attributes:
        numbers, message_ids: those with one of these numbers or message ids; all where both are empty.
        type, key, reason, side: as the columns.
        before: dead for longer: before this moment.
        since: dead at this moment or later.
        resolved: also those that were replayed or discarded.
    """

    numbers: tuple[int, ...] = ()
    message_ids: tuple[str, ...] = ()
    type: str | None = None
    key: str | None = None
    reason: str | None = None
    side: str | None = None
    before: datetime | None = None
    since: datetime | None = None
    resolved: bool = False


LISTED = tuple(column for column in dead_letter.columns if column.name not in ("payload", "headers"))
"""What a list shows: all but what may be large."""

_ENVELOPE = (
    "position",
    "message_id",
    "type",
    "topic",
    "key",
    "payload",
    "headers",
    "correlation_id",
    "causation_id",
    "content_type",
    "content_encoding",
    "created_at",
    "discard_unroutable",
)
"""What a message has in the outbox, and takes back there; its attempts begin anew, and it does not expire again."""

_LIMIT = bindparam("limit", type_=BigInteger)
_NOW = bindparam("now", type_=UtcDateTime)
_PARKED = literal(PARKED, UtcDateTime)


def bury() -> Insert:
    """Keep a message that was given up on; executed with a dict of dead letter columns. Locks: none."""
    return insert(dead_letter)


def newest(selection: Selection) -> Select[Any]:
    """The newest dead letters of a selection, without payloads and headers.

    Parameters: limit. Index: outboxkit_dead_letter_open, from its end, or the primary key where resolved ones count
    too; outboxkit_dead_letter_message for message ids. Locks: none.
    """
    return select(*LISTED).where(_are(selection)).order_by(dead_letter.c.id.desc()).limit(_LIMIT)


def whole(selection: Selection) -> Select[Any]:
    """Dead letters with all they have, the oldest first. Parameters: limit. Indexes: as `newest`. Locks: none."""
    return select(dead_letter).where(_are(selection)).order_by(dead_letter.c.id).limit(_LIMIT)


def count_by_kind(selection: Selection) -> Select[Any]:
    """How many there are of each side, type and reason, how many could go back, and the highest number of all.

    Reads every dead letter of the selection, without its payload. Locks: none.
    """
    kind = (dead_letter.c.side, dead_letter.c.type, dead_letter.c.reason)
    can = func.count().filter(_has_a_place())
    return select(*kind, func.count(), can, func.max(dead_letter.c.id)).where(_are(selection)).group_by(*kind)


def count_released(selection: Selection) -> Select[Any]:
    """How many keys a selection parks, and how many messages wait behind them.

    Indexes: outboxkit_dead_letter_parked and outboxkit_outbox_held. Locks: none.
    """
    keys = select(dead_letter.c.key).where(_are(selection), dead_letter.c.parked).distinct().cte("keys")
    waiting = (
        select(func.count())
        .select_from(outbox.join(keys, outbox.c.key == keys.c.key))
        .where(outbox.c.held, outbox.c.due_at == _PARKED)
        .scalar_subquery()
    )
    return select(func.count(), waiting).select_from(keys)


def next_numbers(selection: Selection) -> Select[Any]:
    """Numbers and positions of the next dead letters behind a place, in the order of the outbox.

    What never was in the outbox comes first, by its number. Parameters: upto (the highest number), after_position and
    after_id (the place), limit. Index: outboxkit_dead_letter_open, and a sort of the `limit` first. Locks: none.
    """
    place = func.coalesce(dead_letter.c.position, literal_column("-1", BigInteger)).label("place")
    after, after_id = bindparam("after_position", type_=BigInteger), bindparam("after_id", type_=BigInteger)
    return (
        select(dead_letter.c.id, place)
        .where(
            _are(selection),
            dead_letter.c.id <= bindparam("upto", type_=BigInteger),
            or_(place.element > after, (place.element == after) & (dead_letter.c.id > after_id)),
        )
        .order_by(place, dead_letter.c.id)
        .limit(_LIMIT)
    )


def with_siblings(dialect: str) -> CompoundSelect[Any]:
    """The numbers of these dead letters, and of all others that park one of their keys.

    Parameters: ids. Indexes: the primary key and outboxkit_dead_letter_parked. Locks: none.
    """
    chosen, other = dead_letter.alias("chosen"), dead_letter.alias("other")
    ours = _among(chosen.c.id, "ids", dialect)
    keys = select(chosen.c.key).where(ours, chosen.c.parked)
    return union(select(chosen.c.id).where(ours), select(other.c.id).where(other.c.key.in_(keys), other.c.parked))


def lock(dialect: str) -> Select[Any]:
    """Those of these dead letters that are open; nobody else has them then.

    With their siblings: two who resolve dead letters of one key come one after the other, so that the second knows
    that it is the last.

    Parameters: ids. Index: the primary key or outboxkit_dead_letter_open. Locks: each row FOR UPDATE, in the order of
    their numbers; whoever parks rows of these keys waits.
    """
    return (
        select(dead_letter.c.id, dead_letter.c.position, dead_letter.c.key, dead_letter.c.parked)
        .where(dead_letter.c.resolution.is_(None), _among(dead_letter.c.id, "ids", dialect))
        .order_by(dead_letter.c.id)
        .with_for_update()
    )


def by_key() -> Select[Any]:
    """Have this transaction find the rows of a page one by one, by their indexes, however many others there are.

    The planner would rather read a whole table once for 500 rows of it, and for the next 500 again. PostgreSQL only.
    Index: none. Locks: none.
    """
    names = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit")
    off = (
        func.set_config(literal_column(f"'{name}'"), literal_column("'off'"), literal_column("true")) for name in names
    )
    return select(*off)


def put_back(dialect: str) -> ReturningInsert[Any]:
    """Put dead letters back into the outbox at the places that they had; returns these. A place that is taken stays so.

    The rows are held, and due at once: what stands behind them stays there.

    Parameters: ids, now. Index: the primary keys. Locks: the new rows.
    """
    insert_into: Any = sqlite.insert if dialect == "sqlite" else postgresql.insert
    names = [*_ENVELOPE, "due_at", "held"]
    source = select(*(dead_letter.c[name] for name in _ENVELOPE), _NOW, true()).where(
        dead_letter.c.resolution.is_(None), _has_a_place(), _among(dead_letter.c.id, "ids", dialect)
    )
    made: ReturningInsert[Any] = (
        insert_into(outbox)
        .from_select(names, source, include_defaults=False)
        .on_conflict_do_nothing(index_elements=[outbox.c.position])
        .returning(outbox.c.position)
    )
    return made


def resolve(dialect: str) -> Update:
    """Mark dead letters as replayed or discarded; their keys are no longer parked by them.

    Parameters: ids, as_, by, now. Index: the primary key. Locks: none beyond those of `lock`.
    """
    return (
        update(dead_letter)
        .where(dead_letter.c.resolution.is_(None), _among(dead_letter.c.id, "ids", dialect))
        .values(resolution=bindparam("as_"), resolved_by=bindparam("by"), resolved_at=_NOW, parked=False)
    )


def release(dialect: str) -> Update:
    """Have parked rows of these keys due at once, those that no parked dead letter stands before.

    In a statement of its own, after `resolve` in the same transaction: it sees what a relay parked until `lock`.

    Parameters: keys, now. Indexes: outboxkit_outbox_held and outboxkit_dead_letter_parked. Locks: the rows.
    """
    before = dead_letter.alias("before")
    stands = exists().where(before.c.parked, before.c.key == outbox.c.key, before.c.position < outbox.c.position)
    return (
        update(outbox)
        .where(_among(outbox.c.key, "keys", dialect), outbox.c.held, outbox.c.due_at == _PARKED, ~stands)
        .values(due_at=_NOW)
    )


def role() -> Select[Any]:
    """The database role of this session. PostgreSQL only. Locks: none."""
    return select(literal_column("session_user", outbox.c.key.type))


def _are(selection: Selection) -> ColumnElement[bool]:
    columns = dead_letter.c
    found: list[ColumnElement[bool]] = [] if selection.resolved else [columns.resolution.is_(None)]
    named = []
    if selection.numbers:
        named.append(columns.id.in_(selection.numbers))
    if selection.message_ids:
        named.append(columns.message_id.in_(selection.message_ids))
    if named:
        found.append(or_(*named))
    asked = {name: getattr(selection, name) for name in ("type", "key", "reason", "side")}
    found += [columns[name] == value for name, value in asked.items() if value is not None]
    if selection.before is not None:
        found.append(columns.dead_at < selection.before)
    if selection.since is not None:
        found.append(columns.dead_at >= selection.since)
    return and_(true(), *found)


def _has_a_place() -> ColumnElement[bool]:
    return (dead_letter.c.side == literal_column("'outbox'")) & dead_letter.c.position.is_not(None)


def _among(column: ColumnElement[Any], name: str, dialect: str) -> ColumnElement[bool]:
    """One array on PostgreSQL, so that the statement is the same text, and one plan, for pages of every size."""
    if dialect == "sqlite":
        return column.in_(bindparam(name, expanding=True, type_=column.type))
    return column == any_(bindparam(name, type_=ARRAY(column.type)))
