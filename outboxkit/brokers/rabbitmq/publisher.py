"""Publisher for RabbitMQ: messages are persistent, mandatory and confirmed, and no option turns that off."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta

import aio_pika
import structlog

from outboxkit import defaults
from outboxkit.brokers import Publisher, Receipt
from outboxkit.brokers.rabbitmq import connection, rights
from outboxkit.brokers.rabbitmq.confirm_channel import ConfirmChannel, open_confirm_channel
from outboxkit.brokers.rabbitmq.confirms import ConfirmParser, Loss
from outboxkit.brokers.rabbitmq.plan import NO_CANDIDATES, PublishPlan, SerializedRoutes, blames_a_message
from outboxkit.codec.envelopes.cloudevents import as_cloud_event
from outboxkit.errors import BrokerRefused, BrokerUnavailable
from outboxkit.message import Message
from outboxkit.runtime import urls

ACCESS_REFUSED = 403
"""The reply code with which the broker closes a channel whose user may not publish to the exchange."""
RELAY_HEARTBEAT_SECONDS = 5
"""Shorter than a consumer's heartbeat, because no handler can block a relay's event loop."""


class RabbitPublisher(Publisher):
    """A publisher to one durable topic exchange, which it declares, or to one existing queue past every binding.

    Args:
        url: `amqp://` or `amqps://`. Several URLs, separated by commas, are tried in an order of this publisher's own.
            When a connection is lost, the next one is tried.
        exchange: its name; empty, the default exchange, for a publisher to a queue.
        queue: the name of the one queue; None: the exchange routes the messages. The queue's consumer sees them as if
            they came through the topic exchange. They are unroutable if there is no such queue.
        timeout: the limit for a batch until it is confirmed, and for a connection until it is open.
        app_id: AMQP's `app_id` property of every message.
        cloudevents_source: messages are CloudEvents 1.0 of this `source` as well; None: they are none.
    """

    def __init__(
        self,
        url: str,
        *,
        exchange: str,
        queue: str | None = None,
        timeout: timedelta = defaults.PUBLISH_TIMEOUT,
        app_id: str = "outboxkit",
        cloudevents_source: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        shuffle: Callable[[list[str]], None] = random.shuffle,
    ) -> None:
        self._source = cloudevents_source
        self._addresses = connection.Addresses(url, shuffle=shuffle)
        self.exchange, self.queue = exchange, queue
        self._exchange = exchange
        self._timeout = timeout.total_seconds()
        self._app_id = app_id
        self._connection: aio_pika.abc.AbstractConnection | None = None
        self._parser = ConfirmParser()
        self._channel: ConfirmChannel | None = None
        self._clock, self._opened_at, self._warned_at = clock, float("-inf"), float("-inf")
        self._serialized = SerializedRoutes(clock)
        self._candidates = NO_CANDIDATES
        self._log = structlog.get_logger("outboxkit").bind(process="relay")

    @property
    def address(self) -> str:
        """The broker's URLs without user and password, in an order that is the same for all relays."""
        return urls.shown(",".join(sorted(self._addresses.urls)))

    @property
    def trouble(self) -> str | None:
        """The reason for which nothing can be published now; None: it is connected. Any thread may read it."""
        channel = self._channel
        if channel is None or not channel.is_open:
            return "not connected"
        blocked_by = channel.tracker.blocked_by
        return None if blocked_by is None else _blocked(blocked_by)

    async def connect(self) -> None:
        """Open the connection and declare the exchange, if that is not done yet.

        Raises:
            BrokerUnavailable: the broker is not reachable, or blocks publishers for lack of memory or disk.
        """
        if self._channel is not None and self._channel.is_open:
            self._raise_if_blocked(self._channel)
            return
        await self._reconnect()

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        """Publish a batch and await its confirms. A timeout closes the connection, whose state is then unknown.

        Raises:
            BrokerRefused: this user may not publish to the exchange.
            BrokerUnavailable: the connection was lost before.
        """
        self._raise_if_blocked(self._working_channel())
        if self.queue is not None:
            batch = [replace(message, queue=self.queue) for message in batch]
        if self._source is not None:
            batch = [as_cloud_event(message, self._source) for message in batch]
        plan = PublishPlan(batch, self._serialized, self._candidates)
        try:
            async with asyncio.timeout(self._timeout):
                if plan.needs_new_connection(self._opened_at) and self._serialized.nacked.allow_reconnect():
                    await self._reconnect()
                reason = await self._send(plan)
        except BrokerUnavailable as error:
            reason = str(error)
        except TimeoutError:
            reason = await self._on_timeout(plan)
        self._candidates = plan.remaining_candidates()
        loss = self._channel.tracker.lost if self._channel is not None else None
        if loss is not None and loss.code == ACCESS_REFUSED and not any(plan.receipts):
            with self._naming_rights():
                raise BrokerRefused(f"cannot publish: this user may not: {loss.reason}", kind="right")
        receipts = plan.finish(reason)
        self._warn_of_held_routes()
        return receipts

    def _warn_of_held_routes(self) -> None:
        """Log one of the routes that are held after nacks, and their number, at most once a minute."""
        held, now = self._serialized.nacked.held(), self._clock()
        if held and now - self._warned_at >= defaults.REMIND_SECONDS:
            self._warned_at, reason = now, next(iter(held.values()))
            self._log.warning("broker takes no messages of a route, they wait", reason=reason, routes=len(held))

    async def close(self) -> None:
        """Disconnect. A later `connect` opens a new connection."""
        amqp_connection, self._connection, self._channel = self._connection, None, None
        await connection.close(amqp_connection)

    async def _send(self, plan: PublishPlan) -> str:
        """Send group after group. Returns why it stopped early, or an empty text."""
        while group := plan.next_group():
            channel = self._working_channel()
            unsent = await channel.send(plan, group)
            loss = channel.tracker.lost
            if loss is None:
                continue
            if not (blames_a_message(loss) and channel.tracker.may_blame):
                return loss.reason
            plan.bisect(loss, channel.tracker.take_unanswered(), unsent)
            await self._reopen(loss)
        return ""

    def _working_channel(self) -> ConfirmChannel:
        if self._channel is None or not self._channel.is_open:
            raise BrokerUnavailable("the connection to the broker is closed")
        return self._channel

    async def _reopen(self, loss: Loss) -> None:
        """Open the channel again, and the connection if the broker has closed that as well."""
        if loss.connection_too or self._connection is None:
            await self._reconnect()
        else:
            self._channel = await self._open_channel(self._connection)

    async def _reconnect(self) -> None:
        await self.close()
        self._parser = ConfirmParser()
        self._connection = await connection.connect(
            self._addresses,
            name="outboxkit relay",
            timeout=self._timeout,
            tap=self._parser,
            heartbeat=RELAY_HEARTBEAT_SECONDS,
        )
        self._opened_at = self._clock()
        self._channel = await self._open_channel(self._connection)
        self._serialized.reset_confirmed()

    async def _open_channel(self, amqp_connection: aio_pika.abc.AbstractConnection) -> ConfirmChannel:
        with self._naming_rights():
            return await open_confirm_channel(
                amqp_connection, self._parser, exchange=self._exchange, app_id=self._app_id, timeout=self._timeout
            )

    def _naming_rights(self) -> AbstractContextManager[None]:
        url = self._addresses.urls[0]
        alone = rights.RightsNeeded(write=(rights.DEFAULT_EXCHANGE,))
        needed = rights.of_relay(self._exchange) if self._exchange else alone
        more = "" if self._exchange else ". A relay's user has this right; add the names of other work of this user"
        return connection.naming_rights(needed.command(connection.vhost(url), rights.user_of(url)), more)

    async def _on_timeout(self, plan: PublishPlan) -> str:
        """Close the connection, unless the broker has blocked it: it then unblocks it later and loses nothing.

        What was refused until then is recorded: the time limit has broken off the wait after which that is done.
        """
        channel, reason = self._channel, "the broker did not answer in time"
        if channel is not None and channel.is_open and channel.tracker.blocked_by is not None:
            reason = _blocked(channel.tracker.blocked_by)
        else:
            await self.close()
        if channel is not None:
            plan.record_refused(channel.tracker.take_refused())
        return reason

    def _raise_if_blocked(self, channel: ConfirmChannel) -> None:
        if channel.tracker.blocked_by is not None:
            raise BrokerUnavailable(_blocked(channel.tracker.blocked_by))


def _blocked(reason: str) -> str:
    return f"the broker has blocked publishers: {reason or 'it does not say why'}"
