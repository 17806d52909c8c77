"""The inbox: records of handled messages and of starts that may have killed a consumer, and their deletion in time."""

from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Delete,
    Insert,
    Integer,
    Select,
    String,
    Update,
    bindparam,
    case,
    cast,
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
from sqlalchemy.types import TypeEngine

from outboxkit.statements.dialects import (
    among,
    among_found,
    has_one_writer,
    insert_into,
    is_server,
    latest_time,
    lists,
    row_id,
    unplaced_rows,
)
from outboxkit.tables import UtcDateTime, attempt, inbox, schema_version

_KEY = [inbox.c.handler, inbox.c.message_id]
_OIDS: ColumnElement[str] = literal_column(
    "':' || outboxkit_schema_version.tableoid || ':' || "
    "(SELECT oid FROM pg_database WHERE datname = current_database())"
)
_RECORDED = ("handler", "message_id", "type", "attempts", "payload_crc", "processed_at")
_LISTS: dict[str, TypeEngine[Any]] = {
    "handlers": String(),
    "message_ids": String(),
    "types": String(),
    "attempts": Integer(),
    "payload_crcs": Integer(),
    "mades": UtcDateTime(),
}


def _installation(dialect: str) -> ColumnElement[str]:
    """A text that only these tables have. A standby has the same; the copy of a database or a schema has another."""
    own = schema_version.c.installation
    rows = select(func.max(own.concat(_OIDS) if is_server(dialect) else own)).scalar_subquery()
    return func.coalesce(rows, literal_column("''"))  # whatever became of the one row, each handler runs


ENDED = "outboxkit.transaction_of_the_inbox_row_has_ended"
"""A setting that does not exist: to ask for it is an error whose text has this name."""
MARK = " (batch)"
"""The end of a session's name during a transaction of a batch.

PostgreSQL tells the driver of the name of its session, an `application_name`, when it changes.
"""
NAME_BYTES = 63 - len(MARK)
"""The length to which names of sessions are cut, in characters of ASCII: with the mark, PostgreSQL keeps 63."""


def _set(name: str, value: ColumnElement[str]) -> ColumnElement[str]:
    """Set one of the guard's settings for this transaction. `guard` is read at the insert, `lifted` at the COMMIT."""
    return func.set_config(literal_column(f"'outboxkit.{name}'", String), value, true())


def _processed_at(dialect: str, moment: ColumnElement[Any], *, guarded: bool) -> ColumnElement[Any]:
    """The time, before which the guard is set: the trigger `outboxkit_guard` reads it right after the insert."""
    time = latest_time(dialect, moment)
    on = literal_column("'on'", String)
    return case((_set("guard", on) == on, time)) if guarded and is_server(dialect) else time


def _guard(dialect: str, *, guarded: bool) -> list[ColumnElement[str]]:
    """Columns of a new row: the transaction, which is known by its number, and that its COMMIT is not allowed."""
    if not guarded or not is_server(dialect):
        return []
    return [cast(func.pg_current_xact_id(), String), _set("lifted", literal_column("'no'"))]


def _mark(dialect: str, *, guarded: bool) -> list[ColumnElement[str]]:
    """A column of a new row, which marks the transaction."""
    if not guarded or not is_server(dialect):
        return []
    setting, sign = (literal_column(f"'{word}'", String) for word in ("application_name", MARK))
    name = func.current_setting(setting)
    is_marked = func.right(name, literal_column(str(len(MARK)))) == sign  # from the second row on
    marked = func.left(name, literal_column(str(NAME_BYTES))).concat(sign)
    return [func.set_config(setting, case((is_marked, name), else_=marked), true())]


@cache
def is_transaction() -> Select[bool]:
    """Whether the session is in this transaction, which has written. PostgreSQL only.

    Parameters: transaction (its number). Locks: none.
    """
    return select(func.coalesce(_is_the_same(), false()))


