"""`outboxkit migrate`: create or upgrade the tables, print the DDL, or check."""

import asyncio
import sys
from typing import Annotated

import typer
from sqlalchemy import make_url

from outboxkit import schema
from outboxkit.cli.connections import connected
from outboxkit.cli.options import with_options
from outboxkit.cli.progress import progress
from outboxkit.runtime import urls
from outboxkit.runtime.settings import Settings
from outboxkit.schema import migrations

Sql = Annotated[bool, typer.Option("--sql", help="Print the DDL of all steps, without a database.")]
Check = Annotated[bool, typer.Option("--check", help="Change nothing; exit 1 if the tables are not up to date.")]


@with_options()
def migrate(settings: Settings, *, sql: Sql = False, check: Check = False) -> None:
    """Create the tables, or bring them to this version, with any partition, index or trigger that was dropped.

    Safe to run from many machines at once.

    Example: OUTBOXKIT_DATABASE_URL=postgresql+psycopg://app@db/shop outboxkit migrate
    """
    url = settings.database_url.get_secret_value()
    if sql:
        migrations.write_sql(make_url(url).get_backend_name(), sys.stdout)
    elif check:
        version = asyncio.run(_check(settings))
        newer = " (newer than this code)" if version > migrations.LATEST else ""
        typer.echo(f"outboxkit tables: up to date at version {version}{newer} in {urls.shown(url)}")
    else:
        with progress("migrating"):
            before, after, repaired = asyncio.run(_migrate(url))
        done = f"migrated from version {before} to {after}" if before < after else f"up to date at version {after}"
        typer.echo(f"outboxkit tables: {done} in {urls.shown(url)}")
        for part in repaired:
            typer.echo(f"made again: {part}")


async def _migrate(url: str) -> tuple[int, int, list[str]]:
    async with connected(url, "migrate") as engine, engine.begin() as connection:
        versions = await connection.run_sync(migrations.migrate)
        return *versions, await connection.run_sync(migrations.repair)


async def _check(settings: Settings) -> int:
    async with connected(settings, "migrate") as engine, engine.connect() as connection:
        await connection.run_sync(schema.check)
        version = await connection.run_sync(schema.installed)
        if version == migrations.LATEST:
            await connection.run_sync(schema.check_parts)
        return version
