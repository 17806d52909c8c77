"""Retention as a program that keeps running, if no timer runs `outboxkit prune`: `python workers/retention.py`."""

import asyncio
import sys
from datetime import timedelta

from outboxkit.runtime import admin, compose

INTERVAL = timedelta(hours=1)


async def retain(settings: "compose.Settings", stop: asyncio.Event) -> int:
    """Prune now and after each `INTERVAL`, until `stop` is set."""
    async with compose.retention(settings) as worker, admin.serving(settings, worker):
        await worker.run(stop, interval=INTERVAL)
    return 0


if __name__ == "__main__":
    sys.exit(compose.main("retention", retain))
