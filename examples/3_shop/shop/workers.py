"""What runs beside the web server: from the outbox to the payment provider, and from its answers to the handlers.

Without a broker the relay hands them to the handlers itself. With `OUTBOXKIT_BROKER_URL` they take their way through
RabbitMQ, and each of these could run in a process of its own: `outboxkit relay --destination payments`,
`outboxkit relay`, `outboxkit consume shop.handlers`.
"""

import asyncio
import os

from outboxkit import compose, inbox, settings
from outboxkit.brokers import Publisher
from outboxkit.brokers.direct import DirectPublisher
from outboxkit.inbox import Handler
from outboxkit.settings import Settings
from shop import handlers
from shop.database import URL

OURS = {"database_url": URL, "destination": "default", "publish_timeout": "5s", "batch_size": "50"}
"""What the shop says; the environment says the rest."""


async def work(payments_url: str, stop: asyncio.Event) -> None:
    """Until `stop` is set."""
    every = inbox.handlers_in([handlers])
    to_provider = settings.load({**OURS, "destination": "payments", "broker_url": f"{payments_url}/charges"})
    to_handlers = settings.load({**OURS, "queue": os.environ.get("OUTBOXKIT_QUEUE", "shop")})
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(relay(to_provider, stop))
        if os.environ.get("OUTBOXKIT_BROKER_URL"):
            tasks.create_task(consume(to_handlers, every, stop))
            tasks.create_task(relay(to_handlers, stop))
        else:
            tasks.create_task(relay_to(every, to_handlers, stop))


async def relay(chosen: Settings, stop: asyncio.Event, publisher: Publisher | None = None) -> None:
    async with compose.relay(chosen, publisher=publisher) as worker:
        await worker.run(stop)


async def consume(chosen: Settings, every: list[Handler], stop: asyncio.Event) -> None:
    async with compose.consumer(chosen, every) as worker:
        await worker.run(stop)


async def relay_to(every: list[Handler], chosen: Settings, stop: asyncio.Event) -> None:
    engine = compose.database(chosen, name="shop handlers")
    try:
        await relay(chosen, stop, DirectPublisher(engine, every, timeout=chosen.publish_timeout))
    finally:
        await engine.dispose()
