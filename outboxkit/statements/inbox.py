"""The inbox: records of handled messages."""

from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Insert,
    Integer,
    Select,
    String,
    bindparam,
    case,
    cast,
    false,
    func,
    insert,
    literal_column,
    select,
    true,
)
from sqlalchemy.sql.dml import ReturningInsert
from sqlalchemy.types import TypeEngine

from outboxkit.statements.dialects import (
    among,
    insert_into,
    is_server,
    latest_time,
    lists,
)
from outboxkit.tables import UtcDateTime, inbox, schema_version

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
