"""`outboxkit migrate` and `outboxkit prune`: the tables, and how long their rows are kept."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from typing import Annotated

import typer
from sqlalchemy import make_url

from outboxkit import compose, migrations, process, structure, urls
from outboxkit.cli.options import DATABASE, with_settings
from outboxkit.retention import Pruned, Show
from outboxkit.settings import Settings

Sql = Annotated[bool, typer.Option("--sql", help="Print the DDL of all steps; touch no database.")]
Check = Annotated[bool, typer.Option("--check", help="Only say whether the tables are up to date; exit 1 if not.")]


@with_settings(*DATABASE)
def migrate(chosen: Settings, *, sql: Sql = False, check: Check = False) -> None:
    """Create the tables, or bring them to this version, with any partition, index or trigger that was dropped.

    Safe to run from many machines at once.

    Example: OUTBOXKIT_DATABASE_URL=postgresql+psycopg://app@db/shop outboxkit migrate
    """
    url = chosen.database_url.get_secret_value()
    if sql:
        migrations.write_sql(make_url(url).get_backend_name(), sys.stdout)
    elif check:
        asyncio.run(_check(compose.database_url(chosen)))
    else:
        before, after, repaired = asyncio.run(_migrate(url))
        done = f"migrated from version {before} to {after}" if before < after else f"up to date at version {after}"
        typer.echo(f"outboxkit tables: {done} in {urls.shown(url)}")
        for part in repaired:
            typer.echo(f"made again: {part}")


async def _migrate(url: str) -> tuple[int, int, list[str]]:
    engine = process.engine(url, name="outboxkit migrate")
    try:
        async with engine.begin() as connection:
            versions = await connection.run_sync(migrations.migrate)
            return *versions, await connection.run_sync(migrations.repair)
    finally:
        await engine.dispose()


async def _check(url: str) -> None:
    engine = process.engine(url, name="outboxkit migrate")
    try:
        async with engine.connect() as connection:
            await connection.run_sync(migrations.check)
            found = await connection.run_sync(migrations.installed)
            if found == migrations.LATEST:
                await connection.run_sync(structure.check)
    finally:
        await engine.dispose()
    newer = " (newer than this code)" if found > migrations.LATEST else ""
    typer.echo(f"outboxkit tables: up to date at version {found}{newer} in {urls.shown(url)}")


INCOMPLETE = 3
"""Exit code where a partition could not be made or dropped, and another try would not help."""


@with_settings(*DATABASE, "inbox_retention", "clock_skew", "keep_published", "dead_retention")
def prune(chosen: Settings) -> None:
    """Forget what is older than its retention: inbox rows, kept messages, dead letters, idempotency keys, effects.

    Safe to kill, to repeat and to run beside relays and consumers; one at a time works, a second one ends at once. On
    PostgreSQL it also makes the partitions of the days to come. Exit 3 where the role may not do that.

    Example: outboxkit prune --inbox-retention 30d --keep-published 7d --dead-retention 90d
    """
    done = asyncio.run(_prune(chosen))
    if not done.alone:
        typer.echo("nothing done: somebody else prunes this database at the moment")
        return
    for line in _lines(done, chosen):
        typer.echo(line)
    for problem in done.problems:
        again = "; the next prune tries again" if done.busy else ""
        typer.echo(f"outboxkit: not done: {problem}{again}", err=True)
    if done.problems and not done.busy:
        sys.exit(INCOMPLETE)


async def _prune(chosen: Settings) -> Pruned:
    async with compose.retention(chosen, name="outboxkit prune") as worker:
        with _shown() as show:
            return await worker.prune(show)


@contextmanager
def _shown() -> Iterator[Show]:
    """What is done so far, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - a terminal alone shows it

    with Console(stderr=True).status("pruning") as status:

        def show(done: Pruned) -> None:
            so_far = (
                f"{done.inbox} inbox rows and {len(done.inbox_days_dropped)} days",
                f"{done.dead} dead letters",
                f"{done.idempotency} idempotency keys",
                f"{done.effects} effects",
                f"{done.published} published messages and {len(done.days_dropped)} days",
            )
            status.update(f"forgotten: {', '.join(so_far)}")

        yield show


def _lines(done: Pruned, chosen: Settings) -> Iterator[str]:
    yield f"inbox: {done.inbox} rows forgotten"
    yield from _dropped("inbox", done.inbox_days_dropped)
    yield from _made("inbox", done.inbox_days_made)
    if chosen.dead_retention is not None:
        yield f"dead letters: {done.dead} forgotten, {done.dead_open} of them open"
    if done.idempotency:
        yield f"idempotency keys: {done.idempotency} forgotten"
    if done.effects:
        yield f"effects: {done.effects} forgotten"
    if done.untouched:
        yield "published: left alone; OUTBOXKIT_KEEP_PUBLISHED is not set, and messages are kept"
    if chosen.keep_published is None:
        return
    yield from _dropped("published", done.days_dropped)
    yield f"published: {done.published} rows forgotten that were in no day's partition"
    yield from _made("published", done.days_made)


def _dropped(name: str, days: list[date]) -> Iterator[str]:
    if days:
        yield f"{name}: {_counted('day', days)} dropped, {_span(days)}"


def _made(name: str, days: list[date]) -> Iterator[str]:
    if days:
        yield f"{name}: {_counted('partition', days)} made, {_span(days)}"


def _counted(noun: str, days: list[date]) -> str:
    return f"{len(days)} {noun}" if len(days) == 1 else f"{len(days)} {noun}s"


def _span(days: list[date]) -> str:
    return str(days[0]) if len(days) == 1 else f"{min(days)} to {max(days)}"
