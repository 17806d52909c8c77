"""`outboxkit dead list` and `outboxkit dead show`."""

import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from sqlalchemy import Row

from outboxkit import compose
from outboxkit.cli.dead import show as shown
from outboxkit.cli.dead.wanted import MEMORY, Wanted, rules, with_filters
from outboxkit.cli.options import DATABASE, AsJson, with_settings
from outboxkit.cli.status.wording import number
from outboxkit.deadletters import DeadLetters, Found
from outboxkit.errors import ConfigurationError
from outboxkit.settings import Settings

MOST_SHOWN = 100
PIPED_WIDTH = 1000
"""Wide enough that no line is broken: whoever reads it looks for whole names."""

Limit = Annotated[
    int, typer.Option("--limit", metavar="NUMBER", min=1, max=10_000, help="The newest N.", show_default=True)
]
All = Annotated[bool, typer.Option("--all", help="Also those that were replayed or discarded.")]
Named = Annotated[list[str], typer.Argument(metavar="ID", help="Numbers of dead letters (digits), or message ids.")]


@with_settings(*DATABASE, *MEMORY)
@with_filters
def list_(chosen: Settings, wanted: Wanted, *, limit: Limit = 50, all_: All = False, as_json: AsJson = False) -> None:
    """List dead letters, the newest first: those that are neither replayed nor discarded.

    Example: outboxkit dead list --type OrderConfirmed --newer-than 1d
    """
    found = asyncio.run(_find(chosen, wanted, limit=limit, resolved=all_))
    more, judge = found.count - len(found.rows), rules(chosen)
    if as_json:
        listed = [shown.listed(row, judge.refusal(row, found.now)) for row in found.rows]
        _print_json({"dead_letters": listed, "more": more})
        return
    if not found.rows:
        typer.echo("no dead letters" if all_ and wanted.says_nothing else _nothing(wanted, resolved=all_))
        return
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH
    refused = [judge.refusal(row, found.now) for row in found.rows]
    Console(highlight=False, width=width).print(shown.table(found.rows, refused, found.now))
    for line in shown.legend(found.rows, refused):
        typer.echo(line)
    if more:
        typer.echo(f"and {number(more)} more: --limit shows more of them, filters fewer")


@with_settings(*DATABASE, *MEMORY)
def show(chosen: Settings, given: Named, *, as_json: AsJson = False) -> None:
    """Show all about dead letters, open or not: why, since when, headers, payload, and who resolved them.

    A message id may have several. Exit 2 where there is none.

    Example: outboxkit dead show 7
    """
    now, rows = asyncio.run(_read(chosen, tuple(given)))
    judge = rules(chosen)
    missing = [one for one in given if not any(one in (str(row.id), row.message_id) for row in rows)]
    if as_json:
        _print_json([shown.shown(row, judge.refusal(row, now)) for row in rows])
    else:
        for index, row in enumerate(rows):
            typer.echo(("\n" if index else "") + "\n".join(shown.one(row, judge.refusal(row, now), now)))
    if missing:
        raise ConfigurationError(nowhere(missing))
    if len(rows) == MOST_SHOWN:
        typer.echo(f"the first {MOST_SHOWN} are shown", err=True)


def nowhere(missing: Sequence[str]) -> str:
    """What to say of arguments that name no dead letter."""
    names = ", ".join(repr(one) for one in missing[:5]) + (" …" if len(missing) > 5 else "")
    return f"no dead letter is {names}; a number or a message id from `outboxkit dead list --all` is accepted"


def _nothing(wanted: Wanted, *, resolved: bool) -> str:
    what = "no dead letter" if resolved else "no open dead letter"
    return what if wanted.says_nothing else f"{what} is like that"


def _print_json(found: Any) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")


async def _find(chosen: Settings, wanted: Wanted, *, limit: int, resolved: bool) -> Found:
    engine = compose.database(chosen, name="outboxkit dead")
    try:
        letters = DeadLetters(engine)
        return await letters.find(wanted.selection(await letters.now(), resolved=resolved), limit=limit)
    finally:
        await engine.dispose()


async def _read(chosen: Settings, given: tuple[str, ...]) -> tuple[datetime, Sequence[Row[Any]]]:
    engine = compose.database(chosen, name="outboxkit dead")
    try:
        letters = DeadLetters(engine)
        now = await letters.now()
        return now, await letters.read(Wanted().selection(now, given, resolved=True), limit=MOST_SHOWN)
    finally:
        await engine.dispose()
