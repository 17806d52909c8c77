"""Shards of an ordered queue: the exchange that divides its messages by their keys, and the move to other shards."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import aio_pika
import aiormq

from outboxkit.brokers.rabbitmq import connection, rights
from outboxkit.brokers.rabbitmq.topology import Queues
from outboxkit.errors import BrokerUnavailable, ConfigurationError
from outboxkit.headers import OWN
from outboxkit.sources import Shards

KIND = "x-consistent-hash"
PLUGIN = "rabbitmq_consistent_hash_exchange"
KEY = f"{OWN}key"
MOVED = "outboxkit.moved"
"""The type of the message that stands behind the last one of an old shard."""
ROUTED_SECONDS = 1.0
"""The time that a message gets to arrive in its queue after it was routed."""


def move_id(queue: str, move: int) -> str:
    """The message id of the markers of one change of a queue's number of shards."""
    return f"{queue}:{move}"


Topics = Sequence[str | tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ShardMove:
    """The move of an ordered queue's messages from one number of shards to another one.

    Attributes:
        url: the broker's.
        exchange: the exchange to which relays publish.
        topics: the routing keys of the queue's messages; `(exchange, key)` of another exchange.
        delays: the retry delays.
        timeout: the limit in seconds for each answer of the broker.
    """

    url: str
    exchange: str
    topics: Topics
    delays: Sequence[timedelta]
    timeout: float = 10.0

    async def bind(self, shards: Shards) -> None:
        """Declare the queues of these shards, and have them get the messages.

        Raises:
            BrokerUnavailable: the connection was lost.
            ConfigurationError: the broker refuses a queue, or lacks the plugin with the exchange.
        """
        async with self._connected(shards) as opened:
            await declare(opened, shards, self.exchange, self.topics, self.delays, self.timeout, self._vhost)

    async def begin(self, before: Shards, after: Shards, move: int) -> tuple[str, ...]:
        """Bind the new shards, take the bindings of the old ones away, and put a marker behind their messages.

        Safe to repeat. In between, a message may come to both; the inbox knows it the second time. Returns the old
        shards that exist.

        Raises:
            BrokerUnavailable: the connection was lost.
            ConfigurationError: as `bind`.
        """
        async with self._connected(after) as opened:
            old = Queues(before.queue, self.exchange, (), self.delays, ordered=True, vhost=self._vhost)
            there = [name for name in before.names if await old.depth(opened, name, self.timeout) is not None]
            await declare(opened, after, self.exchange, self.topics, self.delays, self.timeout, self._vhost)
            with connection.convert_errors(f"cannot take the bindings of {before.queue!r} away"):
                await self._release(opened, before)
                if there:
                    await asyncio.sleep(ROUTED_SECONDS)
                channel = await opened.channel()
                id_, durable = move_id(after.queue, move), aio_pika.DeliveryMode.PERSISTENT
                marker = aio_pika.Message(b"", type=MOVED, message_id=id_, delivery_mode=durable)
                for name in there:
                    await channel.default_exchange.publish(marker, name, mandatory=True, timeout=self.timeout)
            return tuple(there)

    @property
    def _vhost(self) -> str:
        return connection.vhost(self.url)

    @asynccontextmanager
    async def _connected(self, shards: Shards) -> AsyncIterator[aio_pika.abc.AbstractConnection]:
        sources = [topic[0] for topic in self.topics if not isinstance(topic, str)]
        divider = shards.exchange if shards.count > 1 else None
        needed = rights.of_consumer(
            shards.consumed, exchange=self.exchange, delays=self.delays, sources=sources, divider=divider
        )
        opened = await connection.connect(self.url, name=f"outboxkit shards {shards.queue}", timeout=self.timeout)
        try:
            with connection.naming_rights(needed.command(self._vhost, rights.user_of(self.url))):
                yield opened
        finally:
            await connection.close(opened)

    async def _release(self, opened: aio_pika.abc.AbstractConnection, before: Shards) -> None:
        channel = await opened.channel()
        if before.count > 1:
            await channel.exchange_delete(before.exchange, timeout=self.timeout)
            return
        queue = await channel.get_queue(before.queue, ensure=False)
        for topic in self.topics:
            source, key = (self.exchange, topic) if isinstance(topic, str) else topic
            await queue.unbind(source, routing_key=key, timeout=self.timeout)


async def declare(
    opened: aio_pika.abc.AbstractConnection,
    shards: Shards,
    exchange: str,
    topics: Topics,
    delays: Sequence[timedelta],
    timeout: float,
    vhost: str,
) -> None:
    """Declare and bind all queues of a number of shards, and last the exchange that divides messages among them.

    Raises:
        BrokerUnavailable: the connection was lost.
        ConfigurationError: the broker refuses a queue, or lacks the plugin with the exchange.
    """
    own = topics if shards.count == 1 else ()
    divider: aio_pika.abc.AbstractExchange | None = None
    try:
        if shards.count > 1:  # first: without the plugin nothing is declared
            with connection.convert_errors(f"cannot declare exchange {shards.exchange!r}"):
                channel = await opened.channel()
                divider = await channel.declare_exchange(
                    shards.exchange, KIND, durable=True, arguments={"hash-header": KEY}, timeout=timeout
                )
        for name in shards.consumed:
            await Queues(name, exchange, own, delays, ordered=True, vhost=vhost).prepare(opened, timeout)
        if divider is None:
            return
        with connection.convert_errors(f"cannot bind the shards of {shards.queue!r}"):
            for name in shards.names:
                queue = await channel.get_queue(name, ensure=False)
                await queue.bind(divider, routing_key="1", timeout=timeout)  # its share, and not a key
            for topic in topics:
                source, key = (exchange, topic) if isinstance(topic, str) else topic
                await divider.bind(source, routing_key=key, timeout=timeout)
            await channel.close()
    except BrokerUnavailable as error:
        if isinstance(error.__cause__, aiormq.exceptions.ConnectionCommandInvalid) or KIND in str(error):
            raise ConfigurationError(
                f"--shards needs an exchange of type {KIND}, which this broker does not have. Enable the plugin that "
                f"ships with RabbitMQ, on each node: rabbitmq-plugins enable {PLUGIN}"
            ) from error
        raise
