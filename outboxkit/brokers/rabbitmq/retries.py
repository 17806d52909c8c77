"""Publisher of retry copies: copies of deliveries, for another attempt or for the end of the queue."""

import asyncio
import time
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

import aio_pika
import structlog
from pamqp import commands, frame
from pamqp.body import ContentBody

from outboxkit.brokers.rabbitmq import connection
from outboxkit.brokers.rabbitmq.encode import BASIC, END, FRAME_OVERHEAD, HEADER, HEADER_OVERHEAD, copy_properties
from outboxkit.brokers.rabbitmq.taps import ConfirmParser, RawDelivery
from outboxkit.brokers.rabbitmq.topology import CopyRoute
from outboxkit.brokers.reserved import DeliveryHeaders
from outboxkit.errors import BrokerRefused, BrokerUnavailable

_HEADER = Struct(">BHIHHQH")

NACKED = "nacked by the broker"
REPLACED = "its connection was replaced"
"""The answer to a copy that waited for an earlier one with its id, and was not sent on a connection after a nack."""
RECONNECT_SECONDS = 1.0
"""The age from which on a nack replaces the connection."""
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 5.0
"""The wait after a first nack, doubled after each further one, and its limit."""


class RetryPublisher:
    """A publisher of copies to queues, with confirms.

    It has a connection of its own, opened with the first copy. A broker that is short of memory or disk does not read
    from a connection that publishes, and acks must not wait there.

    Args:
        url: `amqp://` or `amqps://`.
        name: of the connection, in RabbitMQ's listings.
        timeout: the limit in seconds for a copy until it is confirmed, and for a connection until it is open.
    """

    def __init__(self, url: str, *, name: str, timeout: float) -> None:
        self._addresses, self._name, self._timeout = connection.Addresses(url), name, timeout
        self._log = structlog.get_logger("outboxkit").bind(process="consumer", connection=name)
        self._channel: _CopyChannel | None = None
        self._opening = asyncio.Lock()
        self._closing: dict[asyncio.Task[None], _CopyChannel] = {}
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

        No time limit runs while the broker blocks publishers. A nack is not the message's fault. The copy is sent
        again, on a fresh connection first, until the queue has room or `stopped` is set.

        Raises:
            BrokerUnavailable: the copy may be missing. There is no connection, no confirm or no such queue, or it was
                nacked and `stopped` is set.
            Unwritable: the delivery headers do not fit into a frame.
        """
        nacks = 0
        while True:
            try:
                async with asyncio.timeout(self._timeout):
                    channel = await self._open()
                refusal = await channel.put(delivery, route, delivery_headers, topic, timeout=self._timeout)
            except TimeoutError as error:
                await self.close()
                raise BrokerUnavailable(f"the broker did not confirm a copy for {route.name!r} in time") from error
            if refusal is None:
                self._record_room(route.name)
                return
            if refusal not in (NACKED, REPLACED) or stopped.is_set():
                text = f"the broker did not take a copy for {route.name!r}: {refusal}"
                raise BrokerRefused(text, kind="right") if "ACCESS_REFUSED" in refusal else BrokerUnavailable(text)
            if refusal == NACKED:
                nacks += 1
                await self._wait_for_room(channel, route.name, nacks, stopped)

    async def close(self) -> None:
        """Disconnect. The next copy opens a new connection. Raises nothing if the broker is away."""
        current, self._channel = self._channel, None
        for channel in self._closing.values():
            channel.lose("closed")
        await asyncio.gather(*self._closing, return_exceptions=True)
        if current is not None:
            await current.close()

    async def _wait_for_room(self, channel: "_CopyChannel", queue: str, nacks: int, stopped: asyncio.Event) -> None:
        """Replace the connection after a nack, unless it is new: it may have lost sight of the queue's leader.

        Then wait, except after the first nack if the connection was replaced.
        """
        is_replaced = self._channel is not channel
        if not is_replaced and channel.age() > RECONNECT_SECONDS:
            self._channel = None
            closing = asyncio.create_task(channel.close_when_answered(self._timeout))
            self._closing[closing] = channel
            closing.add_done_callback(self._closing.pop)
            is_replaced = True
        if is_replaced and nacks == 1:
            return
        if queue not in self._full:
            self._full.add(queue)
            self._log.warning("a queue takes no copies, waiting", full=queue, error=NACKED)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(FIRST_WAIT_SECONDS * 2 ** min(nacks, 10), LONGEST_WAIT_SECONDS)):
                await stopped.wait()

    def _record_room(self, queue: str) -> None:
        if queue in self._full:
            self._full.discard(queue)
            self._log.info("the queue takes copies again", full=queue)

    async def _open(self) -> "_CopyChannel":
        async with self._opening:
            if self._channel is not None and self._channel.lost is None:
                return self._channel
            lost, self._channel = self._channel, None
            if lost is not None:
                await lost.close()
            channel, parser = _CopyChannel(self._log), ConfirmParser()
            channel.connection = await connection.connect(
                self._addresses,
                name=self._name,
                timeout=self._timeout,
                on_lost=channel.lose,
                tap=parser,
                on_writer=channel.writes_to,
            )
            self._channel = channel
            try:
                _, wire = await connection.open_channel(channel.connection, on_lost=channel.lose)
            except (Exception, asyncio.CancelledError):
                channel.lose("the channel was not opened")  # those that wait here open another one
                raise
            channel.number = wire.number
            channel.room = (wire.connection.connection_tune.frame_max or channel.room) - FRAME_OVERHEAD
            parser.report_to(channel, channel=channel.number)
            return channel


class _Answer(NamedTuple):
    """The broker's answer to a copy: None once it is confirmed, else why it was refused."""

    message_id: str
    future: "asyncio.Future[str | None]"


