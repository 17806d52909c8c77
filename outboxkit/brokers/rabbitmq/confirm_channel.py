"""A channel in confirm mode that writes many messages at once: the publisher's use of the client library."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import cast

import aio_pika
from aiormq import Channel
from aiormq.abc import ChannelFrame

from outboxkit.brokers import Receipt, Verdict
from outboxkit.brokers.rabbitmq import connection
from outboxkit.brokers.rabbitmq.confirms import ConfirmParser, ConfirmTracker
from outboxkit.brokers.rabbitmq.encode import Encoder, Unwritable
from outboxkit.brokers.rabbitmq.plan import PublishPlan

FIRST_WINDOW_BYTES, WINDOW_BYTES = 32 * 1024, 256 * 1024
"""Size of one write. The next one waits until the socket has taken most of it.

The first window is small: an idle broker starts on it while the second one is encoded.
"""
WINDOW_MESSAGES = 1024
UNCONFIRMED_MESSAGES = 4096
"""Limit of the messages without a confirm."""
UNCONFIRMED_BYTES = 4 * 1024 * 1024
"""The same limit in bytes, estimated from the average message. A single larger message is sent alone."""
FRAME_MAX = 131_072
"""Bytes of a frame if the broker sets no limit."""


class Answers:
    """The receipts of messages that are published one by one, each awaited for itself."""

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[Receipt]] = {}
        self._next = 0

    def add(self) -> tuple[int, "asyncio.Future[Receipt]"]:
        """The index of one more message, and its receipt."""
        self._next += 1
        future = self._futures[self._next] = asyncio.get_running_loop().create_future()
        return self._next, future

    def __setitem__(self, index: int, receipt: Receipt) -> None:
        future = self._futures.pop(index, None)  # None: it was given up before this answer came
        if future is not None and not future.done():
            future.set_result(receipt)

    def give_up(self, receipt: Receipt) -> None:
        """Give this receipt to all messages that have none."""
        for index in list(self._futures):
            self[index] = receipt


class ConfirmChannel:
    """One AMQP channel in confirm mode. It publishes batches, or messages one by one, not both.

    Attributes:
        tracker: the broker's answers, and whether the channel still works.
        encoder: of the frames that the channel carries.
    """

    def __init__(self, wire: Channel, *, exchange: str, app_id: str) -> None:
        self._wire = wire
        self._changed = asyncio.Event()
        self._answers, self._writing, self._is_finishing = Answers(), asyncio.Lock(), False
        self.tracker = ConfirmTracker(self._on_change)
        self.tracker.begin(self._answers)
        frame_max = wire.connection.connection_tune.frame_max or FRAME_MAX
        self.encoder = Encoder(exchange, app_id=app_id, channel=wire.number, frame_max=frame_max)

    @property
    def is_open(self) -> bool:
        """Whether the channel can be published on."""
        return self.tracker.lost is None and not self._wire.is_closed

    async def send(self, plan: PublishPlan, group: list[int]) -> list[int]:
        """Write a group in windows and await all answers. Returns the unwritten rest if the channel was lost."""
        self.tracker.begin(plan.receipts)
        start, group_bytes, window = 0, 0, FIRST_WINDOW_BYTES
        while start < len(group):
            average = group_bytes / start if start else 0.0
            if not await self._wait_until(partial(self._has_room, average)):
                break
            plan.record_refused(self.tracker.take_refused())
            start, window_bytes = await self._write_window(plan, group, start, window)
            group_bytes, window = group_bytes + window_bytes, WINDOW_BYTES
        await self._wait_until(lambda: not self.tracker.unconfirmed)
        plan.record_refused(self.tracker.take_refused())
        return group[start:]

    async def publish_one(self, id_: str, frames: bytes, *, timeout: float) -> Receipt:
        """Write the frames of one message and await its receipt, while others are unanswered.

        The receipt is `UNKNOWN` if the channel is lost first. It is `NOT_SENT` if `finish` was called first.

        Raises:
            TimeoutError: no receipt came in time. The limit starts anew after a block of publishers.
        """
        async with self._writing:
            if (unsent := await self._wait_for_turn(id_)) is not None:
                return unsent
            async with asyncio.timeout(timeout):
                await self._wire.write_queue.put(ChannelFrame(payload=frames, should_close=False))
            index, answer = self._answers.add()  # no await between the write and the count of its tag, as below
            self.tracker.sent([id_], [index])
            self._on_change()
        while not answer.done():
            block_changes = self.tracker.block_changes
            await asyncio.wait((answer,), timeout=timeout)
            was_blocked = self.tracker.blocked_by is not None or block_changes != self.tracker.block_changes
            if not answer.done() and not was_blocked:
                raise TimeoutError
        self.tracker.take_refused()
        return answer.result()

    async def finish(self, timeout: float) -> None:
        """Send no more single messages, and await the receipts of those that were sent, for `timeout` seconds."""
        self._is_finishing = True
        self._changed.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wait_until(lambda: not self.tracker.unconfirmed)

    async def _wait_for_turn(self, id_: str) -> Receipt | None:
        """Wait for the end of a block, and for the receipt of an earlier message with this id.

        A returned message is recognized by its id alone. Returns the receipt of a message that cannot be sent any more.
        """
        tracker = self.tracker
        await self._wait_until(
            lambda: self._is_finishing or (tracker.blocked_by is None and not tracker.is_unanswered(id_))
        )
        if self._is_finishing:  # and closed by now, perhaps
            return Receipt(Verdict.NOT_SENT, "its connection was replaced")
        return None if tracker.lost is None else Receipt(Verdict.UNKNOWN, tracker.lost.reason)

    def _on_change(self) -> None:
        self._changed.set()
        if self.tracker.lost is not None:
            self._answers.give_up(Receipt(Verdict.UNKNOWN, self.tracker.lost.reason))

    def _has_room(self, average: float) -> bool:
        unconfirmed = self.tracker.unconfirmed
        is_below_limits = unconfirmed < UNCONFIRMED_MESSAGES and unconfirmed * average < UNCONFIRMED_BYTES
        return is_below_limits and self.tracker.blocked_by is None

    async def _write_window(self, plan: PublishPlan, group: list[int], start: int, window: int) -> tuple[int, int]:
        """Write one buffer of about `window` bytes. Returns the start of the next one in the group, and its bytes."""
        pieces: list[bytes] = []
        ids: list[str] = []
        indexes: list[int] = []
        size = 0
        while start < len(group) and size < window and len(ids) < WINDOW_MESSAGES:
            index = group[start]
            start += 1
            if plan.is_blocked(index):
                continue
            message = plan.messages[index]
            try:
                size += self.encoder.write(message, pieces)
            except Exception as error:  # noqa: BLE001 - no content of one message may stop the others
                reason = error if isinstance(error, Unwritable) else type(error).__name__
                plan.fail(index, Receipt(Verdict.REJECTED, f"cannot be written as AMQP: {reason}"))
                continue
            ids.append(message.id)
            indexes.append(index)
        if ids:
            await self._write(b"".join(pieces), ids, indexes)
        return start, size

    async def _write(self, buffer: bytes, ids: list[str], indexes: list[int]) -> None:
        drained = asyncio.get_running_loop().create_future()
        drained.add_done_callback(lambda _: self._changed.set())
        await self._wire.write_queue.put(ChannelFrame(payload=buffer, should_close=False, drain_future=drained))
        # No await between these two: each tag must be counted, or later answers would go to the wrong messages.
        self.tracker.sent(ids, indexes)
        await self._wait_until(drained.done)

    async def _wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait for the condition. False if the channel is lost first."""
        while self.tracker.lost is None:
            if condition():
                return True
            self._changed.clear()
            await self._changed.wait()
        return False


async def open_confirm_channel(
    amqp_connection: aio_pika.abc.AbstractConnection,
    parser: ConfirmParser,
    *,
    exchange: str,
    app_id: str,
    timeout: float,
) -> ConfirmChannel:
    """Open a channel for publishing to this exchange within `timeout` seconds, and declare the exchange.

    Raises:
        BrokerUnavailable: the connection was lost, or the exchange cannot be declared now.
        ConfigurationError: the exchange exists and is of another kind.
    """
    with connection.convert_errors(f"cannot declare exchange {exchange!r}"):
        async with asyncio.timeout(timeout):
            channel, wire = await connection.open_channel(amqp_connection)
            if exchange:  # the default exchange must not be declared
                await connection.declare_exchange(channel, exchange)
    confirm_channel = ConfirmChannel(cast("Channel", wire), exchange=exchange, app_id=app_id)
    parser.report_to(confirm_channel.tracker, channel=wire.number)

    def on_closed(_: object, error: BaseException | None) -> None:
        confirm_channel.tracker.closed(0, connection.describe(error), connection_too=True)

    channel.close_callbacks.add(on_closed)
    return confirm_channel
