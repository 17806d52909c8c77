"""The SQLSTATEs that outboxkit tells apart, by what they mean to it (PostgreSQL, appendix A). Pure.

A state of two or three characters stands for all that begin with it. SQLite has result codes in their place.
"""

import re
from collections.abc import Mapping
from typing import Any

DEADLOCK, SERIALIZATION_FAILURE, LOCK_NOT_AVAILABLE = "40P01", "40001", "55P03"
CANCELED = "57014"
"""A statement was cancelled, or has taken longer than its timeout."""

# Away: the database cannot be reached now, or takes no writes.
UNPREPARED = ("26000", "42P05", "08P01")
"""A prepared statement that the session does not have, has already, or that takes other parameters. A pooler has given
the session to another client. The last state is also any other breach of the protocol."""
READ_ONLY = "25006"
AWAY = ("08", "57P01", "57P02", "57P03", "53300", READ_ONLY, *UNPREPARED)
"""Connection failures, shutdown, crash, starting up, too many connections, and read-only: a standby before or after
its promotion. And sessions that a pooler has mixed up."""
CANNOT_OPEN, NO_ROOM = 14, 13
AWAY_CODES = frozenset({5, 6, 10, NO_ROOM, CANNOT_OPEN})
"""SQLITE_BUSY, SQLITE_LOCKED, SQLITE_IOERR, SQLITE_FULL, SQLITE_CANTOPEN."""

# Transient: the same statement may succeed a moment later.
TRANSIENT = (CANCELED, "25P03", DEADLOCK, SERIALIZATION_FAILURE, LOCK_NOT_AVAILABLE, "53", "58")
"""Cancelled, idle for too long, deadlock, serialization, lock not available, out of resources, system trouble. For
statements of our own they say nothing about the work. In a handler's transaction they may be the handler's doing."""
CONFLICT = (SERIALIZATION_FAILURE, DEADLOCK)
"""The transaction has only collided with another one."""
LOCKED = (LOCK_NOT_AVAILABLE, DEADLOCK)
"""Another transaction has the lock, and goes on."""

# Ours: the statement, its values or the role's rights are to blame.
NO_RIGHT = "42501"
TAKEN = ("42P07", "42P17")
"""A table of that name is there, or its range is taken by a partition that another process has made."""
NO_TABLE, NO_COLUMN = "42P01", "42703"
CHECK_VIOLATION = "23514"
"""Also of an insert that meets a partition being attached."""
DATA_EXCEPTION = "22"
"""A value that its column cannot hold; the error's first line ends with it."""


DISK_FULL, OF_STATEMENT = "53100", ("pgsql_tmp", "/PostgreSQL.", "pg_dynshmem")
"""The others are in the names of what one statement fills: the files of a sort, the shared memory of its workers."""
ABORTED = "25P02"
"""The transaction takes no more statements: an earlier one failed."""
NO_END = "2D000"
"""A COMMIT or a ROLLBACK at a place that allows none."""
ATTRIBUTES = ("sqlstate", "pgcode")
"""The names under which errors of drivers have their state; the second is psycopg2's."""


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE of an error of SQLAlchemy or of a driver; None if it has none."""
    original = getattr(error, "orig", error)
    states = (getattr(original, name, None) for name in ATTRIBUTES)
    return next((str(state) for state in states if state is not None), None)


_OWN_STATEMENT = "_pg3_"
"""The beginning of the names under which psycopg prepares statements."""


def is_disk_full(error: BaseException | None) -> bool:
    """Whether the database has no room for rows, which says nothing about the work."""
    original = getattr(error, "orig", error)
    if getattr(original, "sqlite_errorcode", 0) & 0xFF == NO_ROOM:
        return True
    return (
        error is not None
        and sqlstate_of(error) == DISK_FULL
        and not any(name in str(original) for name in OF_STATEMENT)
    )


def is_handlers_statement(error: BaseException) -> bool:
    """Whether a missing or doubled prepared statement is one that a handler prepared by SQL, and not the driver's."""
    is_prepared = sqlstate_of(error) in UNPREPARED[:2]
    return is_prepared and _OWN_STATEMENT not in str(getattr(error, "orig", error))


ROLE = "role "
"""The beginning of the note by which an error of a missing right names the role."""


def note_role(error: BaseException, options: Mapping[str, Any], driver: Any) -> None:
    """Have an error of a missing right name the role, in a note that `schema.cure_of` reads.

    Args:
        error: SQLAlchemy's.
        options: those of the database's URL, which may set a role.
        driver: the driver's connection, which knows its user.
    """
    if sqlstate_of(error) != NO_RIGHT:
        return
    option = re.search(r"-c\s*role=(\w+)", str(options.get("options", "")))
    if user := option[1] if option else getattr(getattr(driver, "info", None), "user", None):
        error.add_note(f"{ROLE}{user}")


FULL = re.compile(r"too many connections|too many clients|remaining connection slots")
"""The text of a refusal of a server that is there, and has no connection left."""
REFUSED_CONNECTIONS = (
    (
        r"authentication failed|no password supplied|[Rr]ole .+ does not exist|is not permitted to log in|no such user",
        "password",
        "are user and password right? An @ in a password is written %40",
    ),
    (
        r"pg_hba\.conf|SSL off|SSL on",
        "access",
        "the server's pg_hba.conf lets this user, address or encryption not in",
    ),
    (r"database .+ does not exist|no such database", "missing", "is the name right?"),
    (
        r"certificate file .+ does not exist|could not (load|read|get) .*(certificate|key) file",
        "file",
        "correct sslrootcert, sslcert or sslkey behind the ?",
    ),
)
"""Refusals of a connection that a setting or a right causes, and no outage: how the text reads, the kind, and the cure.

libpq has no SQLSTATE for an error of connecting, and the text is in the language of the server's lc_messages.
"""


def refused_connection(error: BaseException) -> tuple[str, str] | None:
    """The kind and the cure of a connection that was refused for a setting or a right; None for another error."""
    original = getattr(error, "orig", error)
    if getattr(original, "sqlite_errorcode", 0) & 0xFF == CANNOT_OPEN:
        return "file", "is the path right? Its folder must be there, and this user must be allowed to write to it"
    if sqlstate_of(error) is not None:
        return None
    text = str(original)
    return next(((kind, cure) for pattern, kind, cure in REFUSED_CONNECTIONS if re.search(pattern, text)), None)


def is_missing_table(error: BaseException) -> bool:
    """Whether a statement has named a table that is not there. SQLite says so in words alone."""
    return sqlstate_of(error) == NO_TABLE or "no such table" in str(getattr(error, "orig", ""))


def is_refused_row(error: BaseException) -> bool:
    """Whether a table has refused a row, perhaps because it has no partition for it."""
    return sqlstate_of(error) == CHECK_VIOLATION


def is_missing_column(error: BaseException) -> bool:
    """Whether a statement has named a column that is not there. SQLite says so in words alone."""
    text = str(getattr(error, "orig", ""))
    return sqlstate_of(error) == NO_COLUMN or "no such column" in text or "has no column named" in text