class _CopyChannel:
    """One channel in confirm mode, on a connection of its own, and its unanswered copies."""

    def __init__(self, log: structlog.typing.FilteringBoundLogger) -> None:
        self._log = log
        self.connection: aio_pika.abc.AbstractConnection | None = None
        self.number = 0
        self.room = 131_072
        self.lost: str | None = None
        self._unblocked = asyncio.Event()
        self._unblocked.set()
        self._unblocked_at = 0.0
        self._writer: asyncio.StreamWriter | None = None
        self._last_tag = 0
        self._answers: dict[int, _Answer] = {}
        self._answers_by_id: dict[str, _Answer] = {}
        self._opened_at = time.monotonic()

    def age(self) -> float:
        """The seconds since the channel was opened."""
        return time.monotonic() - self._opened_at

    async def close_when_answered(self, timeout: float) -> None:
        """Take no more copies, and close the connection once all are answered, or after `timeout` seconds."""
        self.lost = self.lost or REPLACED
        try:
            if self._answers:
                await asyncio.wait([answer.future for answer in self._answers.values()], timeout=timeout)
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connection. Its unanswered copies count as lost."""
        self.lose("closed")
        await connection.close(self.connection)

    def writes_to(self, writer: asyncio.StreamWriter, _: object = None) -> None:
        """Set the writer for this channel's own frames."""
        self._writer = writer

    async def put(
        self, delivery: RawDelivery, route: CopyRoute, delivery_headers: DeliveryHeaders, topic: str, *, timeout: float
    ) -> str | None:
        """Publish a copy and await its answer. Returns why the broker refused it; None if it was confirmed.

        A returned message is recognized by its id alone, so no id is unanswered twice.

        Raises:
            TimeoutError: the broker has not answered in so many seconds.
        """
        id_ = delivery.properties.message_id or ""
        while self.lost is None and (id_ in self._answers_by_id or not self._unblocked.is_set()):
            await self._unblocked.wait()
            if (earlier := self._answers_by_id.get(id_)) is not None:
                await self._wait_for(earlier.future, timeout)
        if self.lost is not None or self._writer is None:
            return self.lost or "not connected"
        frames = self._frames(delivery, route, delivery_headers, topic)
        answer = _Answer(id_, asyncio.get_running_loop().create_future())
        self._last_tag += 1  # without an await before the write: the broker counts as well
        self._answers[self._last_tag] = self._answers_by_id[id_] = answer
        try:
            self._writer.write(frames)
        except RuntimeError as error:  # the end of the stream was written already, and nobody has been told yet
            self.lose(f"the connection was closed: {error}")
        await self._wait_for(answer.future, timeout)
        return answer.future.result()

    def ack(self, tag: int, *, multiple: bool) -> None:
        self._answer(tag, None, multiple=multiple)

    def nack(self, tag: int, *, multiple: bool) -> None:
        self._answer(tag, NACKED, multiple=multiple)

    def returned(self, message_id: str, reason: str) -> None:
        if (answer := self._answers_by_id.get(message_id)) is not None:
            self._tell(answer, reason)

    def closed(self, code: int, text: str, *, connection_too: bool) -> None:  # noqa: ARG002 - both end all copies
        self.lose(f"{code} {text}")

    def blocked(self, reason: str | None) -> None:
        if reason is None:
            self._unblocked_at = asyncio.get_running_loop().time()
            self._unblocked.set()
            self._log.info("broker is back, work goes on")
        else:
            self._unblocked.clear()
            self._log.warning("broker is away, waiting", error=f"the broker has blocked publishers: {reason}")

    def lose(self, reason: str) -> None:
        """Mark the channel as lost, for the first reason given. Unanswered copies have this reason as their answer."""
        self.lost = self.lost or reason
        self._unblocked.set()
        self._answer(self._last_tag, reason, multiple=True)

    async def _wait_for(self, answer: asyncio.Future[str | None], timeout: float) -> None:
        """Wait for an answer. The limit does not run while publishers are blocked, and starts anew after a block."""
        clock = asyncio.get_running_loop().time
        start = clock()
        while not answer.done():
            left = max(start, self._unblocked_at) + timeout - clock() if self._unblocked.is_set() else timeout
            if left <= 0:
                raise TimeoutError
            await asyncio.wait((answer,), timeout=left)

    def _answer(self, tag: int, refusal: str | None, *, multiple: bool) -> None:
        for each in [known for known in self._answers if known <= (tag or self._last_tag)] if multiple else [tag]:
            if (answer := self._answers.pop(each, None)) is not None and not answer.future.done():
                self._tell(answer, refusal)

    def _tell(self, answer: _Answer, refusal: str | None) -> None:
        """Answer a copy, and let the next one with its id go at once: in a callback that would be too late."""
        answer.future.set_result(refusal)
        del self._answers_by_id[answer.message_id]

    def _frames(self, delivery: RawDelivery, route: CopyRoute, delivery_headers: DeliveryHeaders, topic: str) -> bytes:
        publish = commands.Basic.Publish(exchange=route.exchange, routing_key=route.routing_key, mandatory=True)
        body = delivery.body
        parts = [ContentBody(body[start : start + self.room]) for start in range(0, len(body), self.room)]
        frames = [frame.marshal(publish, self.number), self._header(delivery, delivery_headers, topic)]
        return b"".join((*frames, *(frame.marshal(part, self.number) for part in parts)))

    def _header(self, delivery: RawDelivery, delivery_headers: DeliveryHeaders, topic: str) -> bytes:
        flags, properties, left_out = copy_properties(
            delivery.flags, delivery.properties_bytes, delivery_headers, topic, room=self.room
        )
        if left_out:
            counts = {"message_id": delivery.properties.message_id, "left_out": len(left_out)}
            self._log.warning("a retry copy has no room for all of its message's headers", **counts)
        content = (BASIC, 0, len(delivery.body), flags)
        size = len(properties) + HEADER_OVERHEAD
        return _HEADER.pack(HEADER, self.number, size, *content) + properties + bytes((END,))
