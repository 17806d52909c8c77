"""Shards of an ordered queue: the exchange that divides its messages by their keys, and the move to other shards."""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import aio_pika

from outboxkit.brokers.rabbitmq import connection, rights
from outboxkit.brokers.rabbitmq.topology import Queues
from outboxkit.codec.headers import BUCKET
from outboxkit.errors import BrokerUnavailable, ConfigurationError
from outboxkit.runtime.sources import BUCKETS, Shards

MOVED = "outboxkit.moved"
"""The type of the message that stands behind the last one of an old shard."""


def move_id(queue: str, move: int) -> str:
    """The message id of the markers of one change of a queue's number of shards."""
    return f"{queue}:{move}"


def move_of(queue: str, message_id: str | None) -> int | None:
    """The number of the change whose marker has this message id; None if it is another message's."""
    name, _, number = (message_id or "").rpartition(":")
    return int(number) if name == queue and number.isdecimal() else None


Topics = Sequence[str | tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ShardMove:
    """The move of an ordered queue's messages from one number of shards to another one.

    Attributes:
        topics: the routing keys of the queue's messages; `(exchange, key)` of another exchange.
        timeout: the limit in seconds for each answer of the broker.
    """

    url: str
    exchange: str
    topics: Topics
    delays: Sequence[timedelta]
    timeout: float = 10.0

    async def prepare(self, before: Shards, after: Shards) -> bool:
        """Declare the queues of new shards, which get no messages yet; whether there are old ones.

        Raises:
            ConfigurationError: the broker refuses a queue, or has another exchange of this name.
        """
        async with self._connected(after) as opened:
            there = await self._existing(opened, before)
            await self._declare(opened, after, topics=())
        return bool(there)

    async def bind(self, shards: Shards) -> None:
        """Declare the queues of these shards, and have them get the messages.

        Raises:
            BrokerUnavailable, ConfigurationError: as `prepare`.
        """
        async with self._connected(shards) as opened:
            await self._bind(opened, shards)

    async def begin(self, before: Shards, after: Shards, move: int) -> tuple[str, ...]:
        """Bind the new shards, and take the bindings of the old ones away. Returns the old ones that exist.

        Safe to repeat. In between, a message may come to both; the inbox knows it the second time. The marker comes
        first: a consumer that had a new shard as an old one of before, and knows nothing of this change, stops there.

        Raises:
            BrokerUnavailable, ConfigurationError: as `prepare`.
        """
        async with self._connected(after) as opened:
            there = await self._existing(opened, before)
            await self._declare(opened, after, topics=())
            await self._publish_markers(opened, after, after.names, move)
            await self._bind(opened, after)
            with connection.convert_errors(f"cannot take the bindings of {before.queue!r} away"):
                await self._release(opened, before)
            return there

    async def mark(self, shards: Shards, queues: Iterable[str], move: int) -> None:
        """Publish the marker of the change to these shards behind all messages of old ones. Safe to repeat."""
        async with self._connected(shards) as opened:
            await self._publish_markers(opened, shards, queues, move)

    async def _publish_markers(
        self, opened: aio_pika.abc.AbstractConnection, shards: Shards, queues: Iterable[str], move: int
    ) -> None:
        with connection.convert_errors(f"cannot mark the change of the shards of {shards.queue!r}"):
            channel = await opened.channel()
            id_, durable = move_id(shards.queue, move), aio_pika.DeliveryMode.PERSISTENT
            marker = aio_pika.Message(b"", type=MOVED, message_id=id_, delivery_mode=durable)
            for name in queues:
                await channel.default_exchange.publish(marker, name, mandatory=True, timeout=self.timeout)

    async def _existing(self, opened: aio_pika.abc.AbstractConnection, shards: Shards) -> tuple[str, ...]:
        queues = self._queues(shards.queue)
        depths = {name: await queues.depth(opened, name, self.timeout) for name in shards.names}
        return tuple(name for name, depth in depths.items() if depth is not None)

    def _queues(self, name: str, topics: Topics = ()) -> Queues:
        return Queues(name, self.exchange, topics, self.delays, ordered=True, vhost=self._vhost)

    @property
    def _vhost(self) -> str:
        return connection.vhost(self.url)

    @asynccontextmanager
    async def _connected(self, shards: Shards) -> AsyncIterator[aio_pika.abc.AbstractConnection]:
        sources = [topic[0] for topic in self.topics if not isinstance(topic, str)]
        needed = rights.of_consumer(
            shards.consumed, exchange=self.exchange, delays=self.delays, sources=sources, shards=shards
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
            for name in (before.exchange, before.rest):
                await channel.exchange_delete(name, timeout=self.timeout)
            return
        queue = await channel.get_queue(before.queue, ensure=False)
        for source, key in self._sources():
            await queue.unbind(source, routing_key=key, timeout=self.timeout)

    def _sources(self) -> Iterator[tuple[str, str]]:
        """The exchanges and routing keys of the queue's messages."""
        for topic in self.topics:
            yield (self.exchange, topic) if isinstance(topic, str) else topic

    async def _bind(self, opened: aio_pika.abc.AbstractConnection, shards: Shards) -> None:
        """Declare all queues of a number of shards, and bind them, last the exchange that divides messages."""
        await self._declare(opened, shards, topics=self.topics if shards.count == 1 else ())
        if shards.count == 1:
            return
        with connection.convert_errors(f"cannot bind the shards of {shards.queue!r}"):
            channel = await opened.channel()
            divider = await channel.get_exchange(shards.exchange, ensure=False)
            queues = [await channel.get_queue(name, ensure=False) for name in shards.names]
            await queues[0].bind(shards.rest, timeout=self.timeout)
            for bucket in range(BUCKETS):
                queue = queues[bucket % shards.count]
                await queue.bind(divider, arguments={BUCKET: str(bucket)}, timeout=self.timeout)
            for source, key in self._sources():
                await divider.bind(source, routing_key=key, timeout=self.timeout)

    async def _declare(self, opened: aio_pika.abc.AbstractConnection, shards: Shards, *, topics: Topics) -> None:
        """Declare the queue itself, the exchanges if it is split, and then the shards: the likely refusals first."""
        await self._queues(shards.queue, topics).prepare(opened, self.timeout)
        if shards.count == 1:
            return
        try:
            with connection.convert_errors(f"cannot declare exchange {shards.exchange!r}"):
                channel = await opened.channel()
                await channel.declare_exchange(shards.rest, "fanout", durable=True, timeout=self.timeout)
                await channel.declare_exchange(
                    *(shards.exchange, "headers"),
                    durable=True,
                    arguments={"alternate-exchange": shards.rest},
                    timeout=self.timeout,
                )
        except BrokerUnavailable as error:
            if connection.is_permanent(error.__cause__):
                raise ConfigurationError(f"{error}. Start with another number of --shards") from error
            raise
        for name in shards.names:
            await self._queues(name).prepare(opened, self.timeout)
