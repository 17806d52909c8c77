"""`outboxkit audit list`: the actions of operators."""

import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection

from outboxkit import schema
from outboxkit.cli.listing import Plain, PlainGroup
from outboxkit.cli.options import DATABASE, AsJson, point_in_time, with_settings
from outboxkit.cli.wording import UNFOLDED, in_utc, number, printable_name
from outboxkit.runtime import audit, compose
from outboxkit.runtime.outage import utc_now
from outboxkit.runtime.settings import Settings
from outboxkit.schema import partitions

app = typer.Typer(
    cls=PlainGroup,
    name="audit",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List the actions of operators.",
    epilog="Example: outboxkit audit list --since 7d. Exit codes: 0 done, 1 failed, 2 wrong usage or settings.",
)
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)

Since = Annotated[
    str | None,
    typer.Option("--since", metavar="WHEN", help="Only actions that began since: 2026-03-01T12:00Z, or 7d."),
]
Limit = Annotated[
    int, typer.Option("--limit", metavar="NUMBER", min=1, max=10_000, help="The newest N.", show_default=True)
]


@with_settings(*DATABASE)
def list_actions(settings: Settings, *, since: Since = None, limit: Limit = 50, as_json: AsJson = False) -> None:
    """List the actions of operators, the newest first: pauses, replays, discards, prunes by hand.

    An action without a result is running, or was killed. Of dead letters its count is right then, too.

    Example: outboxkit audit list --since 7d
    """
    actions = asyncio.run(_read(settings, since, limit))
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(actions)).decode() + "\n")
    elif not actions:
        typer.echo("no action" if since is None else f"no action since {since}")
    else:
        Console(highlight=False, width=None if sys.stdout.isatty() else UNFOLDED).print(_table(actions))


@app.callback()
def _group() -> None:
    """Without a callback, typer takes an app of one command for that command."""


app.command("list", cls=Plain, short_help="List the actions of operators, the newest first.")(list_actions)


async def _read(settings: Settings, text: str | None, limit: int) -> list[audit.AuditedAction]:
    point_in_time("--since", text, utc_now())  # a bad value is refused without a database
    engine = compose.database(settings, name="outboxkit audit")
    try:
        async with engine.connect() as connection:
            await connection.run_sync(schema.check)
            since = point_in_time("--since", text, await partitions.clock(connection)) or BEGINNING

            def read(plain: Connection) -> list[audit.AuditedAction]:
                return audit.read_actions(plain, since=since, limit=limit)

            return await connection.run_sync(read)
    finally:
        await engine.dispose()


def _table(actions: Sequence[audit.AuditedAction]) -> Table:
    listing = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("when", "action"):
        listing.add_column(name, no_wrap=True)
    listing.add_column("count", justify="right")
    for name in ("by", "result", "filter"):
        listing.add_column(name, overflow="fold")
    for one in actions:
        when = in_utc(one.started_at)
        filter_ = msgspec.json.encode(one.filter).decode()
        texts = (when, one.action, number(one.count), one.operator, one.result or "not ended", filter_)
        listing.add_row(*(Text(printable_name(text)) for text in texts))
    return listing
