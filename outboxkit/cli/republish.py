"""`outboxkit republish`: kept messages, published again to one queue."""

import asyncio
import sys
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from outboxkit.cli.confirming import ChangeOptions, work_through
from outboxkit.cli.connections import connected, in_transaction
from outboxkit.cli.options import Key, Rate, Type, moment_option, period, with_options
from outboxkit.cli.wording import iso
from outboxkit.errors import ConfigurationError
from outboxkit.errors.figures import many, printable_name
from outboxkit.exit_codes import FAILED, INCOMPLETE
from outboxkit.message import NAME_LIMIT
from outboxkit.operators.replay import KeptMessages, Replayed, ReplaySelection, replaying
from outboxkit.runtime.known_handlers import read_handlers
from outboxkit.runtime.outage import utc_now
from outboxkit.runtime.settings import Settings
from outboxkit.statements.handlers import NEVER

Queue = Annotated[str, typer.Option("--to-queue", metavar="NAME", help="The queue to publish to. It must exist.")]
IdsFile = Annotated[
    str | None,
    typer.Option("--ids-file", metavar="FILE", help="Only the message ids in this file, one a line; - is stdin."),
]
Since = Annotated[str | None, moment_option("--since", "Only messages published since")]
Until = Annotated[str | None, moment_option("--until", "Only messages published before")]
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
        return ReplaySelection(
            self.type_,
            self.key,
            *period(self.since, self.until, utc_now()),
            destination,
            tuple(dict.fromkeys(handlers)),
            frozenset(_read_ids(self.ids_file) if self.ids_file is not None else ()),
        )


@with_options("destination", logs=True)
def republish(
    settings: Settings,
    messages: KeptOptions,
    options: ChangeOptions,
    *,
    to_queue: Queue,
    handlers: Handlers = None,
    rate: Rate = None,
) -> None:
    """Publish kept messages again, same ids, to one queue: to rebuild a read model.

    Needs OUTBOXKIT_PUBLISHED_RETENTION at the relay. Exit 3 if it was stopped before the end, or messages were deleted
    before it came to them.

    Example: outboxkit republish --to-queue statistics --type OrderConfirmed --since 7d
    """
    selection = messages.selection(settings.destination, handlers or [])
    to_do = asyncio.run(_find(settings, selection, to_queue))
    typer.echo(_described(to_do, to_queue, selection.handlers))
    _doubt_names(settings, selection.handlers, to_queue)
    if not to_do.count or not options.is_confirmed("Publish them again?", "published"):
        return
    done = Replayed(total=to_do.count)

    async def work(stop: asyncio.Event) -> None:
        counted = replace(selection, until=to_do.until)
        async with (
            connected(settings, "republish", pool_size=1) as engine,
            replaying(engine, settings, counted, to_queue, rate=rate, by=options.by) as worker,
        ):
            await worker.run(stop, done)

    work_through(
        *(settings, "republished", to_do.count, lambda: done.count, work, lambda: _say(done, to_do.until)),
        upto=lambda: f", up to {iso(done.upto)}" if done.upto else "",
    )
    sys.exit(FAILED if done.refused is not None else 0 if done.complete else INCOMPLETE)


async def _find(settings: Settings, selection: ReplaySelection, queue: str) -> KeptMessages:
    async with (
        connected(settings, "republish", pool_size=1, only_reads=True) as engine,
        replaying(engine, settings, selection, queue) as worker,
    ):
        return await worker.find()


def _doubt_names(settings: Settings, handlers: tuple[str, ...], queue: str) -> None:
    """Warn of handlers with which no consumer of the queue was seen; it may have another database."""
    known = in_transaction(settings, "republish", read_handlers, only_reads=True) if handlers else []
    seen = [each.handler for each in known if each.queue == queue and each.last_seen > NEVER]
    unseen = [name for name in handlers if name not in seen]
    if seen and unseen:
        names = f"{', '.join(unseen)}, only with {', '.join(seen)}"
        doubt = f"no consumer of queue {queue} was seen with handler {names}: is the name right?"
        typer.echo(f"outboxkit: {printable_name(doubt)}", err=True)


def _read_ids(path: str) -> list[str]:
    """The message ids in a file, one a line."""
    accepted = "a file of text with a message id on each line is accepted, or - for standard input"
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text("utf-8-sig")
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


def _say(done: Replayed, until: datetime) -> None:
    """Print what was done, and how to go on."""
    typer.echo(f"republished {done.count} of {done.total}")
    if done.gone:
        typer.echo(
            f"outboxkit: {many(done.gone, 'message')} of the selection were deleted while it ran, and the queue "
            "did not get them. Raise OUTBOXKIT_PUBLISHED_RETENTION, or republish faster",
            err=True,
        )
    elif not done.complete and done.upto is not None:
        typer.echo(f"to go on: --since {iso(done.upto)} --until {iso(until)}", err=True)
    if done.refused is not None:
        typer.echo(f"outboxkit: not published: {done.refused}", err=True)
