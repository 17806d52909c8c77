"""What the demo shows: progress while it runs, then a table, then what to type next."""

import asyncio

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from outboxkit.cli.demo.story import ROLLED_BACK_EVERY, Story, Tally

NEXT = """
The same on PostgreSQL and RabbitMQ, with handlers of your own:

  export OUTBOXKIT_DATABASE_URL=postgresql+psycopg://user:password@localhost/shop
  export OUTBOXKIT_BROKER_URL=amqp://guest:guest@localhost:5672/

  outboxkit migrate
  outboxkit relay
  outboxkit consume shop.handlers --queue billing
"""

_console = Console(highlight=False)


async def watch(story: Story) -> None:
    """Run the story and show how far each party has come."""
    columns = (TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    committed = story.wanted - story.wanted // ROLLED_BACK_EVERY
    with Progress(*columns, console=_console) as progress:
        bars = [
            progress.add_task(name, total=total)
            for name, total in (("orders", story.wanted), ("published", committed), ("delivered", committed))
        ]
        telling = asyncio.create_task(story.tell())
        while True:
            done, _ = await asyncio.wait({telling}, timeout=0.1)
            story.count_deliveries()
            tally = story.tally
            for bar, completed in zip(bars, (tally.taken, tally.published, tally.deliveries), strict=True):
                progress.update(bar, completed=completed, total=max(progress.tasks[bar].total or 0, completed))
            if done:
                break
    await telling


def result(tally: Tally, *, with_inbox: bool) -> None:
    """Print what was counted, the verdict, and what to type next."""
    table = Table(title="outboxkit demo" if with_inbox else "outboxkit demo, without the inbox", title_justify="left")
    table.add_column("what happened")
    table.add_column("count", justify="right")
    table.add_row("orders taken", str(tally.taken))
    table.add_row("  rolled back, so never sent", str(tally.rolled_back))
    table.add_row("  committed", str(tally.orders))
    table.add_row("messages published", str(tally.published))
    table.add_row("  again, after the relay crashed before settling", str(tally.published_again))
    table.add_row("deliveries, a fifth of them sent twice", str(tally.deliveries))
    table.add_row("  duplicates caught by the inbox", str(tally.duplicates) if with_inbox else "no inbox")
    table.add_row("effects (receipts in the database)", str(tally.effects), end_section=True)
    for name, count in (("lost", tally.lost), ("doubled", tally.doubled), ("invented", tally.invented)):
        table.add_row(f"[bold]{name}[/bold]", f"[bold {'green' if count == 0 else 'red'}]{count}[/]")
    _console.print()
    _console.print(table)
    if tally.is_right:
        _console.print("Every committed order has exactly one effect.", style="green")
    else:
        counted = f"{tally.lost} lost, {tally.doubled} doubled, {tally.invented} invented"
        _console.print(f"Effects: {counted}." + ("" if with_inbox else " That is what the inbox is for."), style="red")
    _console.print(NEXT, soft_wrap=True)
