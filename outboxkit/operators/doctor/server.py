"""The database server: whether it answers, has the tables, takes writes, and keeps what it commits."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from outboxkit import schema, statements
from outboxkit.database import pooler
from outboxkit.errors import SchemaError
from outboxkit.errors.failures import printable, text_of
from outboxkit.errors.figures import many, number, printable_name, span
from outboxkit.errors.sqlstates import FULL
from outboxkit.operators import sql
from outboxkit.operators.doctor.installation import Database, Installation
from outboxkit.operators.findings import Diagnosis, finding, quoted
from outboxkit.runtime import urls
from outboxkit.runtime.window import CLOCK_SKEW

CONNECTING_SHARE = 0.8
"""The share of a check's time that connecting has, so that a server that does not answer is told as that."""
_COMMITS = ("on", "remote_apply", "remote_write", "local")
"""Values of `synchronous_commit` with which a commit is on this server's disk."""
_RELOAD = "SELECT pg_reload_conf();"


async def why_away(installation: Installation) -> Diagnosis | None:
    """The finding of a database that cannot be used; None if a connection could be opened."""
    url = installation.settings.database_url.get_secret_value()
    file = urls.file_of(url)
    if file is not None and not Path(file).exists():  # noqa: ASYNC240 - once
        return finding("tables-missing", place=f"there: no file {printable_name(file)}", migrate="outboxkit migrate")
    opening = asyncio.ensure_future(_open(installation))
    done, _ = await asyncio.wait((opening,), timeout=installation.limits.check_seconds * CONNECTING_SHARE)
    reason = "it did not answer in time"
    if done:
        try:
            opening.result()
        except DBAPIError as error:
            reason = printable("; ".join(" ".join(line.split()) for line in text_of(error.orig).splitlines()))
        else:
            return None
    else:
        opening.cancel()  # without waiting for that: the driver would wait for the server
    if FULL.search(reason):
        return finding("connections-used-up", worse=True, used=reason)
    return finding("database-away", database=urls.shown(url), reason=reason)


async def _open(installation: Installation) -> None:
    async with installation.opened():
        pass


async def check_pooler(installation: Installation) -> list[Diagnosis]:
    """Whether a session keeps its state: behind a pooler in transaction mode it does not."""
    if installation.engine is None or await pooler.keeps_sessions(installation.engine):
        return []
    return [finding("pooler-transaction-mode", what=pooler.FOUND, cure=pooler.POOLER_CURE, line=pooler.COMMAND)]


def check_tables(database: Database) -> Iterator[Diagnosis]:
    """Compare the tables with those that this release needs."""
    try:
        version = schema.installed(database.connection)
    except SchemaError as error:
        yield finding("tables-behind", reason=error)
        return
    if version == 0:
        homes = [row.schema for row in database.rows(sql.doctor.homes())] if database.is_server else []
        place = f"in the search_path, but in schema {printable_name(homes[0])}" if homes else "in this database"
        yield finding(
            "tables-missing",
            place=place,
            migrate=None if homes else "outboxkit migrate",
            schema=homes[0] if homes else None,
        )
    elif version < schema.NEEDED:
        yield finding("tables-behind", reason=f"they have version {version}, and it needs {schema.NEEDED}")
    elif version == schema.NEEDED and (missing := schema.missing(database.connection)):
        is_worse = any(part.kind in ("table", "column", "partition") for part in missing)
        yield finding("part-missing", worse=is_worse, parts=tuple(map(str, missing)))


def check_writes(database: Database) -> Iterator[Diagnosis]:
    """Whether the server takes writes, and has connections left."""
    (facts,) = database.rows(statements.server.facts())
    if facts.is_standby:
        lag = "" if facts.replay_lag is None else f", and what it shows is {facts.replay_lag.total_seconds():.0f} s old"
        yield finding("server-read-only", reason=f"the URL leads to a standby{lag}")
    elif facts.is_read_only:
        reason = "transactions of this role in this database are read-only"
        yield finding("server-read-only", reason=reason, database=quoted(facts.database), role=quoted(facts.role))
    (clients,) = database.rows(statements.server.clients())
    if clients.used >= clients.most * database.limits.connections:
        yield finding("connections-used-up", used=f"{number(clients.used)} of {number(clients.most)} are in use")


