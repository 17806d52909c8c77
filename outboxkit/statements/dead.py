"""Dead letters: written, listed and counted; `resolve` replays and discards them."""

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
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
)

from outboxkit.codec.rows import COLUMNS, TEXTS
from outboxkit.statements.dialects import insert_into
from outboxkit.tables import PARKED, UtcDateTime, dead_letter, outbox, readable


@dataclass(frozen=True, slots=True)
class Selection:
    """A choice of dead letters: those that match every field that is set.

    Attributes:
        numbers, message_ids: with one of these numbers or message ids; if both are empty, all.
        type, key, reason, side, destination: as the columns.
        before: dead before this time.
        since: dead at this time or later.
        resolved: whether replayed and discarded ones are included.
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
"""The columns of a list: all but those that may be large."""

BURIED = ("side", "handler", *COLUMNS, "reason", "error", "attempts", "first_failed_at", "traceback")
"""The columns that the consumer writes for a message that it gives up."""

JUDGED = ("side", *TEXTS, "created_at", "reason", "position")
"""The columns that decide whether a dead letter can be replayed."""

_LIMIT = bindparam("limit", type_=BigInteger)
_PARKED = literal(PARKED, UtcDateTime)


def bury_once(dialect: str) -> Insert:
    """Write a consumer's dead letter, unless an open one of this message, queue and handler exists.

    A consumer that is killed between this and its ack gets the message again, and buries it again. Two may also bury it
    at the same moment. A message without an id equals no other, and is always inserted.

    Parameters: a dict of `BURIED`, or a list of them, in the order of their handlers. Indexes:
    outboxkit_dead_letter_once and outboxkit_dead_letter_unhandled. Locks: the new row; a second burial of it waits for
    the first one's end.
    """
    values = {name: bindparam(name, type_=dead_letter.c[name].type) for name in BURIED}
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

    Parameters: limit. Index: outboxkit_dead_letter_open, from its end, or the primary key if resolved ones are
    included; outboxkit_dead_letter_message for message ids. Locks: none.
    """
    return select(*LISTED).where(_are(selection)).order_by(dead_letter.c.id.desc()).limit(_LIMIT)


def count_newest(selection: Selection) -> Select[int]:
    """The number of dead letters of a selection, up to `limit`.

    Parameters: limit. Index: outboxkit_dead_letter_open, or as `newest`. Locks: none.
    """
    newest = select(dead_letter.c.id).where(_are(selection)).order_by(dead_letter.c.id.desc()).limit(_LIMIT)
    return select(func.count()).select_from(newest.subquery("newest"))


def whole(selection: Selection) -> Select[Any]:
    """Dead letters with all their columns, the oldest first. Parameters: limit. Indexes: as `newest`. Locks: none."""
    columns = (readable(column) for column in dead_letter.columns)
    return select(*columns).where(_are(selection)).order_by(dead_letter.c.id).limit(_LIMIT)


def count_by_kind(selection: Selection) -> Select[Any]:
    """The number of dead letters of each side, type and reason, and the highest number of all.

    Reads every dead letter of the selection, without its payload. Locks: none.
    """
    kind = (dead_letter.c.side, dead_letter.c.type, dead_letter.c.reason)
    return select(*kind, func.count(), func.max(dead_letter.c.id)).where(_are(selection)).group_by(*kind)


def replay_candidates(selection: Selection) -> Select[Any]:
    """The dead letters of the inbox, or without a position, in a selection: the rules have to judge them.

    Only the columns for that check. Reads every dead letter of the selection, but no payload. Locks: none.
    """
    placeless = or_(dead_letter.c.side != literal_column("'outbox'"), dead_letter.c.position.is_(None))
    return select(*(readable(dead_letter.c[name]) for name in JUDGED)).where(_are(selection), placeless)


def count_released(selection: Selection) -> Select[Any]:
    """The number of keys that a selection parks, each of one destination, and of the messages that wait behind them.

    Indexes: outboxkit_dead_letter_parked and outboxkit_outbox_held. Locks: none.
    """
    parked = select(dead_letter.c.key, dead_letter.c.destination).where(_are(selection), dead_letter.c.parked)
    keys = parked.distinct().cte("keys")
    same_key = and_(outbox.c.key == keys.c.key, outbox.c.destination == keys.c.destination)
    waiting = (
        select(func.count())
        .select_from(outbox.join(keys, same_key))
        .where(outbox.c.held, outbox.c.due_at == _PARKED)
        .scalar_subquery()
    )
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


def _are(selection: Selection) -> ColumnElement[bool]:
    columns = dead_letter.c
    conditions: list[ColumnElement[bool]] = [] if selection.resolved else [columns.resolution.is_(None)]
    identities = []
    if selection.numbers:
        identities.append(columns.id.in_(selection.numbers))
    if selection.message_ids:
        identities.append(columns.message_id.in_(selection.message_ids))
    if identities:
        conditions.append(or_(*identities))
    equal = {name: getattr(selection, name) for name in ("type", "key", "reason", "side", "destination")}
    conditions += [columns[name] == value for name, value in equal.items() if value is not None]
    if selection.before is not None:
        conditions.append(columns.dead_at < selection.before)
    if selection.since is not None:
        conditions.append(columns.dead_at >= selection.since)
    return and_(true(), *conditions)
