"""Dead letters: kept, listed and counted; `resolve` replays and discards them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Insert,
    Select,
    and_,
    bindparam,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    true,
)

from outboxkit.envelope import COLUMNS, TEXTS
from outboxkit.tables import PARKED, UtcDateTime, dead_letter, outbox, readable


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters: each condition that is given must hold.

    Attributes:
        numbers, message_ids: those with one of these numbers or message ids; all where both are empty.
        type, key, reason, side, destination: as the columns.
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
    destination: str | None = None
    before: datetime | None = None
    since: datetime | None = None
    resolved: bool = False


LISTED = tuple(
    readable(column) for column in dead_letter.columns if column.name not in ("payload", "headers", "traceback")
)
"""What a list shows: all but what may be large."""

BURIED = ("side", "queue", "handler", *COLUMNS, "reason", "error", "attempts", "first_failed_at", "traceback")
"""What the consumer says of a message that it gives up on."""

JUDGED = ("side", "queue", *TEXTS, "created_at", "reason", "position")
"""What tells whether a dead letter can be replayed."""

_LIMIT = bindparam("limit", type_=BigInteger)
_PARKED = literal(PARKED, UtcDateTime)


def bury_once() -> Insert:
    """Keep what a consumer gave up, unless an open dead letter of this message, queue and handler is there already.

    A consumer that is killed between this and its ack gets the message again, and buries it again. Two who do that at
    the same moment may both insert. A message without an id is like no other, and always inserted.

    Parameters: a dict of `BURIED`, or a list of them. Index: outboxkit_dead_letter_message. Locks: none.
    """
    given = {name: bindparam(name, type_=dead_letter.c[name].type) for name in BURIED}
    there = dead_letter.alias("there")
    open_ = exists(literal_column("1")).where(
        there.c.message_id == given["message_id"],
        there.c.queue == given["queue"],
        there.c.handler.is_not_distinct_from(given["handler"]),
        there.c.side == given["side"],
        there.c.resolution.is_(None),
    )
    source = select(*given.values()).where(~open_)
    return insert(dead_letter).inline().from_select(list(BURIED), source, include_defaults=False)


def newest(selection: Selection) -> Select[Any]:
    """The newest dead letters of a selection, without payloads and headers.

    Parameters: limit. Index: outboxkit_dead_letter_open, from its end, or the primary key where resolved ones count
    too; outboxkit_dead_letter_message for message ids. Locks: none.
    """
    return select(*LISTED).where(_are(selection)).order_by(dead_letter.c.id.desc()).limit(_LIMIT)


def whole(selection: Selection) -> Select[Any]:
    """Dead letters with all they have, the oldest first. Parameters: limit. Indexes: as `newest`. Locks: none."""
    columns = (readable(column) for column in dead_letter.columns)
    return select(*columns).where(_are(selection)).order_by(dead_letter.c.id).limit(_LIMIT)


def count_by_kind(selection: Selection) -> Select[Any]:
    """How many there are of each side, type and reason, and the highest number of all.

    Reads every dead letter of the selection, without its payload. Locks: none.
    """
    kind = (dead_letter.c.side, dead_letter.c.type, dead_letter.c.reason)
    return select(*kind, func.count(), func.max(dead_letter.c.id)).where(_are(selection)).group_by(*kind)


def needs_check(selection: Selection) -> Select[Any]:
    """Those of a selection that it takes a look at to tell whether they can be replayed: all that have no place.

    Only what is looked at. Reads every dead letter of the selection, but no payload. Locks: none.
    """
    placeless = or_(dead_letter.c.side != literal_column("'outbox'"), dead_letter.c.position.is_(None))
    return select(*(readable(dead_letter.c[name]) for name in JUDGED)).where(_are(selection), placeless)


def count_released(selection: Selection) -> Select[Any]:
    """How many keys a selection parks, each of one destination, and how many messages wait behind them.

    Indexes: outboxkit_dead_letter_parked and outboxkit_outbox_held. Locks: none.
    """
    parked = select(dead_letter.c.key, dead_letter.c.destination).where(_are(selection), dead_letter.c.parked)
    keys = parked.distinct().cte("keys")
    theirs = and_(outbox.c.key == keys.c.key, outbox.c.destination == keys.c.destination)
    waiting = (
        select(func.count())
        .select_from(outbox.join(keys, theirs))
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
    asked = {name: getattr(selection, name) for name in ("type", "key", "reason", "side", "destination")}
    found += [columns[name] == value for name, value in asked.items() if value is not None]
    if selection.before is not None:
        found.append(columns.dead_at < selection.before)
    if selection.since is not None:
        found.append(columns.dead_at >= selection.since)
    return and_(true(), *found)
