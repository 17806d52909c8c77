"""`outboxkit prune`: apply retention now."""

import asyncio

import typer

from outboxkit import process
from outboxkit.cli.options import DATABASE, with_settings
from outboxkit.retention import Retention
from outboxkit.settings import Settings


@with_settings(*DATABASE, "inbox_retention")
def prune(chosen: Settings) -> None:
    """Forget inbox rows that are older than the retention. Safe to kill and to repeat.

    Example: outboxkit prune --inbox-retention 30d
    """
    typer.echo(f"inbox: {asyncio.run(_prune(chosen))} rows forgotten")


async def _prune(chosen: Settings) -> int:
    engine = process.engine(chosen.database_url.get_secret_value(), name="outboxkit prune")
    try:
        return await Retention(engine, inbox_retention=chosen.inbox_retention).prune()
    finally:
        await engine.dispose()
