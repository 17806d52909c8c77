"""The relay's side of RabbitMQ: persistent, mandatory, confirmed. None of the three can be turned off.

A `QueuePublisher` publishes to one queue, past every binding, through the default exchange.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import aio_pika
import structlog

from outboxkit import urls
from outboxkit.brokers import Receipt
from outboxkit.brokers.rabbitmq import connection
from outboxkit.brokers.rabbitmq.channel import ConfirmChannel, open_channel
from outboxkit.brokers.rabbitmq.confirms import Loss
from outboxkit.brokers.rabbitmq.plan import NOBODY, PublishPlan, SerializedRoutes, blames_a_message
from outboxkit.brokers.rabbitmq.taps import ConfirmParser
from outboxkit.brokers.reserved import QUEUE
from outboxkit.errors import BrokerUnavailable
from outboxkit.message import Message

HEARTBEAT_SECONDS = 5
"""Shorter than a consumer's: no handler ever holds up a relay's event loop."""


class RabbitPublisher:
    """Publishes to one durable topic exchange, which it declares.

    Args:
        url: `amqp://` or `amqps://`; several, separated by commas, are tried in an order of this publisher's own, and
            the next one after each loss.
        exchange: its name.
        timeout: how long a batch may wait for its confirms, and a connection for its handshake.
        app_id: AMQP's `app_id` property of every message.
        clock: seconds that only grow, for tests.
        shuffle: what finds that order, for tests.
    """

    def __init__(
        self,
        url: str,
        *,
        exchange: str,
        timeout: timedelta = timedelta(seconds=10),
        app_id: str = "outboxkit",
        clock: Callable[[], float] = time.monotonic,
        shuffle: Callable[[list[str]], None] = random.shuffle,
    ) -> None:
        self._addresses = connection.Addresses(url, shuffle=shuffle)
        self._exchange = exchange
        self._timeout = timeout.total_seconds()
        self._app_id = app_id
        self._connection: aio_pika.abc.AbstractConnection | None = None
        self._answers = ConfirmParser()
        self._channel: ConfirmChannel | None = None
        self._clock, self._opened_at = clock, float("-inf")
        self._caution = SerializedRoutes(clock)
        self._suspects = NOBODY
        self._log = structlog.get_logger("outboxkit").bind(process="relay")

    @property
    def address(self) -> str:
        """The broker's, without user and password."""
        return urls.shown(",".join(self._addresses.urls))

    async def connect(self) -> None:
        """Open the connection and declare the exchange, unless that is done.

        Raises:
            BrokerUnavailable: not reachable, or it takes no publishes now, for lack of memory or disk.
        """
        if self._channel is not None and self._channel.is_open:
            self._raise_if_blocked(self._channel)
            return
        await self._open_anew()

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        """Publish a batch and await its confirms; after a timeout the connection is given up: its state is unknown."""
        self._raise_if_blocked(self._working_channel())
        plan = PublishPlan(batch, self._caution, self._suspects)
        try:
            async with asyncio.timeout(self._timeout):
                if plan.wants_new_connection(self._opened_at) and self._caution.refusals.may_reconnect():
                    await self._open_anew()
                reason = await self._send(plan)
        except BrokerUnavailable as error:
            reason = str(error)
        except TimeoutError:
            reason = await self._out_of_time()
        self._suspects = plan.still_suspect()
        receipts = plan.finish(reason)
        for news in self._caution.refusals.news():
            self._log.warning("broker takes no messages of a route, they wait", reason=news)
        return receipts

    async def close(self) -> None:
        """Disconnect; a later `connect` opens anew."""
        gone, self._connection, self._channel = self._connection, None, None
        await connection.close(gone)

    async def _send(self, plan: PublishPlan) -> str:
        """Send wave after wave; returns why it ended before all was decided."""
        while wave := plan.next_wave():
            channel = self._working_channel()
            unsent = await channel.send(plan, wave)
            loss = channel.tracker.lost
            if loss is None:
                continue
            if not (blames_a_message(loss) and channel.tracker.may_blame):
                return loss.reason
            plan.broke(loss, channel.tracker.unanswered(), unsent)
            await self._replace(loss)
        return ""

    def _working_channel(self) -> ConfirmChannel:
        if self._channel is None or not self._channel.is_open:
            raise BrokerUnavailable("the connection to the broker is closed")
        return self._channel

    async def _replace(self, lost: Loss) -> None:
        """Open what the broker has closed because of a message."""
        if lost.connection_too or self._connection is None:
            await self._open_anew()
        else:
            self._channel = await self._open_channel(self._connection)

    async def _open_anew(self) -> None:
        await self.close()
        self._answers = ConfirmParser()
        self._connection = await connection.connect(
            self._addresses,
            name="outboxkit relay",
            timeout=self._timeout,
            tap=self._answers,
            heartbeat=HEARTBEAT_SECONDS,
        )
        self._opened_at = self._clock()
        self._channel = await self._open_channel(self._connection)
        self._caution.connected()

    async def _open_channel(self, on: aio_pika.abc.AbstractConnection) -> ConfirmChannel:
        return await open_channel(
            on, self._answers, exchange=self._exchange, app_id=self._app_id, timeout=self._timeout
        )

    async def _out_of_time(self) -> str:
        """Leave the connection, unless the broker only holds it: it says when it goes on, and keeps what it has."""
        channel = self._channel
        if channel is not None and channel.is_open and channel.tracker.blocked_by is not None:
            return _blocked(channel.tracker.blocked_by)
        await self.close()
        return "the broker did not answer in time"

    def _raise_if_blocked(self, channel: ConfirmChannel) -> None:
        if channel.tracker.blocked_by is not None:
            raise BrokerUnavailable(_blocked(channel.tracker.blocked_by))


def _blocked(reason: str) -> str:
    return f"the broker has blocked publishers: {reason or 'it does not say why'}"


DEFAULT_EXCHANGE = ""
"""Every queue is bound to it by its own name, and it cannot be declared (AMQP 0-9-1, section 3.1.2)."""


class QueuePublisher:
    """Publishes to a queue that exists, and whose consumer sees the messages as they were.

    Args:
        url: as for `RabbitPublisher`.
        queue: its name.
        timeout: how long a batch may wait for its confirms, and a connection for its handshake.
        app_id: AMQP's `app_id` property of every message.
    """

    def __init__(
        self, url: str, queue: str, *, timeout: timedelta = timedelta(seconds=10), app_id: str = "outboxkit"
    ) -> None:
        self._queue = queue
        self._publisher = RabbitPublisher(url, exchange=DEFAULT_EXCHANGE, timeout=timeout, app_id=app_id)

    async def connect(self) -> None:
        """Open the connection, unless that is done."""
        await self._publisher.connect()

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        """Publish a batch and await its confirms; a message is unroutable where there is no such queue."""
        return await self._publisher.publish([addressed(message, self._queue) for message in batch])

    async def close(self) -> None:
        """Disconnect; a later `connect` opens anew."""
        await self._publisher.close()


def addressed(message: Message, queue: str) -> Message:
    """The message for this queue alone."""
    return replace(message, headers={**message.headers, QUEUE: queue})
