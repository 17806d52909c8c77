"""The consumer as a program of your own: `OUTBOXKIT_QUEUE=billing python workers/consumer.py billing.handlers`."""

import asyncio
import sys

from outboxkit.runtime import admin, compose


async def consume(settings: "compose.Settings", stop: asyncio.Event) -> int:
    """Handle deliveries until `stop` is set. A copy may import its modules and call `inbox.handlers_in` with them."""
    handlers, wiring = compose.load_handlers(sys.argv[1:]), compose.load_wiring(sys.argv[1:])
    async with compose.consumer(settings, handlers, wiring=wiring) as worker, admin.serving(settings, worker):
        await worker.run(stop)
    return 0


if __name__ == "__main__":
    sys.exit(compose.main("consumer", consume, arguments=True))
