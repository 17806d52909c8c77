"""`outboxkit demo`: the whole story on an embedded database and a broker inside the process."""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from outboxkit.cli.demo.story import Story, result, watch
from outboxkit.runtime import process

WithoutInbox = Annotated[
    bool, typer.Option("--without-inbox", help="Handle every delivery as if it were the first, and see the damage.")
]
Orders = Annotated[
    int, typer.Option("--orders", metavar="NUMBER", min=10, max=100_000, help="How many orders are taken.")
]


def demo(*, orders: Orders = 1000, without_inbox: WithoutInbox = False) -> None:
    """Take orders, roll some back, deliver messages twice, crash the relay; then count effects.

    Nothing has to be installed or running. Relay, consumer and tables are the ones that run in production.
    Exits 1 if an effect was lost or happened twice.

    Example: outboxkit demo --without-inbox
    """
    process.configure_log(level="error", format="console")
    with tempfile.TemporaryDirectory(prefix="outboxkit-demo-") as folder:
        story = Story(f"sqlite:///{Path(folder) / 'shop.db'}", orders=orders, with_inbox=not without_inbox)
        asyncio.run(watch(story))
    tally = story.tally
    result(tally, with_inbox=not without_inbox)
    sys.exit(0 if tally.is_right else 1)
