"""What runs beside the web server: from the outbox to the payment provider, and from its answers to the handlers.

Without a broker the relay hands them to the handlers itself. With `OUTBOXKIT_BROKER_URL` they take their way through
RabbitMQ, and each of these could run in a process of its own: `outboxkit relay --destination payments`,
`outboxkit relay`, `outboxkit consume shop.handlers`.
"""

import asyncio
import os
from contextlib import suppress
from datetime import timedelta

from outboxkit import inbox, process, settings
from outboxkit.brokers import Publisher
from outboxkit.brokers.direct import DirectPublisher
from outboxkit.brokers.http import HttpPublisher
from outboxkit.consumer import Consumer
from outboxkit.errors import BrokerUnavailable
from outboxkit.relay import Relay
from shop import handlers
from shop.database import URL

LIMIT = timedelta(seconds=5)
"""How long the provider may take for an answer, and the handlers for a message."""


async def work(payments_url: str, stop: asyncio.Event) -> None:
    """Until `stop` is set."""
    every = inbox.handlers_in([handlers])
    engine = process.engine(URL, name="shop workers", pool_size=9)
    payments = HttpPublisher(f"{payments_url}/charges", timeout=LIMIT)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(relay(payments, "payments", stop))
        if broker_url := os.environ.get("OUTBOXKIT_BROKER_URL"):
            chosen = settings.load({"database_url": URL})
            exchange, name = chosen.exchange, chosen.queue or "shop"
            queue = process.subscriber(broker_url, name, exchange=exchange, topics=["CardCharged"])
            with suppress(BrokerUnavailable):  # then it is declared later
                await queue.connect()  # before anything is published: what finds no queue has to wait
            tasks.create_task(Consumer(engine, queue, every, queue=name).run(stop))
            tasks.create_task(relay(process.publisher(broker_url, exchange=exchange, timeout=LIMIT), "default", stop))
        else:
            tasks.create_task(relay(DirectPublisher(engine, every, timeout=LIMIT), "default", stop))
    await engine.dispose()


async def relay(publisher: Publisher, destination: str, stop: asyncio.Event) -> None:
    own = process.relay_engine(URL, publish_timeout=2 * LIMIT)
    worker = Relay(own, publisher, destination=destination, batch_size=50)
    try:
        await worker.run(stop)
    finally:
        await own.dispose()