def check_durability(database: Database) -> Iterator[Diagnosis]:
    """Settings that decide whether a commit survives a crash: of the server, the database, and roles."""
    settings = {row.name: row for row in database.rows(statements.server.settings())}
    for name in ("fsync", "full_page_writes"):
        if settings[name].setting == "off":
            on = (f"ALTER SYSTEM SET {name} = on;", _RELOAD)
            yield finding("durability-off", what=f"{name} is off on the server", undo=on)
    loose = False
    for row in database.rows(statements.server.overrides()):
        name, _, value = row.pair.partition("=")
        if name == "synchronous_commit" and value not in _COMMITS:
            loose = True
            whose, reset = _scope_of(row.role, row.database)
            yield finding(
                "durability-off",
                what=f"synchronous_commit is {value} for {whose}",
                undo=f"{reset} RESET synchronous_commit;",
            )
    value, source = str(settings["synchronous_commit"].setting), str(settings["synchronous_commit"].source)
    if value not in _COMMITS and not (loose and source in ("database", "user", "database user")):
        what = f"synchronous_commit is {value} in this session, set by: {source}"
        on = ("ALTER SYSTEM SET synchronous_commit = on;", _RELOAD)
        yield finding("durability-off", what=what, undo=on if source == "configuration file" else None)
    for row in database.rows(sql.doctor.dead_rows()):
        if row.is_unlogged:
            what = f"The table {printable_name(row.name)} is unlogged: it is empty after a crash"
            yield finding("durability-off", what=what, undo=f"ALTER TABLE {row.name} SET LOGGED;")


def _scope_of(role: str | None, database: str | None) -> tuple[str, str]:
    """The owner of a setting, and the beginning of the statement that changes it."""
    if role is None:
        return f"database {printable_name(database)}", f"ALTER DATABASE {quoted(database or '')}"
    if database is None:
        return f"role {printable_name(role)}", f"ALTER ROLE {quoted(role)}"
    whose = f"role {printable_name(role)} in database {printable_name(database)}"
    return whose, f"ALTER ROLE {quoted(role)} IN DATABASE {quoted(database)}"


def check_clock(database: Database) -> Iterator[Diagnosis]:
    """The difference between this machine's clock and the database's."""
    clock = database.installation.clock
    before = clock()
    there = database.value(statements.server.moment(database.connection.dialect.name))
    after = clock()
    skew = (there - (before + (after - before) / 2)).total_seconds()
    apart = abs(skew) - (after - before).total_seconds() / 2
    if apart >= database.limits.skew.total_seconds():
        far = f"{span(abs(skew))} {'ahead of' if skew > 0 else 'behind'}"
        yield finding("clock-skew", worse=apart >= CLOCK_SKEW.total_seconds(), skew=far, whose="this machine's")


def check_vacuum(database: Database) -> Iterator[Diagnosis]:
    """Whether autovacuum works, and how far it is behind on outboxkit's tables."""
    settings = {row.name: row.setting for row in database.rows(statements.server.settings())}
    for name in ("autovacuum", "track_counts"):
        if settings[name] == "off":
            on = (f"ALTER SYSTEM SET {name} = on;", _RELOAD)
            what = f"{name} is off on the server"
            yield finding("vacuum-behind", worse=True, what=what, undo=on, table="outboxkit_outbox")
    for table in database.rows(sql.doctor.dead_rows()):
        undo = f"ALTER TABLE {table.name} RESET (autovacuum_enabled);" if table.is_left_alone else None
        texts = [f"Autovacuum is off for the table {printable_name(table.name)}"] if table.is_left_alone else []
        if table.dead >= database.limits.dead_rows + 2 * table.live:
            ago = table.last_vacuum and f"{span((database.now - table.last_vacuum).total_seconds())} ago"
            dead = many(table.dead, "dead row")
            texts.append(f"The table {printable_name(table.name)} has {dead}, and was last vacuumed {ago or 'never'}")
        if texts:
            yield finding("vacuum-behind", what=". ".join(texts), undo=undo, table=table.name)
