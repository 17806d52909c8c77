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
    insert,
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
    """The statement that inserts these rows in their order, and its parameters: one of the four that follow."""
    if len(rows) > 1 and is_server(dialect):
        many = insert_many_unless_there if unless_there else insert_many
        return many(dialect), {name: [row[name] for row in rows] for name in NAMES}
    return insert_one_unless_there(dialect) if unless_there else insert_one(), rows


@cache
def insert_one() -> Insert:
    """Insert a row without RETURNING, for which a writer would need more than the INSERT privilege.

    Parameters: a dict of `WRITTEN`, on SQLite a list of them. Locks: none.
    """
    return insert(outbox).inline()


@cache
def insert_many(dialect: str) -> Insert:
    """Insert rows in their order: one statement, and one text, for any number of them. PostgreSQL only.

    Parameters: for each column of `WRITTEN` the list of its values. Locks: none.
    """
    return insert(outbox).from_select(NAMES, _rows(dialect))


@cache
def insert_one_unless_there(dialect: str) -> Insert:
    """`insert_one`, but nothing if the outbox has a row with this id that was added with `dedup` too.

    Index: outboxkit_outbox_dedup. Locks: if an open transaction has inserted the same id, this one waits for it. After
    its commit nothing is inserted, after its rollback this insert goes on.
    """
    return _unless_there(insert_into(dialect, outbox).inline())


@cache
def insert_many_unless_there(dialect: str) -> Insert:
    """`insert_many`, but no rows with an id that the outbox has, if both have `dedup`. PostgreSQL only.

    Index: outboxkit_outbox_dedup. Locks: as `insert_one_unless_there`, for each row.
    """
    return _unless_there(insert_into(dialect, outbox).from_select(NAMES, _rows(dialect)))


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


def _unless_there(rows: Any) -> Insert:
    statement: Insert = rows.on_conflict_do_nothing(index_elements=["message_id"], index_where=outbox.c.dedup)
    return statement


def _rows(dialect: str) -> Select[Any]:
    source = lists(dialect, {written.name: written.type for written in WRITTEN})
    return source.select(*source.c.values())
