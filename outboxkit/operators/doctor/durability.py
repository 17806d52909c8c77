"""Whether the server is fit: its version, whether it takes writes, and whether commits survive a crash."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from datetime import date
from typing import Any

from sqlalchemy import Row

from outboxkit import statements
from outboxkit.errors.wording import many, number, printable_name
from outboxkit.operators.doctor.diagnosis import note, problem, warning
from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.findings import Diagnosis, quoted
from outboxkit.statements.dialects import OLDEST

LAST_FIXES = {
    13: (23, date(2025, 11, 13)),
    14: (20, date(2026, 11, 12)),
    15: (15, date(2027, 11, 11)),
    16: (11, date(2028, 11, 9)),
    17: (7, date(2029, 11, 8)),
    18: (1, date(2030, 11, 14)),
}
"""For each major version of PostgreSQL a minor one that has known data-loss bugs fixed, and the day after which no
more fixes come (postgresql.org/support/versioning)."""
_COMMITS = ("on", "remote_apply", "remote_write", "local")
"""Values of `synchronous_commit` with which a commit is on this server's disk."""


async def check_version(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """The server's version, and whether it takes writes."""
    async with installation.database() as connection:
        facts = (await connection.execute(statements.server.facts())).one()
        for finding in (*_of_version(facts.version, facts.version_name, facts.now.date()), *_of_reading(facts)):
            yield finding
        clients = (await connection.execute(statements.server.clients())).one()
        if clients.used >= clients.most * installation.thresholds.connections:
            yield warning(
                "connections-few",
                f"{number(clients.used)} of {number(clients.most)} connections of the server are used.",
                why="Workers and applications that get none wait, and requests fail.",
                cure="Give pools fewer connections, put a pooler before the applications, or raise max_connections:",
                commands=(
                    (
                        "SELECT usename, application_name, state, count(*) FROM pg_stat_activity GROUP BY 1, 2, 3 "
                        "ORDER BY 4 DESC;"
                    ),
                ),
            )


def _of_version(version: int, name: str, today: date) -> Iterator[Diagnosis]:
    major, minor = divmod(version, 10_000)
    fixed, end = LAST_FIXES.get(major, (0, date.max))
    if major < OLDEST:
        yield problem(
            "server-old",
            f"The server is PostgreSQL {printable_name(name)}; {OLDEST} is the oldest that is accepted.",
            why="Statements that workers need do not exist there.",
            cure="Upgrade the server, or name another one in the database's URL.",
        )
    elif minor < fixed:
        yield warning(
            "server-minor-old",
            f"The server is PostgreSQL {printable_name(name)}, and {major}.{fixed} or newer is out.",
            why="Minor releases mend security holes and bugs that lose data, and change nothing else.",
            cure=f"Install the newest {major}.x and restart the server; no dump is needed.",
        )
    if major >= OLDEST and today > end:
        yield warning(
            "server-unsupported",
            f"The server is PostgreSQL {printable_name(name)}, which gets no fixes any more since {end}.",
            why="Security holes and bugs that lose data stay open.",
            cure="Plan the upgrade to a newer major version.",
        )


def _of_reading(facts: Row[Any]) -> Iterator[Diagnosis]:
    if facts.is_standby:
        lag = "" if facts.replay_lag is None else f", and what it shows is {facts.replay_lag.total_seconds():.0f} s old"
        yield problem(
            "server-standby",
            f"The URL leads to a standby, which takes no writes{lag}.",
            why="Relays and consumers wait as if the database were away. What doctor and status show is not the "
            "newest.",
            cure="Name the primary server in the URL, or let the driver find it among several hosts. Put this behind:",
            commands=("?target_session_attrs=read-write",),
        )
    elif facts.is_read_only:
        yield problem(
            "server-read-only",
            "Transactions of this role in this database are read-only.",
            why="Nothing can be added, published or handled.",
            cure="Find what sets it, the role, the database or the server, and reset that:",
            commands=(
                "SHOW default_transaction_read_only;",
                f"ALTER DATABASE {quoted(facts.database)} RESET default_transaction_read_only;",
                f"ALTER ROLE {quoted(facts.role)} RESET default_transaction_read_only;",
            ),
        )


async def check_durability(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Settings that decide whether a commit survives a crash: of the server, the database, and roles."""
    async with installation.database() as connection:
        rows = {row.name: row for row in await connection.execute(statements.server.settings())}
        overrides = (await connection.execute(statements.server.overrides())).all()
        stored = (await connection.execute(statements.doctor.dead_rows())).all()
    if rows["fsync"].setting == "off":
        yield problem(
            "fsync-off",
            "fsync is off on the server.",
            why="A power cut or a crash of its machine may destroy the whole database, and every message in it.",
            cure=_how(rows["fsync"].source),
            commands=("ALTER SYSTEM SET fsync = on;", "SELECT pg_reload_conf();"),
        )
    if rows["full_page_writes"].setting == "off":
        yield problem(
            "full-page-writes-off",
            "full_page_writes is off on the server.",
            why="A crash may leave half-written pages that nothing repairs, unless the file system never writes half "
            "of one, as ZFS does not.",
            cure=_how(rows["full_page_writes"].source),
            commands=("ALTER SYSTEM SET full_page_writes = on;", "SELECT pg_reload_conf();"),
        )
    for finding in _of_commits(rows["synchronous_commit"], overrides):
        yield finding
    for row in stored:
        if row.is_unlogged:
            yield problem(
                "table-unlogged",
                f"The table {printable_name(row.name)} is unlogged.",
                why="After a crash of the server it is empty, and a standby does not have it.",
                cure="Have it logged. That writes the whole table again, and locks it meanwhile:",
                commands=(f"ALTER TABLE {row.name} SET LOGGED;",),
            )


async def check_standbys(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Standbys, if commits wait for none of them: a failover would lose the last ones."""
    async with installation.database() as connection:
        rows = (await connection.execute(statements.doctor.standbys())).all()
    seen = [row for row in rows if row.sync_state is not None]
    if seen and all(row.sync_state in ("async", "potential") for row in seen):
        names = ", ".join(printable_name(row.name) for row in seen)
        yield note(
            "standby-asynchronous",
            f"Commits wait for none of {many(len(seen), 'standby', 'standbys')}: {names}.",
            why="A failover loses the last commits. Orders are gone whose messages have left, and handlers run again.",
            cure="Have commits wait for one of them, or have the page `fail-over` at hand:",
            commands=("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)';", "SELECT pg_reload_conf();"),
        )


def _of_commits(current: Row[Any], overrides: Sequence[Row[Any]]) -> Iterator[Diagnosis]:
    why = "A crash of the server loses commits of the last moments: orders that were confirmed, with their messages."
    loose = [row for row in overrides if _is_loose(row.pair)]
    for row in loose:
        whose, reset = scope_of(row.role, row.database)
        yield problem(
            "synchronous-commit-off",
            f"{row.pair.replace('=', ' is ')} for {whose}.",
            why=why,
            cure="Take the setting back. Sessions have the new one once they connect again:",
            commands=(f"{reset} RESET synchronous_commit;",),
        )
    value, source = str(current.setting), str(current.source)
    if value not in _COMMITS and not (loose and source in ("database", "user", "database user")):
        of_server = source not in ("client", "override", "session", "database", "user", "database user")
        yield problem(
            "synchronous-commit-off",
            f"synchronous_commit is {value} in this session, set by: {source}.",
            why=why,
            cure=_how(source) if of_server else "Take it out of the URL's options, or out of PGOPTIONS.",
            commands=("ALTER SYSTEM SET synchronous_commit = on;", "SELECT pg_reload_conf();") if of_server else (),
        )


def _is_loose(pair: str) -> bool:
    name, _, value = pair.partition("=")
    return name == "synchronous_commit" and value not in _COMMITS


def scope_of(role: str | None, database: str | None) -> tuple[str, str]:
    """The owner of a setting, and the beginning of the statement that changes it."""
    if role is None:
        return f"database {printable_name(database)}", f"ALTER DATABASE {quoted(database or '')}"
    if database is None:
        return f"role {printable_name(role)}", f"ALTER ROLE {quoted(role)}"
    whose = f"role {printable_name(role)} in database {printable_name(database)}"
    return whose, f"ALTER ROLE {quoted(role)} IN DATABASE {quoted(database)}"


def _how(source: str) -> str:
    if source == "command line":
        return "The server is started with that option: change its start command. Then, and else, this turns it on:"
    return "Turn it on, as a superuser or in your provider's settings:"
