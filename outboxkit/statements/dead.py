"""Dead letters: written, listed and counted; `resolve` replays and discards them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Insert,
    Select,
    String,
    and_,
    bindparam,
    false,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
    tuple_,
)

from outboxkit.codec.rows import COLUMNS, TEXTS
from outboxkit.message import FIRST_MOMENT, LAST_MOMENT, NAME_LIMIT
from outboxkit.statements.dialects import by_bytes, has_one_writer, insert_into, transaction_time
from outboxkit.tables import PARKED, UtcDateTime, dead_letter, outbox, readable

LetterPlace = tuple[datetime, int]
"""When a dead letter died, and its number."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A choice of dead letters: those that match every field that is set.

    Attributes:
        numbers, message_ids: with one of these numbers or message ids; if both are empty, all.
        error: with this text in the error.
        before: dead before this time.
        since: dead at this time or later.
        after: behind this place of the list, which has the newest first.
        upto: not behind this place.
        resolved: whether replayed and discarded ones are included; `only`: they alone.
        same: pairs of a column of `GROUP_COLUMNS` and a number: in the group of `count_by` that has the dead letter of
            this number.
    """

    numbers: tuple[int, ...] = ()
    message_ids: tuple[str, ...] = ()
    type: str | None = None
    key: str | None = None
    reason: str | None = None
    side: str | None = None
    destination: str | None = None
    handler: str | None = None
    error: str | None = None
    before: datetime | None = None
    since: datetime | None = None
    after: LetterPlace | None = None
    upto: LetterPlace | None = None
    resolved: bool | Literal["only"] = False
    same: tuple[tuple[str, int], ...] = ()


LISTED = tuple(
    readable(column) for column in dead_letter.columns if column.name not in ("payload", "headers", "traceback")
)
"""The columns of a list: all but those that may be large."""

BURIED = ("side", "handler", *COLUMNS, "reason", "error", "attempts", "first_failed_at", "traceback")
"""The columns that the consumer writes for a message that it gives up."""

JUDGED = ("side", *TEXTS, "created_at", "reason", "position")
"""The columns that decide whether a dead letter can be replayed."""

_LIMIT = bindparam("limit", type_=BigInteger)
_PARKED = literal(PARKED, UtcDateTime)
_FIRST, _LAST = literal(FIRST_MOMENT, UtcDateTime), literal(LAST_MOMENT, UtcDateTime)
_EMPTY = literal_column("''", String)
_TIMED = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
"""A UUIDv7 as everybody writes it."""


def bury_once(dialect: str) -> Insert:
    """Write a consumer's dead letter, unless an open one of this message, queue and handler exists.

    A consumer that is killed between this and its ack gets the message again, and buries it again. Two may also bury it
    at the same moment. A message without an id equals no other, and is always inserted.

    Parameters: a dict of `BURIED`, or a list of them, in the order of their handlers. Indexes:
    outboxkit_dead_letter_once and outboxkit_dead_letter_unhandled. Locks: the new row; a second burial of it waits for
    the first one's end.
    """
    values: dict[str, Any] = {name: bindparam(name, type_=dead_letter.c[name].type) for name in BURIED}
    values["dead_at"] = transaction_time(dialect)  # SQLite's default has no fraction, and compares otherwise
    once: Insert = insert_into(dialect, dead_letter).inline().values(values).on_conflict_do_nothing()
    return once


def buried() -> Select[Any]:
    """The handlers with an open dead letter of a message. Parameters: message_id, queue.

    Index: outboxkit_dead_letter_once. Locks: none.
    """
    ours = (dead_letter.c.message_id == bindparam("message_id"), dead_letter.c.queue == bindparam("queue"))
    is_open = (dead_letter.c.side == literal_column("'inbox'"), dead_letter.c.resolution.is_(None))
    return select(dead_letter.c.handler).where(*ours, *is_open)


def newest(selection: Selection) -> Select[Any]:
    """The newest dead letters of a selection, without payloads and headers.

    Parameters: limit. Indexes: outboxkit_dead_letter_key, outboxkit_dead_letter_handler or outboxkit_dead_letter_type
    if the selection has one of these, or else outboxkit_dead_letter_open, from its end. The primary key if resolved
    ones are included; outboxkit_dead_letter_message for message ids. Locks: none.
    """
    return select(*LISTED).where(_are(selection)).order_by(*_newest_first(selection)).limit(_LIMIT)


def count_newest(selection: Selection) -> Select[int]:
    """The number of dead letters of a selection, up to `limit`.

    Parameters: limit. Index: outboxkit_dead_letter_open, or as `newest`. Locks: none.
    """
    newest = select(dead_letter.c.id).where(_are(selection)).order_by(*_newest_first(selection)).limit(_LIMIT)
    return select(func.count()).select_from(newest.subquery("newest"))


def end_of_window(selection: Selection) -> Select[Any]:
    """The place of the last one of the first `window` rows that an index has for a selection; none if it has fewer.

    So many are read at most, if the selection ends `upto` there. Parameters: window. Indexes: as `newest`. Locks: none.
    """
    place = (readable(dead_letter.c.dead_at), dead_letter.c.id)
    rows = select(*place).where(*_bounds(selection)).order_by(*_newest_first(selection))
    return rows.offset(bindparam("window", type_=BigInteger) - literal_column("1")).limit(literal_column("1"))


def count_left(selection: Selection) -> Select[int]:
    """The number of dead letters of a selection. Parameters: upto (the highest number).

    Reads every dead letter of the selection, but no payload. Locks: none.
    """
    is_meant = dead_letter.c.id <= bindparam("upto", type_=BigInteger)
    return select(func.count()).select_from(dead_letter).where(_are(selection), is_meant)


def highest() -> Select[int]:
    """The highest number of a dead letter, 0 if there is none. Index: the primary key. Locks: none."""
    return select(func.coalesce(func.max(dead_letter.c.id), literal_column("0", BigInteger)))


def whole(selection: Selection) -> Select[Any]:
    """Dead letters with all their columns, the oldest first. Parameters: limit. Indexes: as `newest`. Locks: none."""
    columns = (readable(column) for column in dead_letter.columns)
    return select(*columns).where(_are(selection)).order_by(dead_letter.c.id).limit(_LIMIT)


def count_by_kind(selection: Selection) -> Select[Any]:
    """The number of dead letters of each side, type and reason.

    Reads every dead letter of the selection, without its payload. Locks: none.
    """
    kind = (dead_letter.c.side, dead_letter.c.type, dead_letter.c.reason)
    return select(*kind, func.count().label("rows")).where(_are(selection)).group_by(*kind)


GROUP_COLUMNS = ("error", "type", "handler", "key")
"""The columns by which dead letters are grouped."""


def count_by(selection: Selection, column: str) -> Select[Any]:
    """Dead letters by the value of a column: how many, the first and the last moment, and the lowest number.

    Of an error the first 200 characters count. The largest groups first. Parameters: limit. Reads every dead letter of
    the selection, but no payload. Locks: none.
    """
    value = _grouped(dead_letter.c[column])
    at = dead_letter.c.dead_at
    ends = ((func.min(at), "first"), (func.max(at), "last"))
    figures = (func.count().label("rows"), *(readable(each).label(name) for each, name in ends))
    example = func.min(dead_letter.c.id).label("example")
    groups = select(value.label("value"), *figures, example).where(_are(selection)).group_by(value)
    return groups.order_by(func.count().desc(), example).limit(_LIMIT)


def _grouped(column: ColumnElement[Any]) -> ColumnElement[Any]:
    if column.name == "error":
        return func.substr(column, literal_column("1"), literal_column("200"), type_=column.type)
    return column


def replay_candidates(dialect: str, selection: Selection) -> Select[Any]:
    """The dead letters of a selection that the rules have to judge: of the inbox, or without a position.

    On a server those are left out that are whole messages and new enough beyond doubt, which is most of them: judging
    a million here takes minutes. Only the columns for that check. Parameters: fresh_from (the lowest UUIDv7 that is
    new enough). Reads every dead letter of the selection, but no payload. Locks: none.
    """
    return select(*(readable(dead_letter.c[name]) for name in JUDGED)).where(_are(selection), _is_doubtful(dialect))


def _is_doubtful(dialect: str) -> ColumnElement[bool]:
    placeless = or_(dead_letter.c.side != literal_column("'outbox'"), dead_letter.c.position.is_(None))
    return placeless if has_one_writer(dialect) else and_(placeless, ~func.coalesce(_is_fine(dialect), false()))


def _is_fine(dialect: str) -> ColumnElement[bool]:
    columns = dead_letter.c
    texts = func.concat(*(columns[name] for name in TEXTS))  # all of them together: whatever is longer is judged
    fresh_from = bindparam("fresh_from", type_=columns.message_id.type)
    return and_(
        columns.side == literal_column("'inbox'"),
        columns.reason.not_in([literal_column("'malformed'"), literal_column("'stale'")]),
        columns.message_id.regexp_match(literal_column(f"'{_TIMED}'")),
        by_bytes(dialect, columns.message_id) >= fresh_from,
        columns.type != _EMPTY,
        columns.queue != _EMPTY,
        or_(columns.created_at.is_(None), columns.created_at.between(_FIRST, _LAST)),
        func.octet_length(texts) <= literal_column(str(NAME_LIMIT)),
    )


def count_released(selection: Selection) -> Select[Any]:
    """The number of keys that a selection parks, each of one destination, and of messages that wait behind them.

    Of the messages up to `limit`. Parameters: limit. Indexes: outboxkit_dead_letter_parked and outboxkit_outbox_held.
    Locks: none.
    """
    parked = select(dead_letter.c.key, dead_letter.c.destination).where(_are(selection), dead_letter.c.parked)
    keys = parked.distinct().cte("keys")
    same_key = and_(outbox.c.key == keys.c.key, outbox.c.destination == keys.c.destination)
    behind = select(outbox.c.position).join(keys, same_key).where(outbox.c.held, outbox.c.due_at == _PARKED)
    waiting = select(func.count()).select_from(behind.limit(_LIMIT).subquery("behind")).scalar_subquery()
    return select(func.count(), waiting).select_from(keys)


def next_numbers(selection: Selection) -> Select[Any]:
    """Numbers and positions of the next dead letters behind a cursor, in the order of the outbox.

    Those without a position come first, by number. Parameters: upto (the highest number), after_position and after_id
    (the cursor), limit. Index: outboxkit_dead_letter_open, and a sort of the `limit` first. Locks: none.
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


