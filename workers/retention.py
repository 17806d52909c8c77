"""Retention as a program that stays, for where no timer runs `outboxkit prune`: `python workers/retention.py`."""

import asyncio
import sys

from outboxkit import compose
from outboxkit.settings import Settings


async def retain(chosen: Settings, stop: asyncio.Event) -> int:
    """Prune now and after each `OUTBOXKIT_PRUNE_INTERVAL`, until `stop` is set."""
    async with compose.retention(chosen) as worker:
        await worker.run(stop, interval=chosen.prune_interval)
    return 0


if __name__ == "__main__":
    sys.exit(compose.main("retention", retain))