def _is_the_same() -> ColumnElement[bool]:
    return cast(func.pg_current_xact_id_if_assigned(), String) == bindparam("transaction", type_=String)


@cache
def lift_guard() -> Select[Any]:
    """Allow the COMMIT. If this is not the transaction of the inbox row any more, it fails with `ENDED`.

    PostgreSQL only. Parameters: transaction (its number). Locks: none.
    """
    ended = func.current_setting(literal_column(f"'{ENDED}'"))
    return select(_set("lifted", case((_is_the_same(), literal_column("'yes'")), else_=ended)))


@cache
def record_processed(dialect: str, *, guarded: bool = False) -> ReturningInsert[Any]:
    """Claim the right to run a handler for a message: returns id and installation, and no row for a duplicate.

    The returned row tells, since SQLAlchemy keeps no row count of an INSERT. `processed_at` is the message's own time
    if that is later than the database's.

    Parameters: handler, message_id, type, attempts, payload_crc, made (the message's own time, or None). Index: the
    primary key. Locks: if an open transaction has inserted the same pair, this one waits for it. After its commit
    nothing is inserted, after its rollback this insert goes on. If it is `guarded`, on a server, it also returns
    the transaction's number, and no COMMIT succeeds until `lift_guard`.
    """
    row: dict[str, Any] = {name: bindparam(name) for name in _RECORDED[:-1]}
    row["processed_at"] = _processed_at(dialect, bindparam("made", type_=UtcDateTime), guarded=guarded)
    statement: ReturningInsert[Any] = (
        insert_into(dialect, inbox)
        .values(row)
        .on_conflict_do_nothing(index_elements=_KEY)
        .returning(inbox.c.message_id, _installation(dialect), *_guard(dialect, guarded=guarded))
    )
    return statement


@cache
def record_all(dialect: str, *, guarded: bool = False) -> ReturningInsert[Any]:
    """`record_processed` for any number of rows in one statement; returns the handler, id and installation of new rows.

    A pair that occurs twice is inserted and returned once. If it is `guarded`, the session's name ends with `MARK`
    until the end of the transaction.

    Parameters: handlers, message_ids, types, attempts, payload_crcs, mades: a list each, of one length. Index: the
    primary key. Locks: as `record_processed`, row by row in the order of the lists. A caller that always sorts by
    handler and id meets no deadlock.
    """
    source = lists(dialect, _LISTS)
    time = _processed_at(dialect, source.c["mades"], guarded=guarded)
    rows = source.select(*(source.c[name] for name in list(_LISTS)[:-1]), time)
    into = insert_into(dialect, inbox).from_select(_RECORDED, rows, include_defaults=False)
    statement: ReturningInsert[Any] = into.on_conflict_do_nothing(index_elements=_KEY).returning(
        *_KEY, _installation(dialect), *_guard(dialect, guarded=guarded), *_mark(dialect, guarded=guarded)
    )
    return statement


@cache
def payload_crcs(dialect: str) -> Select[str, str, int]:
    """The handler, the id and the `payload_crc` of rows of these handlers and messages.

    Parameters: handlers, ids. Index: the primary key. Locks: none.
    """
    ours = (among(dialect, inbox.c.handler, "handlers"), among(dialect, inbox.c.message_id, "ids"))
    return select(*_KEY, inbox.c.payload_crc).where(*ours)


def probe_writable() -> Insert:
    """Check that the database answers and accepts writes: a read-only one refuses even this insert of no rows.

    Index: none. Locks: none that block others.
    """
    columns = inbox.c.handler, inbox.c.message_id, inbox.c.type
    none = select(*(literal_column("''", type_=column.type) for column in columns)).where(false())
    return insert(inbox).from_select(columns, none, include_defaults=False)


