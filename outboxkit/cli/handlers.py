"""`outboxkit handlers`: the handlers that consumers have registered, and forgetting those of a queue."""

from typing import Annotated

import typer
from sqlalchemy import Connection

from outboxkit.cli.commands import group
from outboxkit.cli.connections import in_transaction
from outboxkit.cli.options import AsJson, By, with_options
from outboxkit.cli.wording import print_json, print_table
from outboxkit.consumer.membership import GONE
from outboxkit.errors.figures import in_utc, many, printable_name
from outboxkit.operators.handlers import forget_queue, forget_shards
from outboxkit.runtime import known_handlers
from outboxkit.runtime.known_handlers import KnownHandler
from outboxkit.runtime.settings import Settings
from outboxkit.statements.handlers import NEVER

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue of the consumer.")]
COLUMNS = {"queue": "whole", "handler": "whole", "last seen": "whole", "types": "folded", "function": "folded"}


@with_options()
def list_handlers(settings: Settings, *, as_json: AsJson = False) -> None:
    """List the handlers that the consumers of each queue have registered, and when they were last seen.

    Example: outboxkit handlers list
    """
    known = in_transaction(settings, "handlers", known_handlers.read_handlers, only_reads=True)
    if as_json:
        print_json(known)
    elif not known:
        typer.echo("no handler")
    else:
        print_table(COLUMNS, map(_cells, known))


@with_options()
def forget(settings: Settings, of_queue: Queue, *, by: By = None) -> None:
    """Forget the handlers of a queue that was a mistake, or is given up. It is refused while its consumer is connected.

    Neither the inbox nor the queue is touched. A consumer that is started again registers its handlers again.

    Example: outboxkit handlers forget biling
    """

    def work(connection: Connection) -> tuple[list[str], str | None]:
        forgotten = forget_queue(connection, of_queue, by=by)
        return forgotten, forget_shards(connection, of_queue, gone=GONE)

    forgotten, left = in_transaction(settings, "handlers", work, only_reads=False)
    names_of = printable_name(", ".join(forgotten))
    typer.echo(f"forgot {many(len(forgotten), 'handler')} of queue {printable_name(of_queue)}: {names_of}")
    if left:
        typer.echo(f"left at the broker, with the dead queue of each queue: {printable_name(left)}")


def _cells(one: KnownHandler) -> tuple[str, ...]:
    seen = "connected" if one.is_connected else "no longer" if one.last_seen <= NEVER else in_utc(one.last_seen)
    return one.queue, one.handler, seen, ", ".join(one.types or ()) or "-", one.function or "-"


app = group(
    "handlers",
    "0 done, 1 failed, 2 wrong usage or settings. Example: outboxkit handlers list",
    list=list_handlers,
    forget=forget,
)
