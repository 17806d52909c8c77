"""Settling: the fate of claimed rows, written in the transaction that claimed them or in one that follows."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Delete,
    Insert,
    Integer,
    String,
    Text,
    Update,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    select,
    update,
)

from outboxkit.codec.rows import COLUMNS
from outboxkit.statements.dialects import among, has_one_writer, statement_time
from outboxkit.tables import PARKED, UtcDateTime, dead_letter, outbox, published

_COPIED = tuple(column.name for column in published.columns if column.name != "published_at")
_BURIED = (*_COPIED, "discard_unroutable")


def forget_rows(dialect: str) -> Delete:
    """Delete rows: the broker has confirmed their messages, or they have just been copied elsewhere.

    Parameters: positions. Index: the primary key. Locks: none beyond those that the claim holds.
    """
    return delete(outbox).where(_among_positions(dialect))


def keep_published(dialect: str) -> Insert:
    """Copy rows whose messages the broker has confirmed to `outboxkit_published`; `forget_rows` follows.

    They get the database's time: with the relays' own clocks, rows of one key could be dated in the wrong order.
    Parameters: positions. Index: the outbox's primary key. Locks: none beyond those that the claim holds.
    """
    copied = select(statement_time(dialect).label("published_at"), *(outbox.c[name] for name in _COPIED))
    return insert(published).from_select(["published_at", *_COPIED], copied.where(_among_positions(dialect)))


def reschedule() -> Update:
    """Hold a row that was not published until it is due again; executed with a list of parameters.

    Parameters: at_position; failures (attempts to add: 1, or 0 if it did not fail); error; due; now (null if it did not
    fail). Index: the primary key. Locks: none beyond those that the claim holds.
    """
    return (
        update(outbox)
        .where(outbox.c.position == bindparam("at_position"))
        .values(
            attempts=outbox.c.attempts + bindparam("failures", type_=Integer),
            last_error=bindparam("error"),
            due_at=bindparam("due", type_=UtcDateTime),
            held=True,
            first_failed_at=func.coalesce(outbox.c.first_failed_at, bindparam("now", type_=UtcDateTime)),
        )
    )


def hold_rows(dialect: str) -> Update:
    """Make rows wait behind one of their key until it is due again.

    Parameters: positions, due. Index: the primary key. Locks: none beyond those that the claim holds.
    """
    return update(outbox).where(_among_positions(dialect)).values(due_at=bindparam("due", type_=UtcDateTime), held=True)


def park(dialect: str) -> Update:
    """Make rows of a destination wait for an operator, if an earlier message of their key parks it at this moment.

    A row whose transaction was slow to commit may be claimed after a later one of its key. It is not parked then.

    No dead letter is waited for: its lock can be that of an operator who has stopped in the middle. Rows behind one
    that is locked are held until `due` and come here again. Otherwise they could be parked after their key's release.

    Parameters: positions, of_destination, due. Indexes: the outbox's primary key, outboxkit_dead_letter_parked. Locks:
    on PostgreSQL the dead letters that park the keys FOR SHARE, until the transaction ends; locked ones are skipped. An
    operator who releases a key after that waits and then finds these rows. If it was released before, none is.
    """
    keys = select(outbox.c.key).where(_among_positions(dialect))
    is_parking = (dead_letter.c.parked, dead_letter.c.destination == bindparam("of_destination", type_=String))
    parking = select(dead_letter.c.key, dead_letter.c.position).where(*is_parking, dead_letter.c.key.in_(keys))
    until: ColumnElement[Any] = literal(PARKED, UtcDateTime)
    if has_one_writer(dialect):
        before = parking.cte("parking")
        is_parked = exists().where(before.c.key == outbox.c.key, before.c.position < outbox.c.position)
    else:
        before = parking.with_for_update(read=True, skip_locked=True).cte("parking")
        is_ours = exists().where(before.c.key == outbox.c.key, before.c.position < outbox.c.position)
        until = case((is_ours, until), else_=bindparam("due", type_=UtcDateTime))
        is_before = (dead_letter.c.key == outbox.c.key, dead_letter.c.position < outbox.c.position)
        is_parked = select(dead_letter.c.key).where(*is_parking, *is_before).exists()  # not all columns: least rights
    return update(outbox).where(_among_positions(dialect), is_parked).values(due_at=until, held=True)


def add_reply() -> Insert:
    """Add a destination's answer to a row as a row of `default`, if that row still exists; a list of parameters.

    Executed before `forget_rows`, in its transaction. Parameters: at_position, and the columns of the message. Index:
    the primary key. Locks: none.
    """
    message = select(*(bindparam(name, type_=outbox.c[name].type).label(name) for name in COLUMNS))
    is_there = exists().where(outbox.c.position == bindparam("at_position", type_=BigInteger))
    return insert(outbox).inline().from_select(list(COLUMNS), message.where(is_there))


def bury(dialect: str) -> Insert:
    """Copy rows to the dead letters; `forget_rows` follows.

    Parameters: positions, reason, error, failures (attempts to add), parked, now. Index: the outbox's primary key.
    Locks: none beyond those that the claim holds.
    """
    now = bindparam("now", type_=UtcDateTime)
    copied = select(
        literal_column("'outbox'").label("side"),
        *(outbox.c[name] for name in _BURIED),
        bindparam("reason", type_=String).label("reason"),
        bindparam("error", type_=Text).label("error"),
        (outbox.c.attempts + bindparam("failures", type_=Integer)).label("attempts"),
        bindparam("parked", type_=Boolean).label("parked"),
        func.coalesce(outbox.c.first_failed_at, now).label("first_failed_at"),
        now.label("dead_at"),
    )
    names = [column.name for column in copied.selected_columns]
    return insert(dead_letter).from_select(names, copied.where(_among_positions(dialect)))


def _among_positions(dialect: str) -> ColumnElement[bool]:
    return among(dialect, outbox.c.position, "positions")