def _order(selection: Selection) -> list[Column[Any]]:
    """The columns of the index that leads to a selection, in whose order its list is."""
    columns = dead_letter.c
    if selection.resolved:
        return [columns.id]
    leading = [columns[name] for name in ("key", "handler", "type") if getattr(selection, name) is not None]
    return [*leading[:1], columns.dead_at, columns.id]


def _newest_first(selection: Selection) -> list[ColumnElement[Any]]:
    return [each.desc() for each in _order(selection)]


def _bounds(selection: Selection) -> list[ColumnElement[bool]]:
    """The conditions that an index answers. A range of one keeps its column in the order, and the planner on it."""
    columns, order = dead_letter.c, _order(selection)
    bounds: list[ColumnElement[bool]] = [] if selection.resolved else [columns.resolution.is_(None)]
    values = {each.name: getattr(selection, each.name) for each in order[:-2]}
    bounds += [columns[name].between(value, value) for name, value in values.items()]

    def row(**place: Any) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        known = {each: (values | place)[each.name] for each in order if each.name in values | place}
        return tuple_(*known), tuple_(*(literal(value, each.type) for each, value in known.items()))

    for place, is_before in ((selection.after, True), (selection.upto, False)):
        if place is not None:
            left, right = row(dead_at=place[0], id=place[1])
            bounds.append(left < right if is_before else left >= right)
    for moment, is_before in ((selection.before, True), (selection.since, False)):
        if moment is not None and not selection.resolved:
            left, right = row(dead_at=moment)
            bounds.append(left < right if is_before else left >= right)
    return bounds


