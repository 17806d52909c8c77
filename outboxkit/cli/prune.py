"""`outboxkit prune`: apply retention now."""

import asyncio
import sys
from collections.abc import Iterator
from datetime import date

import typer

from outboxkit import schema
from outboxkit.cli.connections import connected
from outboxkit.cli.options import By, with_options
from outboxkit.cli.progress import progress
from outboxkit.errors.figures import many, span
from outboxkit.exit_codes import INCOMPLETE
from outboxkit.operators import audit
from outboxkit.runtime import compose
from outboxkit.runtime.retention import Pruned
from outboxkit.runtime.settings import Settings


@with_options()
def prune(settings: Settings, *, by: By = None) -> None:
    """Delete rows older than their retention: inbox rows, kept messages, dead letters, idempotency keys, effects.

    OUTBOXKIT_INBOX_RETENTION is 14 days if it is not set. Kept messages and dead letters go if their retention is set.

    Safe to kill, to repeat and to run beside relays and consumers. Only one works at a time, a second one ends at once.
    On PostgreSQL it also makes the partitions of the days to come. Exit 3 if the role may not do that.

    Example: OUTBOXKIT_PUBLISHED_RETENTION=7d outboxkit prune
    """
    done = asyncio.run(_prune(settings, by))
    if not done.alone:
        typer.echo("nothing done: another prune is running on this database")
        return
    for line in _lines(done, settings):
        typer.echo(line)
    for problem in done.problems:
        again = "; the next prune tries again" if done.busy else ""
        typer.echo(f"outboxkit: not done: {problem}{again}", err=True)
    if done.problems and not done.busy:
        sys.exit(INCOMPLETE)


async def _prune(settings: Settings, by: str | None) -> Pruned:
    names = ("inbox_retention", "published_retention", "dead_retention")
    periods = {name: span(period.total_seconds()) for name in names if (period := getattr(settings, name)) is not None}
    async with connected(settings, "prune", pool_size=1) as engine:
        await schema.check_worker(engine)
        async with (
            audit.recorded(engine, "prune", periods, by=by) as running,
            compose.retention(settings, name="outboxkit prune") as worker,
        ):
            so_far = Pruned()
            with progress("pruned", lambda: _rows(so_far)):
                done = await worker.prune(so_far)
            running.uncounted, running.result = _rows(done), _result(done)
            return done


def _rows(done: Pruned) -> int:
    return done.inbox + done.dead + done.idempotency + done.effects + done.published


def _result(done: Pruned) -> str:
    if not done.alone:
        return "nothing: another prune was running"
    days = len(done.inbox_days_dropped) + len(done.days_dropped)
    dropped = [f"{many(days, 'partition')} dropped"] if days else []
    return ", ".join([audit.DONE, *dropped, *(f"not done: {each}" for each in done.problems)])


def _lines(done: Pruned, settings: Settings) -> Iterator[str]:
    yield f"inbox: {many(done.inbox, 'row')} deleted"
    yield from _days("inbox", "day", "dropped", done.inbox_days_dropped)
    yield from _days("inbox", "partition", "made", done.inbox_days_made)
    if settings.dead_retention is not None:
        yield f"dead letters: {many(done.dead, 'row')} deleted, {done.dead_open} of them open"
    if done.idempotency:
        yield f"idempotency keys: {many(done.idempotency, 'row')} deleted"
    if done.effects:
        yield f"effects: {many(done.effects, 'row')} deleted"
    if done.untouched:
        yield "published: left alone; OUTBOXKIT_PUBLISHED_RETENTION is not set, and messages are kept"
    if settings.published_retention is None:
        return
    yield from _days("published", "day", "dropped", done.days_dropped)
    strays = many(done.published, "row deleted that was", "rows deleted that were")
    yield f"published: {strays} in no day's partition"
    yield from _days("published", "partition", "made", done.days_made)


def _days(name: str, noun: str, verb: str, days: list[date]) -> Iterator[str]:
    if days:
        span_ = str(days[0]) if len(days) == 1 else f"{min(days)} to {max(days)}"
        yield f"{name}: {many(len(days), noun)} {verb}, {span_}"
