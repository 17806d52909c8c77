"""The workers beside the web server: from the outbox to the payment provider, and from its answers to the handlers.

Without a broker the relay hands the answers to the handlers itself. With `OUTBOXKIT_BROKER_URL` they go through
RabbitMQ. Then each worker could be a process of its own: `outboxkit relay --destination payments`, `outboxkit relay`,
`outboxkit consume shop.handlers`.
"""

import asyncio
import os

from outboxkit import inbox
from outboxkit.brokers import Publisher
from outboxkit.consumer.direct import DirectPublisher
from outboxkit.runtime import compose
from outboxkit.runtime.settings import Settings, load
from shop import handlers
from shop.database import URL

OURS = {"database_url": URL, "destination": "default", "publish_timeout": "5s", "batch_size": "50"}
"""The shop's own settings; the environment says the rest."""
HANDLERS = inbox.handlers_in([handlers])


async def work(payments_url: str, stop: asyncio.Event) -> None:
    """Run all workers until `stop` is set."""
    to_provider = load({**OURS, "destination": "payments", "broker_url": f"{payments_url}/charges"})
    to_handlers = load({**OURS, "queue": os.environ.get("OUTBOXKIT_QUEUE", "shop")})
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(relay(to_provider, stop))
        if os.environ.get("OUTBOXKIT_BROKER_URL"):
            tasks.create_task(consume(to_handlers, stop))
            tasks.create_task(relay(to_handlers, stop))
        else:
            tasks.create_task(relay_to_handlers(to_handlers, stop))


async def relay(settings: Settings, stop: asyncio.Event, publisher: Publisher | None = None) -> None:
    async with compose.relay(settings, publisher=publisher) as worker:
        await worker.run(stop)


async def consume(settings: Settings, stop: asyncio.Event) -> None:
    async with compose.consumer(settings, HANDLERS) as worker:
        await worker.run(stop)


async def relay_to_handlers(settings: Settings, stop: asyncio.Event) -> None:
    engine = compose.database(settings, name="shop handlers")
    try:
        await relay(settings, stop, DirectPublisher(engine, HANDLERS, timeout=settings.publish_timeout))
    finally:
        await engine.dispose()
