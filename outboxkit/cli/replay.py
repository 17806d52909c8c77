"""`outboxkit replay`: kept messages, published again to one queue."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import typer
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import statements
from outboxkit.cli.confirming import ask_first, work_through
from outboxkit.cli.connections import connected
from outboxkit.cli.options import By, DryRun, Key, Rate, Type, Yes, point_in_time, with_options
from outboxkit.cli.wording import iso
from outboxkit.errors import ConfigurationError
from outboxkit.errors.figures import many, printable_name
from outboxkit.message import NAME_LIMIT
from outboxkit.operators.replay import KeptMessages, Replayed, Replayer, ReplaySelection
from outboxkit.runtime import process
from outboxkit.runtime.outage import utc_now
from outboxkit.runtime.settings import Settings
from outboxkit.statements.activity import NEVER

FAILED, INCOMPLETE = 1, 3
"""Exit codes: the broker refused a message; it was stopped before the end, or messages were deleted meanwhile."""

Queue = Annotated[str, typer.Option("--to-queue", metavar="NAME", help="The queue to publish to. It must exist.")]
IdsFile = Annotated[
    str | None,
    typer.Option("--ids-file", metavar="FILE", help="Only the message ids in this file, one a line; - is stdin."),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="WHEN", help="Only messages published since: 2026-03-01T12:00Z, or 2h for 2 h ago."
    ),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="WHEN", help="Only messages published before. As --since.")
]
Handlers = Annotated[
    list[str] | None,
    typer.Option("--handler", metavar="NAME", help="Only this handler runs for them; may be given several times."),
]


@dataclass(frozen=True, slots=True)
class KeptOptions:
    """The options that select kept messages."""

    PANEL: ClassVar = "Messages"
    type_: Type = None
    key: Key = None
    since: Since = None
    until: Until = None
    ids_file: IdsFile = None

    def selection(self, destination: str, handlers: list[str]) -> ReplaySelection:
        """The selection."""
        for name in handlers:
            if not 0 < len(name.encode()) <= NAME_LIMIT:
                raise ConfigurationError(
                    f"--handler is {name[:20]!r}: a handler's name of 1 to {NAME_LIMIT} bytes is accepted"
                )
        now = utc_now()
        return ReplaySelection(
            self.type_,
            self.key,
            point_in_time("--since", self.since, now),
            point_in_time("--until", self.until, now),
            destination,
            tuple(dict.fromkeys(handlers)),
            frozenset(_read_ids(self.ids_file) if self.ids_file is not None else ()),
        )


@with_options("destination", logs=True)
def replay(
    settings: Settings,
    messages: KeptOptions,
    *,
    to_queue: Queue,
    handlers: Handlers = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    by: By = None,
) -> None:
    """Publish kept messages again, same ids, to one queue: to rebuild a read model.

    Needs OUTBOXKIT_PUBLISHED_RETENTION at the relay. Exit 3 if it was stopped before the end, or messages were deleted
    before it came to them.

    Example: outboxkit replay --to-queue statistics --type OrderConfirmed --since 7d
    """
    selection = messages.selection(settings.destination, handlers or [])
    to_do, seen = asyncio.run(_find(settings, selection, to_queue))
    typer.echo(_described(to_do, to_queue, selection.handlers))
    unseen = [name for name in selection.handlers if name not in seen]
    if seen and unseen:  # without any, its consumers may have another database
        names = f"{', '.join(unseen)}, only with {', '.join(seen)}"
        doubt = f"no consumer of queue {to_queue} was seen with handler {names}: is the name right?"
        typer.echo(f"outboxkit: {printable_name(doubt)}", err=True)
    if dry_run or not to_do.count:
        return
    ask_first("Publish them again?", "published", yes=yes)
    done = Replayed(total=to_do.count)

    async def work(stop: asyncio.Event) -> None:
        counted = replace(selection, until=to_do.until)
        async with _replayer(settings, counted, to_queue, rate=rate, by=by) as (worker, _):
            await worker.run(stop, done)

    work_through(
        *(settings, "replayed", to_do.count, lambda: done.count, work, lambda: _say(done)),
        upto=lambda: f", up to {iso(done.upto)}" if done.upto else "",
    )
    sys.exit(FAILED if done.refused is not None else 0 if done.complete else INCOMPLETE)


@asynccontextmanager
async def _replayer(
    settings: Settings, selection: ReplaySelection, queue: str, *, rate: float | None = None, by: str | None = None
) -> AsyncIterator[tuple[Replayer, AsyncEngine]]:
    publisher = process.queue_publisher(settings.broker_url.get_secret_value(), queue, timeout=settings.publish_timeout)
    async with connected(settings, "replay", pool_size=1) as engine:
        try:
            yield Replayer(engine, publisher, selection, rate=rate, patience=settings.publish_timeout, by=by), engine
        finally:
            await publisher.close()


async def _find(settings: Settings, selection: ReplaySelection, queue: str) -> tuple[KeptMessages, list[str]]:
    """The messages, and the handlers with which consumers of the queue were seen."""
    async with _replayer(settings, selection, queue) as (worker, engine):
        messages = await worker.find()
        async with engine.connect() as connection:
            rows = await connection.execute(statements.activity.of_all_handlers())
            return messages, [row.handler for row in rows if row.queue == queue and row.last_seen > NEVER]


def _read_ids(path: str) -> list[str]:
    """The message ids in a file, one a line."""
    accepted = "a file of text with a message id on each line is accepted, or - for standard input"
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
    except OSError as error:
        raise ConfigurationError(f"--ids-file is {path!r}: it cannot be read ({error.strerror}); {accepted}") from None
    except ValueError:
        raise ConfigurationError(f"--ids-file is {path!r}: it is not text in UTF-8; {accepted}") from None
    ids = [line.strip() for line in text.splitlines() if line.strip()]
    if not ids:
        raise ConfigurationError(f"--ids-file is {path!r}: it holds no message id; {accepted}")
    return ids


def _described(messages: KeptMessages, queue: str, handlers: tuple[str, ...]) -> str:
    if messages.first is None:
        return "no such message is kept: a relay keeps messages while OUTBOXKIT_PUBLISHED_RETENTION is set"
    between = f"published from {iso(messages.first)} to {iso(messages.last)}"
    alone = f" and its handlers {', '.join(handlers)} alone" if handlers else ""
    absent = f"; of the ids, {messages.absent} are not kept" if messages.absent else ""
    return f"{many(messages.count, 'message')} for queue {queue}{alone}, {between}{absent}"


def _say(done: Replayed) -> None:
    """Print what was done, and how to go on."""
    typer.echo(f"replayed {done.count} of {done.total}")
    if done.gone:
        typer.echo(
            f"outboxkit: {many(done.gone, 'message')} of the selection were deleted while it ran, and the queue "
            "did not get them. Raise OUTBOXKIT_PUBLISHED_RETENTION, or replay faster",
            err=True,
        )
    elif not done.complete and done.upto is not None:
        typer.echo(f"to go on: --since {iso(done.upto)}", err=True)
    if done.refused is not None:
        typer.echo(f"outboxkit: not published: {done.refused}", err=True)
