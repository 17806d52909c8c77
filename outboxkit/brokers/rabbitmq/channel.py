"""A channel in confirm mode on which whole batches are written: the part that speaks to the client library."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

import aio_pika
from aiormq import Channel
from aiormq.abc import ChannelFrame

from outboxkit.brokers import Receipt, Verdict
from outboxkit.brokers.rabbitmq import connection
from outboxkit.brokers.rabbitmq.confirms import Tracker
from outboxkit.brokers.rabbitmq.encode import Encoder, Unwritable
from outboxkit.brokers.rabbitmq.plan import PublishPlan
from outboxkit.brokers.rabbitmq.taps import ConfirmParser

FIRST_WINDOW_BYTES, WINDOW_BYTES = 32 * 1024, 256 * 1024
"""Written at once; the next waits until the socket has taken most of it. The first is small: a broker that has nothing
to do since the last batch begins with it while the next is encoded."""
WINDOW_MESSAGES = 1024
UNCONFIRMED_MESSAGES = 4096
"""On their way at the same time, at most."""
UNCONFIRMED_BYTES = 4 * 1024 * 1024
"""The same in bytes, judged by the average message; a single larger one goes alone."""
FRAME_MAX = 131_072
"""Where the broker sets no limit."""


class ConfirmChannel:
    """One channel, from its opening to its end.

    Attributes:
        tracker: what was answered, and whether the channel still works.
    """

    def __init__(self, wire: Channel, *, exchange: str, app_id: str) -> None:
        self._wire = wire
        self._news = asyncio.Event()
        self.tracker = Tracker(self._news.set)
        frame_max = wire.connection.connection_tune.frame_max or FRAME_MAX
        self._encoder = Encoder(exchange, app_id=app_id, channel=wire.number, frame_max=frame_max)

    @property
    def is_open(self) -> bool:
        """Whether it can be published on."""
        return self.tracker.lost is None and not self._wire.is_closed

    async def send(self, batch: PublishPlan, wave: list[int]) -> list[int]:
        """Write a wave in windows and await all answers; returns what was not written when the channel was lost."""
        self.tracker.begin(batch.receipts)
        position, written, window = 0, 0, FIRST_WINDOW_BYTES
        while position < len(wave):
            average = written / position if position else 0.0
            if not await self._until(partial(self._has_room, average)):
                break
            batch.refused_by_broker(self.tracker.refused())
            position, size = await self._write_window(batch, wave, position, window)
            written, window = written + size, WINDOW_BYTES
        await self._until(lambda: not self.tracker.waiting)
        batch.refused_by_broker(self.tracker.refused())
        return wave[position:]

    def _has_room(self, average: float) -> bool:
        waiting = self.tracker.waiting
        roomy = waiting < UNCONFIRMED_MESSAGES and waiting * average < UNCONFIRMED_BYTES
        return roomy and self.tracker.blocked_by is None

    async def _write_window(self, batch: PublishPlan, wave: list[int], position: int, window: int) -> tuple[int, int]:
        """One buffer from this position on; returns the position behind it and its bytes."""
        pieces: list[bytes] = []
        ids: list[str] = []
        indexes: list[int] = []
        size = 0
        while position < len(wave) and size < window and len(ids) < WINDOW_MESSAGES:
            index = wave[position]
            position += 1
            if batch.is_held(index):
                continue
            message = batch.messages[index]
            try:
                size += self._encoder.write(message, pieces)
            except Unwritable as error:
                batch.refuse(index, Receipt(Verdict.REJECTED, f"cannot be written as AMQP: {error}"))
                continue
            except Exception as error:  # noqa: BLE001 - whatever is in it, it stops no other message
                batch.refuse(index, Receipt(Verdict.REJECTED, f"cannot be written as AMQP: {type(error).__name__}"))
                continue
            ids.append(message.id)
            indexes.append(index)
        if ids:
            await self._write(b"".join(pieces), ids, indexes)
        return position, size

    async def _write(self, buffer: bytes, ids: list[str], indexes: list[int]) -> None:
        drained = asyncio.get_running_loop().create_future()
        drained.add_done_callback(lambda _: self._news.set())
        await self._wire.write_queue.put(ChannelFrame(payload=buffer, should_close=False, drain_future=drained))
        # Nothing may come between: a tag that is not counted makes every later answer one of another message.
        self.tracker.sent(ids, indexes)
        await self._until(drained.done)

    async def _until(self, condition: Callable[[], bool]) -> bool:
        """Wait for the condition; False where the channel was lost before."""
        while self.tracker.lost is None:
            if condition():
                return True
            self._news.clear()
            await self._news.wait()
        return False


async def open_channel(
    on: aio_pika.abc.AbstractConnection, answers: ConfirmParser, *, exchange: str, app_id: str, timeout: float
) -> ConfirmChannel:
    """Open a channel for publishing to this exchange within `timeout` seconds; it is declared if it has a name.

    Raises:
        BrokerUnavailable: the connection was lost, or the exchange cannot be declared now.
        ConfigurationError: the exchange is there and is of another kind.
    """
    with connection.converted(f"cannot declare exchange {exchange!r}"):
        async with asyncio.timeout(timeout):
            channel, wire = await connection.open_channel(on)
            if exchange:  # the one without a name is there, and must not be declared
                await connection.declare_exchange(channel, exchange)
    opened = ConfirmChannel(cast("Channel", wire), exchange=exchange, app_id=app_id)
    answers.hand_to(opened.tracker, channel=wire.number)

    def on_closed(_: object, error: BaseException | None) -> None:
        opened.tracker.closed(0, connection.describe(error), connection_too=True)

    channel.close_callbacks.add(on_closed)
    return opened
