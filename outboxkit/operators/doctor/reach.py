"""The first two checks: whether the database answers, and whether it has outboxkit's tables."""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from outboxkit import schema, statements
from outboxkit.errors import SchemaError
from outboxkit.errors.failures import printable, text_of
from outboxkit.errors.sqlstates import REFUSED_CONNECTIONS
from outboxkit.errors.wording import printable_name
from outboxkit.operators.doctor.diagnosis import note, problem, warning
from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.findings import Diagnosis, quoted
from outboxkit.runtime import urls
from outboxkit.statements.dialects import is_server

_SECRET = "OUTBOXKIT_DATABASE_URL or the file that OUTBOXKIT_DATABASE_URL_FILE names"  # noqa: S105 - only names
_OF_CONNECTIONS = {
    "database-password": (
        f"Correct the user and the password in {_SECRET}. An @ in a password is written %40. If the password was "
        "changed, restart the processes that have the old one."
    ),
    "database-access": (
        "Add a line for this database, user and address to the server's pg_hba.conf, and reload it. If it says "
        "“no encryption”, put ?sslmode=require behind the URL."
    ),
    "database-missing": f"Correct the database's name in {_SECRET}, or create the database.",
}
_REFUSALS = (
    *(
        (pattern, f"database-{kind}", _OF_CONNECTIONS[f"database-{kind}"])
        for pattern, kind, _ in REFUSED_CONNECTIONS
        if f"database-{kind}" in _OF_CONNECTIONS
    ),
    (
        r"too many connections for (role|database)",
        "database-full",
        (
            "End clients that nobody needs, or give pools fewer connections. Or raise the limit of the role or "
            "database that the server names: ALTER ROLE name CONNECTION LIMIT n, or ALTER DATABASE with the same."
        ),
    ),
    (
        r"too many clients|remaining connection slots",
        "database-full",
        "End clients that nobody needs, give pools fewer connections, or raise max_connections and restart the server.",
    ),
    (
        r"starting up|shutting down|in recovery mode|not yet accepting",
        "database-starting",
        "Wait until the server accepts connections; its log says how far it is.",
    ),
    (
        r"certificate|SSL error|does not support SSL|sslmode",
        "database-tls",
        "Compare sslmode and sslrootcert in the URL with the server's certificate.",
    ),
    (
        r"resolve host|Name or service not known|translate host name",
        "database-host",
        f"Correct the host's name in {_SECRET}, or mend the name service of this machine.",
    ),
)
"""For each kind of refusal: how its text reads, the code of the finding, and the cure."""
CONNECTING_SHARE = 0.8
"""The share of a check's time that connecting has, so that a server that does not answer is told as that."""
_AWAY = (
    "Start the server, or correct host and port in the URL. If both are right, look at the network and its "
    "firewalls, and at a pooler, whose pool may be full."
)


