"""The rights of this role, and of the roles of outboxkit's sessions: what is missing, and what is too much."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from outboxkit import statements
from outboxkit.database.session_names import CONSUMER, RELAY, RETENTION
from outboxkit.errors.wording import printable_name
from outboxkit.operators.doctor.diagnosis import note, problem, warning
from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.findings import Diagnosis, quoted

_ALL = "SELECT, INSERT, UPDATE, DELETE"
NEEDED: dict[str, dict[str, str]] = {
    "add messages": {"outbox": "INSERT"},
    "relay": {
        "outbox": "SELECT, DELETE, UPDATE (due_at, held, attempts, last_error, first_failed_at)",
        "dead_letter": "INSERT, UPDATE (parked), "
        "SELECT (id, key, destination, position, parked, side, reason, resolution)",
        "listener": _ALL,
        "schema_version": "SELECT",
        "pause": "SELECT",
    },
    "consume": {
        "inbox": "INSERT, SELECT, UPDATE (duration_ms)",
        "attempt": _ALL,
        "handler": "SELECT, INSERT, UPDATE",
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
    },
}
"""The work that a role may be for, and the rights on the tables without which it cannot be done."""
_OF_SESSIONS = {RELAY: "relay", CONSUMER: "consume", RETENTION: "prune"}
"""The work of a session, by the beginning of its name."""
_PAGE = "docs/how-to/grant-least-privileges.md has the script with all grants."


@dataclass(frozen=True)
class Right:
    """A right on a table, or on one column of it."""

    table: str
    privilege: str
    column: str = ""


async def check_rights(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Compare the rights of each role with the rights that its work needs."""
    async with installation.database() as connection:
        roles = (await connection.execute(statements.server.roles())).all()
        facts = (await connection.execute(statements.server.facts())).one()
        home = (await connection.execute(statements.server.may_everybody_create())).one_or_none()
        for row in roles:
            missing = {work: await _missing(connection, row.role, work) for work in NEEDED}
            works = {work for name in row.names for begin, work in _OF_SESSIONS.items() if name.startswith(begin)}
            for work in sorted(works):
                if missing[work]:
                    yield _of_missing(row.role, work, missing[work])
            if row.role == facts.role and not works:
                for finding in _of_own(row.role, missing):
                    yield finding
            hidden = (await connection.execute(statements.server.hidden_tables(), {"role": row.role})).scalars().all()
            if hidden:
                yield _of_hidden(row.role, hidden)
            for finding in _of_width(row.role, works or {"run doctor"}, row, home.schema if home else "public"):
                yield finding
    if home is not None and home.may_create:
        yield warning(
            "schema-open",
            f"Every role may create tables in the schema {printable_name(home.schema)}, which has outboxkit's tables.",
            why="Any role of the database can put a table or a function into the way of others, and act with their "
            "rights.",
            cure="Take that right back. Roles that make tables there need it by name:",
            commands=(f"REVOKE CREATE ON SCHEMA {quoted(home.schema)} FROM PUBLIC;",),
        )


def needed_rights(work: str) -> Iterator[Right]:
    """Each right of a work, one by one."""
    for table, grants in NEEDED[work].items():
        for grant in _split(grants):
            privilege, _, columns = grant.partition(" (")
            for column in columns.rstrip(")").split(", "):
                yield Right(f"outboxkit_{table}", privilege, column)


def _split(grants: str) -> list[str]:
    """`SELECT, UPDATE (a, b)` as `SELECT` and `UPDATE (a, b)`."""
    parts: list[str] = []
    for part in grants.split(", "):
        if parts and "(" in parts[-1] and ")" not in parts[-1]:
            parts[-1] += f", {part}"
        else:
            parts.append(part)
    return parts


async def _missing(connection: AsyncConnection, role: str, work: str) -> list[Right]:
    rights = list(needed_rights(work))
    parameters = {
        "role": role,
        "tables": [right.table for right in rights],
        "privileges": [right.privilege for right in rights],
        "columns": [right.column for right in rights],
    }
    rows = await connection.execute(statements.server.rights(), parameters)
    return [Right(table, privilege, column) for table, privilege, column, granted in rows if not granted]


