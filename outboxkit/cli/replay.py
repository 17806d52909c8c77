"""`outboxkit replay`: kept messages, published again to one queue."""

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import statements
from outboxkit.brokers import Publisher
from outboxkit.cli.options import DATABASE, PROCESS, By, ask_first, point_in_time, with_settings
from outboxkit.cli.wording import many, now_and_then, printable_name
from outboxkit.errors import ConfigurationError
from outboxkit.message import NAME_LIMIT
from outboxkit.operators.replay import KeptMessages, Replayed, Replayer, ReplaySelection
from outboxkit.runtime import compose, process
from outboxkit.runtime.outage import utc_now
from outboxkit.runtime.settings import Settings
from outboxkit.statements.activity import NEVER

FAILED, INCOMPLETE = 1, 3
"""Exit codes: the broker refused a message; it was stopped before the end, or messages were deleted meanwhile."""

Queue = Annotated[str, typer.Option("--to-queue", metavar="NAME", help="The queue to publish to. It must exist.")]
Type = Annotated[str | None, typer.Option("--type", metavar="NAME", help="Only messages of this type.")]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only messages with this key.")]
Ids = Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="Only this message id; may be repeated.")]
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
Rate = Annotated[float | None, typer.Option("--rate", metavar="NUMBER", min=0.01, help="Messages a second, at most.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Publish nothing, only print the plan.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def _selecting(command: Callable[..., None]) -> Callable[..., None]:
    """Turn `command(settings, selection, ...)` into one that takes the options of a selection instead."""

    def with_options(
        settings: Settings,
        *,
        id_: Ids = None,
        ids_file: IdsFile = None,
        type_: Type = None,
        key: Key = None,
        since: Since = None,
        until: Until = None,
        **own: Any,
    ) -> None:
        now, named = utc_now(), frozenset([*(id_ or []), *(_read_ids(ids_file) if ids_file is not None else [])])
        published = point_in_time("--since", since, now), point_in_time("--until", until, now)
        selection = ReplaySelection(type_, key, *published, settings.destination, message_ids=named)
        command(settings, selection, **own)

    first, _, *own = inspect.signature(command).parameters.values()
    options = list(inspect.signature(with_options).parameters.values())[1:-1]
    with_options.__signature__ = inspect.Signature([first, *options, *own])  # type: ignore[attr-defined]
    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    return with_options


@with_settings(*DATABASE, "destination", "broker_url", "publish_timeout", *PROCESS)
@_selecting
def replay(
    settings: Settings,
    selection: ReplaySelection,
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
    selection = replace(selection, handlers=_checked(handlers or []))
    messages, seen = asyncio.run(_find(settings, selection, to_queue))
    typer.echo(_described(messages, to_queue, selection.handlers))
    unseen = [name for name in selection.handlers if name not in seen]
    if seen and unseen:  # without any, its consumers may have another database
        typer.echo(f"outboxkit: {printable_name(_doubt(to_queue, unseen, seen))}", err=True)
    if dry_run or not messages.count:
        return
    ask_first("Publish them again?", "published", yes=yes)
    sys.exit(_replay(settings, replace(selection, until=messages.until), to_queue, rate, messages.count, by))


def _checked(handlers: list[str]) -> tuple[str, ...]:
    for name in handlers:
        if not 0 < len(name.encode()) <= NAME_LIMIT:
            raise ConfigurationError(
                f"--handler is {name[:20]!r}: a handler's name of 1 to {NAME_LIMIT} bytes is accepted"
            )
    return tuple(dict.fromkeys(handlers))


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
    if messages.first is None or messages.last is None:
        return "no such message is kept: a relay keeps messages while OUTBOXKIT_PUBLISHED_RETENTION is set"
    between = f"published from {_written(messages.first)} to {_written(messages.last)}"
    alone = f" and its handlers {', '.join(handlers)} alone" if handlers else ""
    absent = f"; of the ids, {messages.absent} are not kept" if messages.absent else ""
    return f"{many(messages.count, 'message')} for queue {queue}{alone}, {between}{absent}"


def _doubt(queue: str, unseen: list[str], seen: list[str]) -> str:
    """The sentence that a handler's name may be a typo."""
    names = f"{', '.join(unseen)}, only with {', '.join(seen)}"
    return f"no consumer of queue {queue} was seen with handler {names}: is the name right?"


async def _find(settings: Settings, selection: ReplaySelection, queue: str) -> tuple[KeptMessages, list[str]]:
    """The messages, and the handlers with which consumers of the queue were seen."""
    engine, publisher = _connections(settings, "")
    try:
        messages = await Replayer(engine, publisher, selection).find()
        async with engine.connect() as connection:
            rows = await connection.execute(statements.activity.of_all_handlers())
            return messages, [row.handler for row in rows if row.queue == queue and row.last_seen > NEVER]
    finally:
        await engine.dispose()


def _replay(
    settings: Settings, selection: ReplaySelection, queue: str, rate: float | None, total: int, by: str | None
) -> int:
    done = Replayed(total=total)

    async def work(stop: asyncio.Event) -> int:
        engine, publisher = _connections(settings, queue)
        try:
            with _shown(total) as show:
                patience = settings.publish_timeout
                worker = Replayer(engine, publisher, selection, rate=rate, patience=patience, by=by)
                await worker.run(stop, done, show)
        finally:
            await publisher.close()
            await engine.dispose()
        return 0

    try:
        process.run(work, shutdown_timeout=settings.shutdown_timeout)
    finally:
        typer.echo(f"replayed {done.count} of {total}")
        if done.gone:
            typer.echo(
                f"outboxkit: {many(done.gone, 'message')} of the selection were deleted while it ran, and the queue "
                "did not get them. Raise OUTBOXKIT_PUBLISHED_RETENTION, or replay faster",
                err=True,
            )
        elif not done.complete and done.upto is not None:
            typer.echo(f"to go on: --since {_written(done.upto)}", err=True)
    if done.refused is not None:
        typer.echo(f"outboxkit: not published: {done.refused}", err=True)
        return FAILED
    return 0 if done.complete else INCOMPLETE


def _connections(settings: Settings, queue: str) -> tuple[AsyncEngine, Publisher]:
    engine = compose.database(settings, name="outboxkit replay", pool_size=1)
    url = settings.broker_url.get_secret_value()
    return engine, process.queue_publisher(url, queue, timeout=settings.publish_timeout)


@contextmanager
def _shown(total: int) -> Iterator[Callable[[Replayed], None]]:
    """A progress bar on a terminal; elsewhere a line now and then, in case it is killed."""
    if not sys.stderr.isatty():
        yield now_and_then(lambda done: f"replayed {done.count} of {total}, up to {_written(done.upto)}")
        return
    from rich.console import Console  # noqa: PLC0415 - a terminal alone shows a bar
    from rich.progress import Progress, TextColumn  # noqa: PLC0415

    columns = (*Progress.get_default_columns(), TextColumn("{task.completed} of {task.total}, {task.fields[upto]}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("replayed", total=total, upto="")

        def show(done: Replayed) -> None:
            bar.update(task, completed=done.count, upto=_written(done.upto))

        yield show


def _written(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
