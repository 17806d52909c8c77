"""`outboxkit prune`: apply retention now."""

import asyncio
import sys
from collections.abc import Iterator

import typer

from outboxkit import process
from outboxkit.cli.options import DATABASE, with_settings
from outboxkit.retention import Pruned, Retention
from outboxkit.settings import Settings

INCOMPLETE = 3
"""Exit code where a partition could not be made or dropped, and another try would not help."""


@with_settings(*DATABASE, "inbox_retention", "keep_published")
def prune(chosen: Settings) -> None:
    """Forget what is older than its retention: inbox rows, and published messages that are kept. Dead letters stay.

    Safe to kill, to repeat and to run beside relays. On PostgreSQL it also makes the partitions of the days to come.
    Exit 3 where the role may not do that.

    Example: outboxkit prune --inbox-retention 30d --keep-published 7d
    """
    done = asyncio.run(_prune(chosen))
    for line in _lines(done, keeps=chosen.keep_published is not None):
        typer.echo(line)
    for problem in done.problems:
        again = "; the next prune tries again" if done.busy else ""
        typer.echo(f"outboxkit: not done: {problem}{again}", err=True)
    if done.problems and not done.busy:
        sys.exit(INCOMPLETE)


async def _prune(chosen: Settings) -> Pruned:
    engine = process.engine(chosen.database_url.get_secret_value(), name="outboxkit prune")
    try:
        retention = Retention(engine, inbox_retention=chosen.inbox_retention, keep_published=chosen.keep_published)
        return await retention.prune()
    finally:
        await engine.dispose()


def _lines(done: Pruned, *, keeps: bool) -> Iterator[str]:
    yield f"inbox: {done.inbox} rows forgotten"
    if done.untouched:
        yield "published: left alone; OUTBOXKIT_KEEP_PUBLISHED is not set, and messages are kept"
    if not keeps:
        return
    if done.days_dropped:
        yield f"published: {len(done.days_dropped)} days dropped, {done.days_dropped[0]} to {done.days_dropped[-1]}"
    yield f"published: {done.published} rows forgotten that were in no day's partition"
    if done.days_made:
        yield f"published: partitions made, {done.days_made[0]} to {done.days_made[-1]}"
