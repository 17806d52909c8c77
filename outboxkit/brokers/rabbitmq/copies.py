"""Publisher of retry copies: copies of deliveries, for another attempt or for the end of the queue."""

import asyncio
import time
from contextlib import suppress

import aio_pika
import structlog

from outboxkit.brokers import CONFIRMED, Receipt, Verdict
from outboxkit.brokers.rabbitmq import connection
from outboxkit.brokers.rabbitmq.confirm_channel import ConfirmChannel, open_confirm_channel
from outboxkit.brokers.rabbitmq.confirms import NACKED, ConfirmParser
from outboxkit.brokers.rabbitmq.encode import copy_properties
from outboxkit.brokers.rabbitmq.incoming import RawDelivery
from outboxkit.brokers.rabbitmq.topology import CopyRoute
from outboxkit.codec.headers import DeliveryHeaders
from outboxkit.errors import BrokerRefused, BrokerUnavailable

OLD_CONNECTION_SECONDS = 1.0
"""The age from which on a nack replaces the connection."""
FIRST_NACK_SECONDS, LONGEST_NACK_SECONDS = 0.1, 5.0
"""The wait after a first nack, doubled after each further one, and its limit."""


class RetryPublisher:
    """A publisher of copies to queues, with confirms.

    It has a connection of its own, opened with the first copy. A broker that is short of memory or disk does not read
    from a connection that publishes, and acks must not wait there.

    Args:
        timeout: the limit in seconds for a copy until it is confirmed, and for a connection until it is open.
    """

    def __init__(self, url: str, *, name: str, timeout: float) -> None:
        self._addresses, self._name, self._timeout = connection.Addresses(url), name, timeout
        self._log = structlog.get_logger("outboxkit").bind(process="consumer", connection=name)
        self._connection: aio_pika.abc.AbstractConnection | None = None
        self._channel: ConfirmChannel | None = None
        self._opened_at = 0.0
        self._opening = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self._full: set[str] = set()

    async def put(
        self,
        delivery: RawDelivery,
        route: CopyRoute,
        *,
        delivery_headers: DeliveryHeaders,
        topic: str,
        stopped: asyncio.Event,
    ) -> None:
        """Publish a copy with these delivery headers by this route and await its confirm.

        No time limit runs while the broker blocks publishers. A nack, or a right that the user has lost, is not the
        message's fault. The copy is sent again, on a fresh connection first, until the broker takes it or `stopped` is
        set: meanwhile the consumer keeps its connection, and other messages flow.

        Raises:
            BrokerUnavailable: the copy may be missing. There is no connection, no confirm or no such queue, or it was
                nacked or refused and `stopped` is set.
            asyncio.CancelledError: with the reason as a note, if it waited.
            Unwritable: the delivery headers do not fit into a frame.
        """
        nacks = 0
        while True:
            try:
                async with asyncio.timeout(self._timeout):
                    channel = await self._open()
                receipt = await self._publish(channel, delivery, route, delivery_headers, topic)
            except TimeoutError as error:
                await self.close()
                raise BrokerUnavailable(f"the broker did not confirm a copy for {route.name!r} in time") from error
            if receipt is CONFIRMED:
                self._record_room(route.name)
                return
            reason = receipt.reason or ""
            is_refused = "ACCESS_REFUSED" in reason
            if stopped.is_set() or not (is_refused or receipt is NACKED or receipt.verdict is Verdict.NOT_SENT):
                text = f"the broker did not take a copy for {route.name!r}: {reason}"
                raise BrokerRefused(text, kind="right") if is_refused else BrokerUnavailable(text)
            if receipt is NACKED or is_refused:
                nacks += 1
                try:
                    await self._wait_for_room(channel, route.name, nacks, stopped, reason)
                except asyncio.CancelledError as error:
                    error.add_note(reason)
                    raise

    async def close(self) -> None:
        """Disconnect. The next copy opens a new connection. Raises nothing if the broker is away."""
        for closing in self._closing:
            closing.cancel()
        await asyncio.gather(*self._closing, self._close(self._channel, self._connection), return_exceptions=True)

    async def _publish(
        self, channel: ConfirmChannel, delivery: RawDelivery, route: CopyRoute, headers: DeliveryHeaders, topic: str
    ) -> Receipt:
        message_id, encoder = delivery.properties.message_id, channel.encoder
        flags, properties, left_out = copy_properties(
            delivery.flags, delivery.properties_bytes, headers, topic, room=encoder.room
        )
        if left_out:
            counts = {"message_id": message_id, "left_out": len(left_out)}
            self._log.warning("a retry copy has no room for all of its message's headers", **counts)
        frames = encoder.frames(route.exchange, route.routing_key, flags, properties, delivery.body)
        return await channel.publish_one(message_id or "", frames, timeout=self._timeout)

    async def _wait_for_room(
        self, channel: ConfirmChannel, queue: str, nacks: int, stopped: asyncio.Event, reason: str
    ) -> None:
        """Replace the connection after a nack, unless it is new: it may have lost sight of the queue's leader.

        Then wait, except after the first nack if the connection was replaced.
        """
        is_replaced = self._channel is not channel
        if not is_replaced and time.monotonic() - self._opened_at > OLD_CONNECTION_SECONDS:
            closing = asyncio.create_task(self._close(channel, self._connection, self._timeout))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            self._channel = self._connection = None
            is_replaced = True
        if is_replaced and nacks == 1:
            return
        if queue not in self._full:
            self._full.add(queue)
            self._log.warning("a queue takes no copies, waiting", full=queue, error=reason)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(FIRST_NACK_SECONDS * 2 ** min(nacks, 10), LONGEST_NACK_SECONDS)):
                await stopped.wait()

    def _record_room(self, queue: str) -> None:
        if queue in self._full:
            self._full.discard(queue)
            self._log.info("the queue takes copies again", full=queue)

    async def _open(self) -> ConfirmChannel:
        async with self._opening:
            if self._channel is not None and self._channel.is_open:
                return self._channel
            await self._close(self._channel, self._connection)
            parser = ConfirmParser()
            self._connection = await connection.connect(
                self._addresses, name=self._name, timeout=self._timeout, tap=parser
            )
            self._channel = await open_confirm_channel(
                self._connection, parser, exchange="", app_id="", timeout=self._timeout
            )
            self._channel.tracker.on_blocked = self._report_block
            self._opened_at = time.monotonic()
            return self._channel

    async def _close(
        self,
        channel: ConfirmChannel | None,
        opened: aio_pika.abc.AbstractConnection | None,
        timeout: float = 0,
    ) -> None:
        """Close a channel and its connection, after the receipts of its copies or after `timeout` seconds."""
        if channel is self._channel:
            self._channel = self._connection = None
        try:
            if channel is not None and timeout:
                await channel.finish(timeout)
        finally:
            if channel is not None:
                channel.tracker.closed(0, "closed", connection_too=True)
            await connection.close(opened)

    def _report_block(self, reason: str | None) -> None:
        if reason is None:
            self._log.info("broker is back, work goes on")
        else:
            self._log.warning("broker is away, waiting", error=f"the broker has blocked publishers: {reason}")
