"""Writing: new rows in the user's transaction, the lock that keeps a key's writers in order, and cancelling.

New rows have the columns of `WRITTEN`; the others are the relay's.
"""

from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    Delete,
    Insert,
    Integer,
    Select,
    String,
    bindparam,
    cast,
    column,
    delete,
    func,
    literal_column,
    select,
)

from outboxkit.codec.rows import COLUMNS, Sending
from outboxkit.statements.dialects import insert_into, is_server, lists
from outboxkit.tables import outbox

NAMES = (*COLUMNS, *Sending._fields)
WRITTEN = tuple(outbox.c[name] for name in NAMES)
"""The columns of a new row, in their order."""

KEY_LOCKS = 1024
"""The number of locks that all keys of `strict_order` share; a power of two."""
KEY_LOCK_SPACE = 0x6F75_746B
"""The first of the two numbers of a key's lock, "outk": it cannot collide with locks of one number."""


WrittenRow = dict[str, Any]
"""The columns of `WRITTEN`."""


def insert_rows(
    dialect: str, rows: list[WrittenRow], *, unless_there: bool
) -> tuple[Insert, list[WrittenRow] | dict[str, list[object]]]:
    """The statement that inserts these rows in their order, and its parameters: one of the two that follow."""
    if len(rows) > 1 and is_server(dialect):
        lists_of = {name: [row[name] for row in rows] for name in NAMES}
        return insert_many(dialect, unless_there=unless_there), lists_of
    return insert_one(dialect, unless_there=unless_there), rows


@cache
def insert_one(dialect: str, *, unless_there: bool) -> Insert:
    """Insert a row without RETURNING, for which a writer would need more than the INSERT privilege.

    Nothing is inserted with `unless_there` if the outbox has a row with this id that was added with `dedup` too.

    Parameters: a dict of `WRITTEN`, on SQLite a list of them. Index: outboxkit_outbox_dedup. Locks: none; but with
    `unless_there`, if an open transaction has inserted the same id, this one waits for it. After its commit nothing is
    inserted, after its rollback this insert goes on.
    """
    return _unless(insert_into(dialect, outbox).inline(), there=unless_there)


@cache
def insert_many(dialect: str, *, unless_there: bool) -> Insert:
    """`insert_one` for any number of rows in their order, in one statement, and one text. PostgreSQL only.

    Parameters: for each column of `WRITTEN` the list of its values. Locks: as `insert_one`, for each row.
    """
    source = lists(dialect, {written.name: written.type for written in WRITTEN})
    rows = insert_into(dialect, outbox).from_select(NAMES, source.select(*source.c.values()))
    return _unless(rows, there=unless_there)


def _unless(rows: Any, *, there: bool) -> Insert:
    index = {"index_elements": ["message_id"], "index_where": outbox.c.dedup}
    statement: Insert = rows.on_conflict_do_nothing(**index) if there else rows
    return statement


def lock_keys() -> Select[Any]:
    """Wait until every other transaction that took the lock of one of these keys has ended. PostgreSQL only.

    Parameters: keys. Index: none. Locks: transaction-level advisory locks in a space of their own. Each key maps to one
    of `KEY_LOCKS` numbers, so that any number of keys fits into the server's table of locks. They are taken in the
    order of their numbers, which is the same in every transaction: the locks are taken above the subquery's ORDER BY.
    """
    keys = (
        func.unnest(bindparam("keys", type_=ARRAY(String))).table_valued(column("key", String)).render_derived("given")
    )
    hashed = func.hashtextextended(literal_column("'outboxkit:'").concat(keys.c.key), literal_column("0"))
    number = cast(hashed.bitwise_and(literal_column(str(KEY_LOCKS - 1))), Integer)
    numbers = select(number.label("number")).distinct().order_by("number").subquery("wanted")
    return select(func.pg_advisory_xact_lock(literal_column(str(KEY_LOCK_SPACE)), numbers.c.number))


def cancel_delayed() -> Delete:
    """Delete a message that waits for its time, a retry, or an operator.

    Parameters: message_id. Index: outboxkit_outbox_delayed. Locks: the row; if a relay has it, this waits for it.
    """
    return delete(outbox).where(outbox.c.message_id == bindparam("message_id"), outbox.c.due_at.is_not(None))


def cancel_message() -> Delete:
    """Delete a message in any state, also one that a relay has just rescheduled.

    Parameters: message_id. Index: none, it reads the whole outbox. Locks: as `cancel_delayed`.
    """
    return delete(outbox).where(outbox.c.message_id == bindparam("message_id"))
