"""`outboxkit status`: what waits, how long, and what was given up on."""

import asyncio
from datetime import datetime
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from outboxkit import migrations, process, statements
from outboxkit.cli.options import DATABASE, AsJson, with_settings
from outboxkit.outage import utc_now
from outboxkit.settings import Settings


@with_settings(*DATABASE)
def status(chosen: Settings, *, as_json: AsJson = False) -> None:
    """Show pending messages by type with the oldest one's age, the inbox, and the dead letters.

    Example: outboxkit status --json
    """
    url = chosen.database_url.get_secret_value()
    found = asyncio.run(_read(url, utc_now()))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        _show(found)


async def _read(url: str, now: datetime) -> dict[str, Any]:
    engine = process.engine(url, name="outboxkit status")
    try:
        async with engine.connect() as connection:
            await connection.run_sync(migrations.check)
            pending = (await connection.execute(statements.pending_by_type())).all()
            later, next_due = (await connection.execute(statements.count_later(now))).one()
            processed = (await connection.execute(statements.count_processed())).all()
            dead = (await connection.execute(statements.count_dead())).all()
    finally:
        await engine.dispose()
    oldest = min((row[2] for row in pending if row[2] is not None), default=None)
    return {
        "outbox": {
            "pending": sum(row[1] for row in pending),
            "waiting_for_later": later,
            "next_due": next_due,
            "oldest_age_seconds": None if oldest is None else max(round((now - oldest).total_seconds(), 1), 0),
            "by_type": {row[0]: {"pending": row[1], "failed_before": row[3]} for row in pending},
        },
        "inbox": {"processed": sum(row[1] for row in processed), "by_handler": {row[0]: row[1] for row in processed}},
        "dead_letters": {
            "count": sum(row[2] for row in dead),
            "by_reason": [{"side": row[0], "reason": row[1], "count": row[2]} for row in dead],
        },
    }


def _show(found: dict[str, Any]) -> None:
    outbox, inbox, dead = found["outbox"], found["inbox"], found["dead_letters"]
    age = outbox["oldest_age_seconds"]
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("outbox", f"{outbox['pending']} pending" + ("" if age is None else f", the oldest for {age:g} s"))
    if outbox["waiting_for_later"]:
        table.add_row(
            "",
            f"{outbox['waiting_for_later']} of them wait for a later time, the next {outbox['next_due']:%H:%M:%S} UTC",
        )
    for kind, counts in outbox["by_type"].items():
        failed = f", {counts['failed_before']} failed before" if counts["failed_before"] else ""
        table.add_row("", escape(f"  {kind}: {counts['pending']}{failed}"))
    table.add_row("inbox", f"{inbox['processed']} processed")
    for handler, count in inbox["by_handler"].items():
        table.add_row("", escape(f"  {handler}: {count}"))
    table.add_row("dead letters", str(dead["count"]))
    for row in dead["by_reason"]:
        table.add_row("", f"  {row['side']}, {row['reason']}: {row['count']}")
    Console(highlight=False).print(table)
