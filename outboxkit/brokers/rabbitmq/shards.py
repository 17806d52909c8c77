"""Shards of an ordered queue: the exchange that divides its messages by their keys, and the move to other shards."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import aio_pika
import aiormq

from outboxkit.brokers.rabbitmq import connection
from outboxkit.brokers.rabbitmq.topology import Queues
from outboxkit.errors import BrokerUnavailable, ConfigurationError
from outboxkit.headers import OWN
from outboxkit.sources import Shards

KIND = "x-consistent-hash"
PLUGIN = "rabbitmq_consistent_hash_exchange"
KEY = f"{OWN}key"

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

    async def begin(self, before: Shards, after: Shards) -> bool:
        """Bind the new shards, and then take the bindings of the old ones away. Safe to repeat.

        In between, a message may come to both; the inbox knows it the second time. Returns whether the queue existed
        before, so that something may be in its old shards.

        Raises:
            BrokerUnavailable: the connection was lost.
            ConfigurationError: the broker refuses a queue, or lacks the plugin with the exchange.
        """
        opened = await connection.connect(self.url, name=f"outboxkit shards {after.queue}", timeout=self.timeout)
        try:
            old = Queues(before.names[0], self.exchange, (), self.delays, ordered=True)
            existed = await old.depth(opened, before.names[0], self.timeout) is not None
            await declare(opened, after, self.exchange, self.topics, self.delays, self.timeout)
            with connection.convert_errors(f"cannot take the bindings of {before.queue!r} away"):
                await self._release(opened, before)
            return existed
        finally:
            await connection.close(opened)

    async def is_empty(self, queue: str) -> bool:
        """Whether a queue has no message and no consumer, which might hold some.

        Raises:
            BrokerUnavailable: the connection was lost.
        """
        opened = await connection.connect(self.url, name=f"outboxkit shards {queue}", timeout=self.timeout)
        try:
            with connection.convert_errors(f"cannot look at queue {queue!r}"):
                channel = await opened.channel()
                declared = (await channel.declare_queue(queue, passive=True, timeout=self.timeout)).declaration_result
                return not declared.message_count and not declared.consumer_count
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
) -> None:
    """Declare and bind all queues of a number of shards, and last the exchange that divides messages among them.

    Raises:
        BrokerUnavailable: the connection was lost.
        ConfigurationError: the broker refuses a queue, or lacks the plugin with the exchange.
    """
    for name in shards.consumed:
        await Queues(name, exchange, topics if shards.count == 1 else (), delays, ordered=True).prepare(opened, timeout)
    if shards.count == 1:
        return
    try:
        with connection.convert_errors(f"cannot declare exchange {shards.exchange!r}"):
            channel = await opened.channel()
            divider = await channel.declare_exchange(
                shards.exchange,
                KIND,
                durable=True,
                arguments={"hash-header": KEY},
                timeout=timeout,
            )
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
