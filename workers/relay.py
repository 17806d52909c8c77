"""The relay as a program of your own, if `outboxkit relay` is not enough: `python workers/relay.py`."""

import asyncio
import sys

from outboxkit.runtime import admin, compose


async def relay(settings: "compose.Settings", stop: asyncio.Event) -> int:
    """Publish until `stop` is set. A copy may pass an engine or a publisher of its own to `compose.relay`."""
    async with compose.relay(settings) as worker, admin.serving(settings, worker):
        await worker.run(stop)
    return 0


if __name__ == "__main__":
    sys.exit(compose.main("relay", relay))
