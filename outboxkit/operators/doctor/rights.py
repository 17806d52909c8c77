"""The rights of this role, and of the roles of outboxkit's sessions: what is missing for their work."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from outboxkit import statements
from outboxkit.database.session_names import CONSUMER_SESSION, RELAY_SESSION, RETENTION_SESSION
from outboxkit.errors.figures import printable_name
from outboxkit.operators.doctor.installation import Database
from outboxkit.operators.findings import Diagnosis, finding, quoted
from outboxkit.runtime.settings import Settings

_ALL = "SELECT, INSERT, UPDATE, DELETE"
NEEDED: dict[str, dict[str, str]] = {
    "add messages": {"outbox": "INSERT"},
    "relay": {
        "outbox": "SELECT, DELETE, UPDATE (due_at, held, attempts, last_error, first_failed_at)",
        "dead_letter": "INSERT, UPDATE (parked), "
        "SELECT (id, key, destination, position, parked, side, reason, resolution)",
        "listener": _ALL,
        "worker": _ALL,
        "schema_version": "SELECT",
        "pause": "SELECT",
    },
    "consume": {
        "inbox": "INSERT, SELECT",
        "attempt": _ALL,
        "handler": "SELECT, INSERT, UPDATE",
        "worker": _ALL,
        "dead_letter": "INSERT, SELECT (id, side, queue, handler, message_id, reason, resolution)",
        "schema_version": "SELECT",
        "pause": "SELECT",
    },
    "prune": {
        "attempt": "SELECT, DELETE",
        "handler": "SELECT, DELETE",
        "idempotency": "DELETE, SELECT (ctid, expires_at, locked_until), UPDATE (locked_until)",
        "effect": "DELETE, UPDATE (locked_until), "
        "SELECT (ctid, key, state, started_at, locked_until, used_at, handler, message_id)",
        "schema_version": "SELECT",
    },
    "replay dead letters": {
        "outbox": "SELECT, INSERT, UPDATE (due_at)",
        "dead_letter": "SELECT, UPDATE (parked, resolution, resolved_at, resolved_by)",
        "audit": "SELECT, INSERT, UPDATE (ended_at, affected, result)",
    },
}
"""The work that a role may be for, and the rights on the tables without which it cannot be done."""
_IF_SET = {
    "published_retention": ("relay", "published", "INSERT"),
    "dead_retention": ("prune", "dead_letter", "SELECT (id, dead_at, parked, resolution), UPDATE (parked), DELETE"),
}
"""Settings, and what each adds to the rights of a work: a table, and the rights on it."""
_OF_SESSIONS = {RELAY_SESSION: "relay", CONSUMER_SESSION: "consume", RETENTION_SESSION: "prune"}
"""The work of a session, by the beginning of its name."""
_OF_OPERATOR = frozenset(("prune", "replay dead letters"))
"""The works that one role is for: it may have all rights of one, and lack some of the other."""
MOST_RIGHTS_LACKING = 0.25
"""The share of a work's rights from which on a role that lacks them is for another work."""
_GRANT = re.compile(r"(\w+)(?: \(([^)]*)\))?")
"""A privilege, and the columns that it is for."""


class Right(NamedTuple):
    """A right on a table, or on one column of it."""

    table: str
    privilege: str
    column: str = ""


def check_rights(database: Database) -> Iterator[Diagnosis]:
    """Compare the rights of each role with the rights that its work needs."""
    (facts,), installed = database.rows(statements.server.facts()), database.installation
    for row in database.rows(statements.server.roles()):
        missing = {work: lacking(database, row.role, work) for work in NEEDED}
        works = {work for name in row.names for begin, work in _OF_SESSIONS.items() if name.startswith(begin)}
        if row.role == facts.role and not works:
            works = {"consume"} if installed.handlers else _works_of(missing, installed.settings)
        hidden = database.connection.execute(statements.server.hidden_tables(), {"role": row.role}).scalars().all()
        for work in sorted(works or ({"read"} if hidden else set())):
            lacks = _by_grant(missing.get(work, []))
            if lacks or hidden:
                grants = [f"GRANT {grant} TO {quoted(row.role)};" for grant in lacks]
                grants += [f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY;" for table in hidden]
                rows = [f"to see a row of {', '.join(hidden)}, by a policy"] if hidden else []
                yield finding(
                    "right-missing",
                    role=printable_name(row.role),
                    work=work,
                    missing="; ".join([*lacks, *rows]),
                    grants=tuple(grants),
                )


def _works_of(missing: Mapping[str, list[Right]], settings: Settings) -> set[str]:
    """The work that a role seems to be for, of which no session tells; none if it has all rights of one.

    Nearly every role may add messages. One that does may be for another work, of which it has most rights.
    """
    shares = {work: len(rights) / sum(1 for _ in needed_rights(work, settings)) for work, rights in missing.items()}
    adds = shares.pop("add messages") == 0
    nearest = min(shares, key=lambda work: shares[work])
    if shares[nearest] == 0:
        others = _OF_OPERATOR - {nearest} if nearest in _OF_OPERATOR else ()
        return {work for work in others if 0 < shares[work] < MOST_RIGHTS_LACKING}
    if shares[nearest] < MOST_RIGHTS_LACKING:
        return {nearest}
    return set() if adds else {"add messages"}


def needed_rights(work: str, settings: Settings) -> Iterator[Right]:
    """Each right of a work, one by one."""
    more = (add for name, (of, *add) in _IF_SET.items() if of == work and getattr(settings, name) is not None)
    for table, grants in (*NEEDED[work].items(), *more):
        for privilege, columns in _GRANT.findall(grants):
            for column in columns.split(", "):
                yield Right(f"outboxkit_{table}", privilege, column)


def lacking(database: Database, role: str, work: str) -> list[Right]:
    """The rights that a role lacks for a work."""
    rights = list(needed_rights(work, database.installation.settings))
    lists = {
        "tables": [right.table for right in rights],
        "privileges": [right.privilege for right in rights],
        "columns": [right.column for right in rights],
    }
    return [Right(*each[:3]) for each in database.rows(statements.server.rights(), role=role, **lists) if not each[3]]


def _by_grant(rights: list[Right]) -> list[str]:
    """`SELECT, UPDATE (a, b) ON outboxkit_outbox`, one for each table."""
    tables: dict[str, dict[str, list[str]]] = {}
    for right in rights:
        tables.setdefault(right.table, {}).setdefault(right.privilege, []).append(right.column)
    return [
        ", ".join(name if columns == [""] else f"{name} ({', '.join(columns)})" for name, columns in each.items())
        + f" ON {table}"
        for table, each in tables.items()
    ]
