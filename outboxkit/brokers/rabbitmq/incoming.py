"""A channel on which deliveries arrive: the part of the consumer's side that speaks to the client library."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from aiormq.abc import AbstractChannel
from pamqp import commands, frame

from outboxkit.brokers.rabbitmq import connection
from outboxkit.brokers.rabbitmq.acks import Acks
from outboxkit.brokers.rabbitmq.taps import Arrived, DeliveryParser
from outboxkit.errors import BrokerUnavailable

_Answer = asyncio.Future[Arrived | None]

HELD_BYTES = 64 * 1024 * 1024
"""Above so many bytes of unsettled deliveries no more is read: the prefetch counts messages, whatever their size. It is
64 of the largest that an outbox takes unless told otherwise. A single larger one is read whole."""
HEADER_WEIGHT = 32
"""A byte of headers weighs as many: a table of small fields takes up so much once it is decoded."""


class DeliveryChannel:
    """One connection with one channel, from its opening to its end.

    Attributes:
        lost: why it is of no use any more; None while it is.
        over: set once it takes no more deliveries, since it was told so or is lost.
    """

    def __init__(self, *, timeout: float) -> None:
        self.lost: str | None = None
        self.deliveries = DeliveryParser(self)
        self._timeout = timeout
        self._channel = 0
        self._acks = Acks(0)
        self._writer: asyncio.StreamWriter | None = None
        self._arrived: deque[Arrived] = deque()
        self._asked: deque[tuple[_Answer, str]] = deque()
        self._news = asyncio.Event()
        self._flushing = self._paused = False
        self._say_alive: Callable[[], None] | None = None
        self._answers_awaited = 0
        self.over = asyncio.Event()

    @property
    def ceased(self) -> bool:
        """Whether it takes no more deliveries."""
        return self.over.is_set()

    @property
    def unsettled(self) -> int:
        """How many deliveries were received and are neither acked nor given back."""
        return self._acks.unsettled - len(self._arrived)

    @property
    def waiting(self) -> bool:
        """Whether something has arrived that nobody has received yet."""
        return bool(self._arrived)

    @property
    def full(self) -> bool:
        """Whether it holds so much that no more is read until something is settled."""
        return self._acks.held > HELD_BYTES

    def writes_to(self, writer: asyncio.StreamWriter, say_alive: Callable[[], None] | None = None) -> None:
        """Where its frames go, between those of the client, which can be told that the broker lives."""
        self._writer, self._say_alive = writer, say_alive

    def listen(self, *, channel: int) -> None:
        """Take the deliveries of this channel, on which none has arrived yet."""
        self._channel, self._acks = channel, Acks(channel)
        self.deliveries.listen(channel=channel)

    async def consume(self, channel: AbstractChannel, queue: str) -> None:
        """Have messages of a queue pushed; the consumer's tag is the queue's name.

        Raises:
            BrokerUnavailable: the channel was lost, or there is no such queue.
        """
        try:
            with connection.converted(f"cannot consume from {queue!r}"), self.reading():
                await channel.basic_consume(queue, _never, consumer_tag=queue, timeout=self._timeout)
        except BrokerUnavailable as error:
            self.lose(str(error))
            raise

    async def next(self) -> Arrived:
        """What was pushed next.

        Raises:
            BrokerUnavailable: the channel was lost; what has arrived on it cannot be acked any more.
        """
        while self.lost is None:
            if self._arrived and not self.ceased:
                return self._arrived.popleft()
            self._news.clear()
            await self._news.wait()
        raise self._gone()

    def next_present(self) -> Arrived | None:
        """What was pushed next, if it has arrived already."""
        self._raise_if_lost()
        return self._arrived.popleft() if self._arrived else None

    async def ask(self, queue: str) -> Arrived | None:
        """The head of a queue, or what is pushed meanwhile; None where it is empty. It is bound by no prefetch."""
        present = self.next_present()
        if present is not None:
            return present
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._asked.append((answer, queue))
        self._write(frame.marshal(commands.Basic.Get(queue=queue), self._channel))
        try:
            async with asyncio.timeout(self._timeout):
                return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and (arrived := answer.result()) is not None:
                self._arrived.appendleft(arrived)  # it came at the very moment
            raise
        except TimeoutError as error:
            self.lose(f"the broker did not answer when {queue!r} was read")
            raise self._gone() from error

    async def stop_receiving(self, channel: AbstractChannel, *queues: str) -> None:
        """Have no more messages pushed from these queues, and give back what nobody has received.

        Raises:
            BrokerUnavailable: the channel was lost.
        """
        self._raise_if_lost()
        self.over.set()
        with connection.converted("cannot stop consuming"), self.reading():
            for queue in queues:
                await channel.basic_cancel(queue, timeout=self._timeout)
        while (arrived := self.next_present()) is not None:
            self.nack(arrived.tag)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While the broker is to answer, what arrives is read, however much is held: the answer stands behind it."""
        self._answers_awaited += 1
        self._read_or_pause()
        try:
            yield
        finally:
            self._answers_awaited -= 1
            self._read_or_pause()

    def ack(self, tag: int) -> None:
        """Note it as done; the acks of one moment leave together.

        Raises:
            BrokerUnavailable: the channel was lost.
        """
        self._raise_if_lost()
        self._acks.ack(tag)
        if self._paused:
            self._read_or_pause()
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def nack(self, tag: int) -> None:
        """Give it back now.

        Raises:
            BrokerUnavailable: the channel was lost.
        """
        self._raise_if_lost()
        self._write(self._acks.nack(tag))
        if self._paused:
            self._read_or_pause()

    def flush(self) -> None:
        """Send the acks that are noted, unless the channel was lost."""
        self._flushing = False
        if self.lost is None:
            with suppress(BrokerUnavailable):
                self._write(self._acks.frames())

    def lose(self, reason: str) -> None:
        """From now on everything raises, for the first reason that was given."""
        self.lost = self.lost or reason
        self.over.set()
        self._news.set()
        self._read_or_pause()
        asked, self._asked = self._asked, deque()
        for answer, _ in asked:
            if not answer.done():
                answer.set_exception(self._gone())

    def delivered(self, arrived: Arrived) -> None:
        """A message has arrived; one that nobody waits for any more is kept for who asks next."""
        if self.lost is not None:
            return
        self._acks.arrived(arrived.tag, len(arrived.body) + HEADER_WEIGHT * len(arrived.written))
        if self.full:
            self._read_or_pause()
        if not arrived.consumer:
            answer, arrived.consumer = self._asked.popleft()
            if not answer.done():
                answer.set_result(arrived)
                return
        elif (asking := next((answer for answer, _ in self._asked if not answer.done()), None)) is not None:
            asking.set_result(arrived)  # the answer may stand behind more than may be held
            return
        if self.ceased:
            with suppress(BrokerUnavailable):
                self._write(self._acks.nack(arrived.tag))
            return
        self._arrived.append(arrived)
        self._news.set()

    def empty(self) -> None:
        """The queue that was asked is empty."""
        answer, _ = self._asked.popleft()
        if not answer.done():
            answer.set_result(None)

    def closed(self, reason: str) -> None:
        """The broker has closed the channel."""
        self.lose(f"the broker closed the channel: {reason}")

    def _read_or_pause(self) -> None:
        """Stop reading what the broker sends while too much is held, or begin again."""
        pause = self.full and not self.ceased and not self._answers_awaited
        if pause is self._paused or self._writer is None:
            return
        self._paused = pause
        if pause:
            self._writer.transport.pause_reading()  # type: ignore[attr-defined]
            asyncio.get_running_loop().call_later(connection.SIGN_OF_LIFE_SECONDS, self._stay_alive)
        elif not self._writer.is_closing():
            self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    def _stay_alive(self) -> None:
        """While nothing is read, the broker's heartbeats are not read either: the client is not to miss them."""
        if self._paused and self._say_alive is not None:
            self._say_alive()
            asyncio.get_running_loop().call_later(connection.SIGN_OF_LIFE_SECONDS, self._stay_alive)

    def _write(self, frames: bytes) -> None:
        if not frames:
            return
        if self._writer is None or self._writer.is_closing():
            self.lose("the connection was closed")
            raise self._gone()
        self._writer.write(frames)

    def _raise_if_lost(self) -> None:
        if self.lost is not None:
            raise self._gone()

    def _gone(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"the connection to the broker was lost: {self.lost}")


async def _never(_: object) -> None:
    """The client's consumer: it hears nothing, since deliveries are taken before they reach it."""