def _are(selection: Selection) -> ColumnElement[bool]:
    columns, conditions = dead_letter.c, _bounds(selection)
    identities = []
    if selection.numbers:
        identities.append(columns.id.in_(selection.numbers))
    if selection.message_ids:
        identities.append(columns.message_id.in_(selection.message_ids))
    if identities:
        conditions.append(or_(*identities))
    others = {"type", "key", "reason", "side", "destination", "handler"} - {each.name for each in _order(selection)}
    equal = {name: getattr(selection, name) for name in sorted(others)}
    # As expressions: otherwise the planner might leave the index, and with it the bounds.
    conditions += [columns[name].concat(_EMPTY) == value for name, value in equal.items() if value is not None]
    if selection.error is not None:
        conditions.append(func.replace(columns.error, selection.error, "") != columns.error)
    if selection.resolved == "only":
        conditions.append(columns.resolution.is_not(None))
    if selection.resolved and selection.before is not None:
        conditions.append(columns.dead_at < selection.before)
    if selection.resolved and selection.since is not None:
        conditions.append(columns.dead_at >= selection.since)
    for name, number in selection.same:
        example = dead_letter.alias("example")
        of_number = select(_grouped(example.c[name])).where(example.c.id == number)
        conditions.append(_grouped(columns[name]).is_not_distinct_from(of_number.scalar_subquery()))
        conditions.append(of_number.exists())  # else those without a value would be in the group of a deleted one
    return and_(true(), *conditions)