def _of_missing(role: str, work: str, missing: list[Right]) -> Diagnosis:
    return problem(
        "right-missing",
        f"Role {printable_name(role)} is to {work} and lacks rights: {_listed(missing)}.",
        why="The process ends with “permission denied” at the first statement that needs them, mostly when it starts. "
        "Or gauges are missing, and alerts on them are blind.",
        cure=f"Grant them, as the owner of the tables. {_PAGE}",
        commands=tuple(_grants(role, missing)),
    )


def _of_hidden(role: str, hidden: Sequence[str]) -> Diagnosis:
    return problem(
        "rows-hidden",
        f"Role {printable_name(role)} sees no row of {', '.join(hidden)}: row-level security is on there, and no "
        "policy is for that role.",
        why="It reads them without an error: a relay finds the outbox empty, and publishes nothing. Writing fails.",
        cure="Turn it off, as the owner of the tables, or give the role a policy of its own for each.",
        commands=tuple(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY;" for table in hidden),
    )


def _of_own(role: str, missing: dict[str, list[Right]]) -> Iterator[Diagnosis]:
    """Say what this role may do; a work that lacks a few rights is most likely what it is for."""
    may = [work for work, rights in missing.items() if not rights]
    if may:
        yield note("role-may", f"This role, {printable_name(role)}, has the rights to {', '.join(may)}.")
        return
    nearest = min(missing, key=lambda work: len(missing[work]) / sum(1 for _ in needed_rights(work)))
    yield problem(
        "right-missing",
        f"This role, {printable_name(role)}, can do no work of outboxkit: neither {', nor '.join(missing)}. To "
        f"{nearest} it lacks: {_listed(missing[nearest])}.",
        why="The process ends with “permission denied” at the first statement that needs them.",
        cure=f"Use the role of the process, or grant the rights as the owner of the tables. {_PAGE}",
        commands=tuple(_grants(role, missing[nearest])),
    )


def _of_width(role: str, works: set[str], row: Row[Any], schema: str) -> Iterator[Diagnosis]:
    """Rights that no work of outboxkit needs."""
    name = printable_name(role)
    wide = {
        "is a superuser": (row.is_superuser, "NOSUPERUSER"),
        "may create roles": (row.may_make_roles, "NOCREATEROLE"),
        "passes row security": (row.passes_policies, "NOBYPASSRLS"),
    }
    options = {text: option for text, (is_set, option) in wide.items() if is_set}
    what = ", ".join(sorted(works))
    if options:
        yield warning(
            "role-too-wide",
            f"Role {name}, which is used to {what}, {' and '.join(options)}.",
            why="A stolen password or a handler with a hole in it can read and change every database of the server.",
            cure=f"Give each process a role of its own with the rights of its work. {_PAGE} Then, as another "
            "superuser:",
            commands=(f"ALTER ROLE {quoted(role)} {' '.join(options.values())};",),
        )
    elif row.owns_outbox:
        yield note(
            "role-owns-tables",
            f"Role {name}, which is used to {what}, owns the tables: it may also alter and drop them.",
            cure=f"In production, give each process a role of its own. {_PAGE}",
        )
    elif row.may_create and not works & {"prune", "run doctor"}:
        yield warning(
            "role-too-wide",
            f"Role {name}, which is used to {what}, may create tables in the schema of outboxkit's tables.",
            why="Only migrate and prune create tables; this role can put others into the way.",
            cure="Take that right back:",
            commands=(f"REVOKE CREATE ON SCHEMA {quoted(schema)} FROM {quoted(role)};",),
        )


def _listed(rights: list[Right]) -> str:
    return "; ".join(_by_grant(rights))


def _grants(role: str, rights: list[Right]) -> Iterator[str]:
    for grant in _by_grant(rights):
        yield f"GRANT {grant} TO {quoted(role)};"


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