def prune_inbox(dialect: str, before: datetime, limit: int) -> Delete:
    """Delete at most `limit` rows with `processed_at` before this time that are in no day's partition.

    Index: outboxkit_inbox_processed on PostgreSQL; none on SQLite, where the scan stops at the limit. Locks: the rows
    that it deletes.
    """
    rows = table(unplaced_rows(dialect, inbox), column("processed_at", UtcDateTime))
    old = select(row_id(dialect)).select_from(rows).where(rows.c.processed_at < before).limit(limit)
    old = old if has_one_writer(dialect) else old.order_by(rows.c.processed_at)
    return delete(rows).where(among_found(dialect, row_id(dialect), old))


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
    """Count the starts as ended, and the failure with the number `failed`; returns failures and first_failed_at.

    Repeated after a commit whose answer was lost, it counts no second one.

    Parameters: queue, message_id, failed. Index: the primary key. Locks: the row.
    """
    failed = bindparam("failed", type_=Integer)
    changed = {
        "starts": _ZERO,
        "failures": case((attempt.c.failures > failed, attempt.c.failures), else_=failed),
        "first_failed_at": func.coalesce(attempt.c.first_failed_at, _NOW),
        "touched_at": _NOW,
    }
    first = {"starts": _ZERO, "failures": failed, "first_failed_at": _NOW}
    return _count(dialect, first, changed, *_COUNTED[1:])


NOTED = ("handler", "type", "key", "attempt", "error", "next_at")
"""The columns of a message that is tried again."""


@cache
def note_retry(dialect: str) -> Insert:
    """Note the failure of a message that is tried again, unless `most` messages of the queue are noted already.

    Parameters: queue, message_id, most, and each of `NOTED`. Index: the primary key; it reads `most` rows of the queue
    at most. Locks: the row.
    """
    noted = select(_ONE).where(attempt.c.queue == bindparam("queue"), attempt.c.error.is_not(None))
    few = select(func.count()).select_from(noted.limit(bindparam("most", type_=Integer)).subquery("noted"))
    row = {name: bindparam(name, type_=attempt.c[name].type) for name in ("queue", "message_id", *NOTED)}
    values = row | {"first_failed_at": _NOW, "touched_at": _NOW}
    source = select(*values.values()).where(few.scalar_subquery() < bindparam("most", type_=Integer))
    into = insert_into(dialect, attempt).from_select(list(values), source, include_defaults=False)
    changed = {name: into.excluded[name] for name in (*NOTED, "touched_at")}
    upsert: Insert = into.on_conflict_do_update(index_elements=_ROW_KEY, set_=changed)
    return upsert


@cache
def forget_attempts(dialect: str) -> Delete:
    """Delete the counts of messages of a queue: they were handled, or are dead letters.

    Parameters: queue, ids. Index: the primary key. Locks: the rows.
    """
    return delete(attempt).where(attempt.c.queue == bindparam("queue"), among(dialect, attempt.c.message_id, "ids"))


@cache
def call_off() -> Update:
    """Subtract a start that ended without a result, and not because of the message.

    Parameters: at_queue, at_message_id. Index: the primary key. Locks: the row.
    """
    row = attempt.c.queue == bindparam("at_queue"), attempt.c.message_id == bindparam("at_message_id")
    return update(attempt).where(*row).values(starts=attempt.c.starts - _ONE, touched_at=_NOW)


def prune_attempts(before: datetime, limit: int) -> Delete:
    """Delete at most `limit` counts that have not changed since this time.

    Index: none on the time; the table has few rows. Locks: the rows that it deletes.
    """
    old = select(*_ROW_KEY).where(attempt.c.touched_at < before).limit(limit)
    return delete(attempt).where(tuple_(*_ROW_KEY).in_(old))


def _count(dialect: str, first: dict[str, Any], changed: dict[str, Any], *returned: Any) -> ReturningInsert[Any]:
    row = {"queue": bindparam("queue"), "message_id": bindparam("message_id")} | first
    upsert = insert_into(dialect, attempt).values(row).on_conflict_do_update(index_elements=_ROW_KEY, set_=changed)
    counted: ReturningInsert[Any] = upsert.returning(*returned)
    return counted
