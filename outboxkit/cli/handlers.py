"""`outboxkit handlers`: the handlers that consumers have registered, and forgetting those of a queue."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection

from outboxkit import schema
from outboxkit.cli.listing import Plain, PlainGroup
from outboxkit.cli.options import DATABASE, AsJson, By, with_settings
from outboxkit.cli.wording import UNFOLDED, in_utc, many, printable_name
from outboxkit.consumer.membership import GONE
from outboxkit.runtime import compose, known_handlers
from outboxkit.runtime.known_handlers import KnownHandler
from outboxkit.runtime.settings import Settings
from outboxkit.statements.activity import NEVER

T = TypeVar("T")

app = typer.Typer(
    cls=PlainGroup,
    name="handlers",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List the handlers that consumers have registered, or forget those of a queue.",
    epilog="Example: outboxkit handlers list. Exit codes: 0 done, 1 failed, 2 wrong usage or settings.",
)

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue of the consumer.")]
Names = Annotated[
    list[str] | None, typer.Option("--handler", metavar="NAME", help="Only this handler of it; several times for more.")
]


@with_settings(*DATABASE)
def list_handlers(settings: Settings, *, as_json: AsJson = False) -> None:
    """List the handlers that the consumers of each queue have registered, and when they were last seen.

    Example: outboxkit handlers list
    """
    known = asyncio.run(_in_transaction(settings, known_handlers.read_handlers))
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(known)).decode() + "\n")
    elif not known:
        typer.echo("no handler")
    else:
        Console(highlight=False, width=None if sys.stdout.isatty() else UNFOLDED).print(_table(known))


@with_settings(*DATABASE)
def forget(settings: Settings, of_queue: Queue, *, names: Names = None, by: By = None) -> None:
    """Forget the handlers of a queue that was a mistake, or is given up. It is refused while its consumer is connected.

    Neither the inbox nor the queue is touched. A consumer that is started again registers its handlers again.

    Example: outboxkit handlers forget biling
    """

    def work(connection: Connection) -> tuple[list[str], str | None]:
        forgotten = known_handlers.forget_queue(connection, of_queue, names=names or (), by=by)
        return forgotten, None if names else known_handlers.forget_shards(connection, of_queue, gone=GONE)

    forgotten, left = asyncio.run(_in_transaction(settings, work))
    names_of = printable_name(", ".join(forgotten))
    typer.echo(f"forgot {many(len(forgotten), 'handler')} of queue {printable_name(of_queue)}: {names_of}")
    if left:
        typer.echo(f"left at the broker, with the dead queue of each queue: {printable_name(left)}")


app.command("list", cls=Plain, short_help="List the handlers of each queue's consumers.")(list_handlers)
app.command("forget", cls=Plain, short_help="Forget the handlers of a queue that was a mistake.")(forget)


async def _in_transaction(settings: Settings, work: Callable[[Connection], T]) -> T:
    engine = compose.database(settings, name="outboxkit handlers")
    try:
        async with engine.begin() as connection:
            await connection.run_sync(schema.check)
            return await connection.run_sync(work)
    finally:
        await engine.dispose()


def _table(known: Sequence[KnownHandler]) -> Table:
    listing = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("queue", "handler", "last seen"):
        listing.add_column(name, no_wrap=True)
    for name in ("types", "function"):
        listing.add_column(name, overflow="fold")
    for one in known:
        seen = "connected" if one.is_connected else "no longer" if one.last_seen <= NEVER else in_utc(one.last_seen)
        texts = (one.queue, one.handler, seen, ", ".join(one.types or ()) or "-", one.function or "-")
        listing.add_row(*(Text(printable_name(text)) for text in texts))
    return listing
