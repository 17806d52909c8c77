"""`outboxkit status`: messages that wait, for how long and why, dead letters, and the processes at work."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer
from sqlalchemy import Connection

from outboxkit import schema, statements
from outboxkit.cli.options import DATABASE, AsJson, with_settings
from outboxkit.cli.status import advice, show, waiting
from outboxkit.cli.status.report import Status
from outboxkit.cli.wording import fold_width
from outboxkit.operators.blockers import read_blockers
from outboxkit.runtime import compose, pauses, process, urls
from outboxkit.runtime.pauses.holding import read_holding
from outboxkit.runtime.settings import Settings
from outboxkit.statements.dialects import SNAPSHOT, is_server

Verbose = Annotated[bool, typer.Option("--verbose", help="List each connection.")]


@with_settings(*DATABASE, "broker_url")
def status(settings: Settings, *, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Show waiting messages and why they wait, dead letters, connections, and what holds back vacuum.

    Cheap for tables of any size: it counts ten thousand rows of a kind, and where there are more it says so.

    Example: outboxkit status --json
    """
    report = asyncio.run(read_url(compose.database_url(settings)))
    report = replace(report, broker=urls.shown(settings.broker_url.get_secret_value()))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        for line in show.lines(report, width=fold_width(), verbose=verbose):
            typer.echo(line)


async def read_url(url: str) -> Status:
    """The report on the database of this URL, from one snapshot, so that what is moved meanwhile is counted once."""
    engine = process.engine(url, name="outboxkit status")
    try:
        async with engine.connect() as connection:
            if is_server(connection.dialect.name):
                await connection.execution_options(**SNAPSHOT)
            return await connection.run_sync(read_status, datetime.now(UTC))
    finally:
        await engine.dispose()


def read_status(connection: Connection, now: datetime) -> Status:
    """The report, with its advice.

    Raises:
        SchemaError: the tables are missing or old, or a table or column is missing.
    """
    schema.check_readable(connection)
    version = schema.installed(connection)
    missing = schema.missing(connection) if version == schema.NEEDED else []
    if is_server(connection.dialect.name):
        connection.execute(statements.status.forbid_sorting())
    paused = pauses.read_pauses(connection)
    report = Status(
        schema_version=version,
        outbox=waiting.read_outbox(connection, now),
        inbox=waiting.read_inbox(connection, now),
        dead_letters=waiting.read_dead_letters(connection),
        published=waiting.read_published(connection),
        idempotency=waiting.read_idempotency(connection),
        effects=waiting.read_effects(connection, now),
        database=urls.shown(connection.engine.url),
        paused=paused,
        holding=read_holding(connection, paused),
        missing_parts=tuple(str(part) for part in missing),
    )
    if is_server(connection.dialect.name):
        sessions, vacuum = advice.read_sessions(connection), advice.read_vacuum(connection, now)
        right = advice.missing_right(sessions, vacuum)
        blockers = read_blockers(connection, now)
        hanging = advice.hanging(sessions, blockers, now)
        report = replace(report, sessions=sessions, vacuum=vacuum, missing_right=right)
        report = replace(report, hanging=hanging, blockers=blockers)
    return replace(report, advice=tuple(advice.advise(report)))