async def check_connection(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Open a connection, as every process of outboxkit does."""
    text = installation.settings.database_url.get_secret_value()
    file = urls.file_of(text)
    if file is not None and not Path(file).exists():  # noqa: ASYNC240 - once
        yield problem(
            "database-missing",
            f"There is no file {printable_name(file)}.",
            why="Nothing can be added, published or handled.",
            cure="Name the file that the application uses, or create its tables:",
            commands=("outboxkit migrate",),
        )
        return
    opening = asyncio.ensure_future(_open(installation))
    done, _ = await asyncio.wait((opening,), timeout=installation.thresholds.check_seconds * CONNECTING_SHARE)
    if not done:
        opening.cancel()  # without waiting for that: the driver would wait for the server
        yield _refused(urls.shown(text), "it did not answer in time")
        return
    try:
        opening.result()
    except DBAPIError as error:
        yield _refused(urls.shown(text), printable(" ".join(text_of(error.orig).split())))


async def _open(installation: Installation) -> None:
    async with installation.database():
        pass


def _refused(database: str, reason: str) -> Diagnosis:
    code, cure = next(
        ((code, cure) for pattern, code, cure in _REFUSALS if re.search(pattern, reason)), ("database-away", _AWAY)
    )
    return problem(
        code,
        f"{database} cannot be used: {reason}",
        why="Nothing can be added, published or handled until it can. Nothing is lost: workers wait and go on.",
        cure=cure,
    )


async def check_tables(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Compare the tables with those that this release needs."""
    async with installation.database() as connection:
        try:
            version = await connection.run_sync(schema.installed)
        except SchemaError as error:
            yield _unknown(str(error))
            return
        homes: list[tuple[str, bool]] = []
        if is_server(connection.dialect.name):
            homes = [(row.schema, row.is_used) for row in await connection.execute(statements.doctor.homes())]
        for finding in _of_version(version, homes):
            yield finding
        if version == schema.NEEDED:
            for part in await connection.run_sync(schema.missing):
                yield _of_part(part)


def _unknown(text: str) -> Diagnosis:
    return problem(
        "tables-version-unknown",
        f"The version of the tables is unknown: {text}.",
        why="Workers refuse to start, and an upgrade would not know where to begin.",
        cure="Insert the version that the tables have, if they are those of this release:",
        commands=(f"INSERT INTO outboxkit_schema_version VALUES ({schema.NEEDED});",),  # noqa: S608 - to paste
    )


def _of_version(version: int, homes: list[tuple[str, bool]]) -> Iterator[Diagnosis]:
    elsewhere = [name for name, is_used in homes if not is_used]
    if version == 0:
        yield _missing(elsewhere)
        return
    if version < schema.NEEDED:
        yield problem(
            "tables-behind",
            f"The tables have version {version}, and this release needs {schema.NEEDED}.",
            why="Workers of this release refuse to start, and applications fail when they add a message.",
            cure="Upgrade the tables, or add that step to your Alembic history:",
            commands=("outboxkit migrate",),
        )
    if version > schema.NEEDED:
        yield note(
            "tables-newer",
            f"The tables have version {version}, and this release needs {schema.NEEDED}. In a rollout that is right.",
        )
    if elsewhere:
        used = next((name for name, is_used in homes if is_used), "-")
        yield warning(
            "tables-twice",
            f"The tables of schema {printable_name(used)} are used here, and there are others in "
            f"{printable_name(', '.join(elsewhere))}.",
            why="A process with another search_path works on another outbox: its messages wait there for a relay.",
            cure="Give all processes the same search_path. These rows show what waits in the other one:",
            commands=tuple(f"TABLE {quoted(name)}.outboxkit_outbox LIMIT 10;" for name in elsewhere),
        )


def _missing(elsewhere: list[str]) -> Diagnosis:
    if elsewhere:
        return problem(
            "tables-missing",
            f"The search_path does not lead to outboxkit's tables, which are in schema "
            f"{printable_name(', '.join(elsewhere))}.",
            why="Nothing can be added, published or handled by a process with this URL.",
            cure="Name the schema in the URL, or for the role; do not create the tables a second time:",
            commands=(f"?options=-csearch_path%3D{elsewhere[0]}",),
        )
    return problem(
        "tables-missing",
        "outboxkit's tables are not in this database.",
        why="Nothing can be added, published or handled.",
        cure="If this is the right database, create them:",
        commands=("outboxkit migrate",),
    )


def _of_part(part: schema.Part) -> Diagnosis:
    if part.kind in ("table", "column"):
        return problem(
            "part-missing",
            f"A part of the tables is missing: {part}.",
            why="Statements that need it fail, and what was in it is gone.",
            cure="Undo what dropped it, such as a revision of your Alembic history, or restore it from a backup.",
        )
    if part.kind == "partition":
        return problem(
            "part-missing",
            f"A part of the tables is missing: {part}.",
            why="Rows whose day has no partition of its own cannot be written.",
            cure="Create it again; rows that were in it are lost:",
            commands=("outboxkit migrate",),
        )
    return warning(
        "part-missing",
        f"A part of the tables is missing: {part}.",
        why="Without an index the relay slows down as the table grows. Without the trigger it polls.",
        cure="Create it again:",
        commands=("outboxkit migrate",),
    )
