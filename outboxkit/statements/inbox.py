"""The inbox: recording what was processed and which starts may have killed a consumer, and forgetting both in time."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Delete,
    Dialect,
    Insert,
    Integer,
    Select,
    String,
    Text,
    TypeDecorator,
    Update,
    any_,
    bindparam,
    column,
    delete,
    false,
    func,
    insert,
    literal_column,
    select,
    table,
    true,
    tuple_,
    update,
)
from sqlalchemy.sql.dml import ReturningInsert

from outboxkit.statements.conflicts import insert_into
from outboxkit.tables import UtcDateTime, attempt, inbox

DEFAULT = f"{inbox.name}_default"
"""The partition of ids that are no UUIDv7 of a day that has a partition."""

_KEY = [inbox.c.handler, inbox.c.message_id]
_RECORDED = ("handler", "message_id", "type", "attempts", "processed_at")


@cache
def record_processed(dialect: str) -> ReturningInsert[str]:
    """Claim the right to run a handler for a message: returns the id the first time, no row for a duplicate.

    The returned row is what tells: SQLAlchemy keeps no row count of an INSERT. `processed_at` is the message's own
    time where that is later than the database's.

    Parameters: handler, message_id, type, attempts, made (the message's own time, or None). Index: the primary key.
    Locks: where another transaction has inserted the same pair and is still open, this one waits for it: after its
    commit nothing is inserted, after its rollback this insert goes on.
    """
    row: dict[str, Any] = {name: bindparam(name) for name in _RECORDED[:-1]}
    row["processed_at"] = _not_before(dialect, bindparam("made", type_=UtcDateTime))
    made: ReturningInsert[str] = (
        insert_into(dialect, inbox)
        .values(row)
        .on_conflict_do_nothing(index_elements=_KEY)
        .returning(inbox.c.message_id)
    )
    return made


@cache
def record_all(dialect: str) -> ReturningInsert[str, str]:
    """`record_processed` for any number of rows: one statement, one text; returns handler and id of the new ones.

    A pair that is given twice is inserted and returned once.

    Parameters: handlers, message_ids, types, attempts, mades: a list each, of one length. Index: the primary key.
    Locks: as `record_processed`, row by row in the order of the lists; who always sorts by handler and id meets no
    deadlock.
    """
    rows = _json_rows() if dialect == "sqlite" else _array_rows()
    into = insert_into(dialect, inbox).from_select(_RECORDED, rows, include_defaults=False)
    made: ReturningInsert[str, str] = into.on_conflict_do_nothing(index_elements=_KEY).returning(*_KEY)
    return made


@cache
def took() -> Update:
    """Note how long a handler took. Parameters: at_handler, at_message_id, milliseconds.

    Index: the primary key. Locks: the row, which the same transaction has inserted.
    """
    this = (inbox.c.handler == bindparam("at_handler"), inbox.c.message_id == bindparam("at_message_id"))
    return update(inbox).where(*this).values(duration_ms=bindparam("milliseconds"))


def probe_writable() -> Insert:
    """Find out whether the database is there and takes rows: one that is read-only refuses although there is none.

    Index: none. Locks: none that anybody waits for.
    """
    columns = inbox.c.handler, inbox.c.message_id, inbox.c.type
    none = select(*(literal_column("''", type_=column.type) for column in columns)).where(false())
    return insert(inbox).from_select(columns, none, include_defaults=False)


def prune_inbox(dialect: str, before: datetime, limit: int) -> Delete:
    """Forget at most `limit` rows with `processed_at` before this moment that are in no day's partition.

    Index: outboxkit_inbox_processed on PostgreSQL; none on SQLite, where the scan stops at the limit. Locks: the rows
    that it deletes.
    """
    if dialect == "sqlite":
        key = tuple_(*_KEY)
        return delete(inbox).where(key.in_(select(*_KEY).where(inbox.c.processed_at < before).limit(limit)))
    rows = table(DEFAULT, column("ctid"), column("processed_at", UtcDateTime))
    old = select(rows.c.ctid).where(rows.c.processed_at < before).order_by(rows.c.processed_at).limit(limit)
    return delete(rows).where(rows.c.ctid == any_(func.array(old.scalar_subquery())))


class _Listed(TypeDecorator[Sequence[Any]]):
    """A list as a JSON array, for SQLite; moments as the text that it keeps them as."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Sequence[Any] | None, dialect: Dialect) -> str:  # noqa: ARG002
        return json.dumps([_as_text(one) if isinstance(one, datetime) else one for one in value or ()])


def _as_text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"


def _not_before(dialect: str, made: ColumnElement[Any]) -> ColumnElement[Any]:
    """The database's time, or `made` where that is later; SQLite's texts of times sort as the times do."""
    now = func.current_timestamp()
    return func.max(now, func.coalesce(made, now)) if dialect == "sqlite" else func.greatest(now, made)


def _array_rows() -> Select[Any]:
    kinds = {"handlers": String, "message_ids": String, "types": String, "attempts": Integer, "mades": UtcDateTime}
    names = ("handler", "message_id", "type", "attempts", "made")
    given = (
        func.unnest(*(bindparam(name, type_=ARRAY(kind)) for name, kind in kinds.items()))
        .table_valued(
            *(column(name, kind) for name, kind in zip(names, kinds.values(), strict=True)), with_ordinality="place"
        )
        .render_derived("given")
    )
    columns = (*(given.c[name] for name in names[:-1]), _not_before("postgresql", given.c.made))
    return select(*columns).order_by(given.c.place)


def _json_rows() -> Select[Any]:
    given = func.json_each(bindparam("handlers", type_=_Listed)).table_valued("key", "value", name="given")
    place = func.printf(literal_column("'$[%d]'"), given.c.key)
    others = [
        func.json_extract(bindparam(name, type_=_Listed), place)
        for name in ("message_ids", "types", "attempts", "mades")
    ]
    columns = (given.c.value, *others[:-1], _not_before("sqlite", others[-1]))
    return select(*columns).where(true()).order_by(given.c.key)  # without a WHERE, SQLite takes ON CONFLICT for a join


_ROW_KEY = list(attempt.primary_key)
_COUNTED = (attempt.c.starts, attempt.c.failures, attempt.c.first_failed_at)
_ONE, _ZERO = literal_column("1", Integer), literal_column("0", Integer)
_NOW = func.current_timestamp()


@cache
def start(dialect: str) -> ReturningInsert[Any]:
    """Count a start before the handler is called; returns starts (with this one), failures and first_failed_at.

    Parameters: queue, message_id. Index: the primary key. Locks: the row.
    """
    changed = {"starts": attempt.c.starts + _ONE, "touched_at": _NOW}
    return _count(dialect, {"starts": _ONE}, changed, *_COUNTED)


@cache
def fail(dialect: str) -> ReturningInsert[Any]:
    """Count a failure, and the starts as ended; returns failures (with this one) and first_failed_at.

    Parameters: queue, message_id. Index: the primary key. Locks: the row.
    """
    changed = {
        "starts": _ZERO,
        "failures": attempt.c.failures + _ONE,
        "first_failed_at": func.coalesce(attempt.c.first_failed_at, _NOW),
        "touched_at": _NOW,
    }
    first = {"starts": _ZERO, "failures": _ONE, "first_failed_at": _NOW}
    return _count(dialect, first, changed, *_COUNTED[1:])


@cache
def call_off() -> Update:
    """A start has ended without an answer, and it was not the message that ended it: it does not count.

    Parameters: at_queue, at_message_id. Index: the primary key. Locks: the row.
    """
    this = attempt.c.queue == bindparam("at_queue"), attempt.c.message_id == bindparam("at_message_id")
    return update(attempt).where(*this).values(starts=attempt.c.starts - _ONE, touched_at=_NOW)


@cache
def forget() -> Delete:
    """The message is done with: handled, or among the dead letters.

    Parameters: queue, message_id. Index: the primary key. Locks: the row.
    """
    return delete(attempt).where(*_this())


def prune_attempts(before: datetime, limit: int) -> Delete:
    """Forget at most `limit` counts that nothing has changed since before this moment.

    Index: none on the time; the table has few rows. Locks: the rows that it deletes.
    """
    old = select(*_ROW_KEY).where(attempt.c.touched_at < before).limit(limit)
    return delete(attempt).where(tuple_(*_ROW_KEY).in_(old))


def _count(dialect: str, first: dict[str, Any], changed: dict[str, Any], *returned: Any) -> ReturningInsert[Any]:
    row = {"queue": bindparam("queue"), "message_id": bindparam("message_id")} | first
    upsert = insert_into(dialect, attempt).values(row).on_conflict_do_update(index_elements=_ROW_KEY, set_=changed)
    counted: ReturningInsert[Any] = upsert.returning(*returned)
    return counted


def _this() -> tuple[ColumnElement[bool], ...]:
    return attempt.c.queue == bindparam("queue"), attempt.c.message_id == bindparam("message_id")
