"""What is seen of a consumer through an outage: its log, the effects of its handlers, the inbox, and its queues."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import aio_pika
import psycopg
from sqlalchemy import select, text

from outboxkit import tables
from tests.acceptance.deployment import Deployment
from tests.acceptance.shop import GATE, GATED
from tests.acceptance.witness import assert_discreet, states
from tests.acceptance.worker_process import WorkerProcess
from tests.support.delays import WAITING
from tests.support.pages import libpq
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually

TYPES = ("SaleMade", "StockMoved")
"""One is handled message by message, the other one in batches."""
AT_THE_GATE = text(
    "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database "
    "WHERE datname = current_database() AND locktype = 'advisory' AND objid = :gate AND NOT granted"
)


class Customers:
    """Publishes messages of both types, and remembers which. Begins with a consumer that has handled some."""

    def __init__(self, deployment: Deployment, **settings: str) -> None:
        self.deployment = deployment
        self.sent: list[str] = []
        self.consumer = self.start_consumer(**settings)
        self.consumer.wait_for("consumer connected")
        self.send()
        self.wait_for_effects()

    def start_consumer(self, **settings: str) -> WorkerProcess:
        """Another one, or one anew."""
        self.consumer = self.deployment.start("consumer", "tests.acceptance.till", **settings)
        return self.consumer

    def send(self, count: int = 5) -> None:
        """So many of each type."""
        numbers = range(len(self.sent), len(self.sent) + count)
        ids = [(type_, f"{type_} {number}", number) for type_ in TYPES for number in numbers]
        asyncio.run(publish_at_once(self.deployment.broker, ids))
        self.sent += [message_id for _, message_id, _ in ids]

    def wait_in_the_middle(self) -> None:
        """Return once a handler and a batch wait at the gate."""
        eventually(self._at_the_gate, lambda found: found == len(TYPES))

    def wait_for_gated_effects(self) -> None:
        """Return once those that waited at the gate had their effects: a consumer without a broker has no others."""
        self.wait_for_effects([sent for sent in self.sent if int(sent.split()[1]) % 5 == GATED])

    def wait_for_effects(self, wanted: Collection[str] = ()) -> None:
        """Return once these, or all, had their effects; AssertionError where one had two."""
        found = eventually(
            lambda: Counter(self.deployment.message_ids()),
            lambda found: set(found) >= set(wanted or self.sent) or not self.consumer.is_running,
        )
        assert self.consumer.is_running, self.consumer.log.read_text()
        assert found <= Counter(self.sent)

    def attempts(self) -> Counter[tuple[str, int]]:
        """What the inbox says: how many messages a handler was done with at which attempt."""
        columns = (tables.inbox.c.handler, tables.inbox.c.attempts)
        with self.deployment.engine.connect() as connection:
            return Counter((handler, attempt) for handler, attempt in connection.execute(select(*columns)))

    def assert_all_handled(self, what: str, *, times: int = 1) -> None:
        """Work has resumed by itself, also for new messages: each effect is there once, and nothing was counted.

        The log says once for each outage of `what` that it is away and that it is back, and nothing else that a
        person would look at: no failure, no traceback, no password.
        """
        self.deployment.broker.disconnect()  # it may have gone with the outage
        self.send()
        self.wait_for_effects()
        self.consumer.wait_for(f"{what} is back, work goes on", times=times)
        assert states(self.consumer, what) == ["away", "back"] * times
        assert self.consumer.stop() == 0
        self.assert_nothing_counted()
        told = Counter(entry["event"] for entry in self.consumer.entries() if entry["level"] in ("warning", "error"))
        del told[f"{what} is still away"]  # a server that is slow to start is spoken of each minute
        assert told == +Counter({f"{what} is away, waiting": times})
        assert_discreet(self.consumer.log.read_text(), self.deployment)

    def assert_nothing_counted(self) -> None:
        """Every message was handled at its first attempt, no queue holds one any more, and none is a dead letter."""
        assert Counter(self.deployment.message_ids()) == Counter(self.sent)
        each = len(self.sent) // len(TYPES)
        assert self.attempts() == {("BookSale", 1): each, ("CountStock", 1): each}
        assert self.depths() == Counter()
        assert not self.deployment.dead_letters()
        with self.deployment.engine.connect() as connection:
            assert connection.execute(select(tables.attempt)).all() == []

    def depths(self) -> Counter[str]:
        """How many messages are ready in the queue, its retry steps and its dead letter queue, where there are any."""
        broker = self.deployment.broker
        names = {"queue": broker.queue, ".dead": f"{broker.queue}.dead"} | {name: name for name in WAITING}
        return +Counter({name: broker.depth(queue) for name, queue in names.items()})

    def _at_the_gate(self) -> int:
        with self.deployment.engine.connect() as connection:
            return int(connection.execute(AT_THE_GATE, {"gate": GATE}).scalar_one())


async def publish_at_once(broker: PlainClient, messages: Sequence[tuple[str, str, int]]) -> None:
    """Publish messages of these types, ids and numbers, one behind the other, and wait for all confirms."""
    connection = await aio_pika.connect(broker.url)
    async with connection, connection.channel() as channel:
        exchange = await channel.get_exchange(broker.exchange, ensure=False)
        published = [
            exchange.publish(
                aio_pika.Message(b'{"number":%d}' % number, type=type_, message_id=message_id), routing_key=type_
            )
            for type_, message_id, number in messages
        ]
        await asyncio.gather(*published)


@contextmanager
def gate_shut(deployment: Deployment) -> Iterator[Any]:
    """Messages wait in the middle of their transactions, until the connection is closed or the database goes."""
    url = libpq(deployment.engine.url.render_as_string(hide_password=False))
    connection = psycopg.connect(url, autocommit=True)
    try:
        connection.execute("SELECT pg_advisory_lock(%s)", (GATE,))
        yield connection
    finally:
        with suppress(psycopg.Error):
            connection.close()
