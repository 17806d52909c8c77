"""Copies of deliveries, put into a queue directly and confirmed: for another attempt, or at the end of the queue."""

import asyncio
import time
from contextlib import suppress
from struct import Struct

import aio_pika
import structlog
from pamqp import commands, frame
from pamqp.body import ContentBody

from outboxkit.brokers.rabbitmq import connection
from outboxkit.brokers.rabbitmq.encode import BASIC, END, FRAME_OVERHEAD, HEADER, HEADER_OVERHEAD, copy_properties
from outboxkit.brokers.rabbitmq.taps import ConfirmParser, RawDelivery
from outboxkit.brokers.reserved import DeliveryHeaders
from outboxkit.errors import BrokerUnavailable

_HEADER = Struct(">BHIHHQH")
_Answer = asyncio.Future[str | None]

NACKED = "nacked by the broker"
RENEW_SECONDS = 1.0
"""A connection younger than this is not given up for another nack."""
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 5.0
"""After a nack the copy is tried again: after so long, and each time after twice as long."""


class RetryPublisher:
    """Publishes them on a connection of its own, opened with the first one.

    A broker that is short of memory or disk does not read from a connection that publishes: acks must not wait there.

    Args:
        url: `amqp://` or `amqps://`.
        name: of the connection, in RabbitMQ's listings.
        timeout: seconds until a copy must be confirmed.
    """

    def __init__(self, url: str, *, name: str, timeout: float) -> None:
        self._addresses, self._name, self._timeout = connection.Addresses(url), name, timeout
        self._log = structlog.get_logger("outboxkit").bind(process="consumer", connection=name)
        self._line: _Line | None = None
        self._opening = asyncio.Lock()
        self._leaving: dict[asyncio.Task[None], _Line] = {}
        self._full: set[str] = set()

    async def put(
        self, arrived: RawDelivery, queue: str, *, marks: DeliveryHeaders, topic: str, over: asyncio.Event
    ) -> None:
        """Put a copy with these marks into this queue; returns once the broker has it.

        While the broker takes no publishes, for lack of memory or disk, it waits, and no limit runs. A nack is not the
        message's fault. The copy is tried again on a fresh connection, until the queue has room or `over` is set.

        Raises:
            BrokerUnavailable: it may not have it: no connection, no confirm, no such queue, or `over`.
            Unwritable: its marks do not fit into a frame.
        """
        nacks = 0
        while True:
            try:
                async with asyncio.timeout(self._timeout):
                    line = await self._open()
                refused = await line.put(arrived, queue, marks, topic, timeout=self._timeout)
            except TimeoutError as error:
                await self.close()
                raise BrokerUnavailable(f"the broker did not confirm a copy for {queue!r} in time") from error
            if refused is None:
                self._taken(queue)
                return
            if refused is not NACKED or over.is_set():
                raise BrokerUnavailable(f"the broker did not take a copy for {queue!r}: {refused}")
            nacks += 1
            await self._wait_for_room(line, queue, nacks, over)

    async def close(self) -> None:
        """Disconnect; the next copy connects anew. Never raises for a broker that is gone."""
        gone, self._line = self._line, None
        for line in self._leaving.values():
            line.lose("closed")
        await asyncio.gather(*self._leaving, return_exceptions=True)
        if gone is not None:
            await gone.close()

    async def _wait_for_room(self, line: "_Line", queue: str, nacks: int, over: asyncio.Event) -> None:
        """After a nack. A connection may have lost sight of the queue's leader: unless it is new, another is opened."""
        renewed = self._line is not line
        if not renewed and line.age() > RENEW_SECONDS:
            self._line = None
            leaving = asyncio.create_task(line.leave(self._timeout))
            self._leaving[leaving] = line
            leaving.add_done_callback(self._leaving.pop)
            renewed = True
        if renewed and nacks == 1:
            return
        if queue not in self._full:
            self._full.add(queue)
            self._log.warning("a queue takes no copies, waiting", full=queue, error=NACKED)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(FIRST_WAIT_SECONDS * 2 ** min(nacks, 10), LONGEST_WAIT_SECONDS)):
                await over.wait()

    def _taken(self, queue: str) -> None:
        if queue in self._full:
            self._full.discard(queue)
            self._log.info("the queue takes copies again", full=queue)

    async def _open(self) -> "_Line":
        async with self._opening:
            if self._line is not None and self._line.lost is None:
                return self._line
            gone, self._line = self._line, None
            if gone is not None:
                await gone.close()
            line, answers = _Line(self._log), ConfirmParser()
            line.connection = await connection.connect(
                self._addresses,
                name=self._name,
                timeout=self._timeout,
                on_lost=line.lose,
                tap=answers,
                on_writer=line.writes_to,
            )
            self._line = line
            _, wire_channel = await connection.open_channel(line.connection, on_lost=line.lose)
            line.channel = wire_channel.number
            line.room = (wire_channel.connection.connection_tune.frame_max or line.room) - FRAME_OVERHEAD
            answers.report_to(line, channel=line.channel)
            return line


class _Line:
    """One connection and what is unanswered on it; it hears the broker's answers."""

    def __init__(self, log: structlog.typing.FilteringBoundLogger) -> None:
        self._log = log
        self.connection: aio_pika.abc.AbstractConnection | None = None
        self.channel = 0
        self.room = 131_072
        self.lost: str | None = None
        self._clear = asyncio.Event()
        self._clear.set()
        self._clear_since = 0.0
        self._writer: asyncio.StreamWriter | None = None
        self._last = 0
        self._waiting: dict[int, _Answer] = {}
        self._by_id: dict[str, _Answer] = {}
        self._since = time.monotonic()

    def age(self) -> float:
        """Seconds since it was opened."""
        return time.monotonic() - self._since

    async def leave(self, timeout: float) -> None:
        """Close it once everything on it is answered, or after so many seconds."""
        try:
            if self._waiting:
                await asyncio.wait(self._waiting.values(), timeout=timeout)
        finally:
            await self.close()

    async def close(self) -> None:
        """Copies without an answer get none."""
        self.lose("closed")
        await connection.close(self.connection)

    def writes_to(self, writer: asyncio.StreamWriter, _: object = None) -> None:
        self._writer = writer

    async def put(
        self, arrived: RawDelivery, queue: str, marks: DeliveryHeaders, topic: str, *, timeout: float
    ) -> str | None:
        """The broker's reason not to take it; None: it has it. A return is told by its id, so no id is there twice.

        Raises:
            TimeoutError: it has not answered in so many seconds.
        """
        id_ = arrived.properties.message_id or ""
        while self.lost is None and (id_ in self._by_id or not self._clear.is_set()):
            await self._clear.wait()
            if id_ in self._by_id:
                await self._answered(self._by_id[id_], timeout)
        if self.lost is not None or self._writer is None:
            return self.lost or "not connected"
        written = self._frames(arrived, queue, marks, topic)
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._last += 1  # together with the write: the broker counts as well
        self._waiting[self._last] = self._by_id[id_] = answer
        answer.add_done_callback(lambda _: self._by_id.pop(id_, None))
        self._writer.write(written)
        await self._answered(answer, timeout)
        return answer.result()

    def ack(self, tag: int, *, multiple: bool) -> None:
        self._answer(tag, None, multiple=multiple)

    def nack(self, tag: int, *, multiple: bool) -> None:
        self._answer(tag, NACKED, multiple=multiple)

    def returned(self, message_id: str, reason: str) -> None:
        answer = self._by_id.get(message_id)
        if answer is not None and not answer.done():
            answer.set_result(reason)

    def closed(self, code: int, text: str, *, connection_too: bool) -> None:  # noqa: ARG002 - it is of no use either way
        self.lose(f"{code} {text}")

    def blocked(self, reason: str | None) -> None:
        if reason is None:
            self._clear_since = asyncio.get_running_loop().time()
            self._clear.set()
            self._log.info("broker is back, work goes on")
        else:
            self._clear.clear()
            self._log.warning("broker is away, waiting", error=f"the broker has blocked publishers: {reason}")

    async def _answered(self, answer: _Answer, timeout: float) -> None:
        """Wait for the answer; the limit runs only while the broker takes publishes, and anew when it does again."""
        clock = asyncio.get_running_loop().time
        began = clock()
        while not answer.done():
            left = max(began, self._clear_since) + timeout - clock() if self._clear.is_set() else timeout
            if left <= 0:
                raise TimeoutError
            await asyncio.wait((answer,), timeout=left)

    def lose(self, reason: str) -> None:
        """Everything that has no answer gets this one."""
        self.lost = self.lost or reason
        self._clear.set()
        self._answer(self._last, reason, multiple=True)

    def _answer(self, tag: int, refusal: str | None, *, multiple: bool) -> None:
        for each in [known for known in self._waiting if known <= (tag or self._last)] if multiple else [tag]:
            answer = self._waiting.pop(each, None)
            if answer is not None and not answer.done():
                answer.set_result(refusal)

    def _frames(self, arrived: RawDelivery, queue: str, marks: DeliveryHeaders, topic: str) -> bytes:
        publish = commands.Basic.Publish(exchange="", routing_key=queue, mandatory=True)
        body = arrived.body
        parts = [ContentBody(body[start : start + self.room]) for start in range(0, len(body), self.room)]
        written = [frame.marshal(publish, self.channel), self._header(arrived, marks, topic)]
        return b"".join((*written, *(frame.marshal(part, self.channel) for part in parts)))

    def _header(self, arrived: RawDelivery, marks: DeliveryHeaders, topic: str) -> bytes:
        flags, written = arrived.flags, arrived.properties_bytes
        if arrived.properties.unreadable is None:  # else it is left as it is
            flags, written, left_out = copy_properties(flags, written, marks, topic, room=self.room)
            if left_out:
                counts = {"message_id": arrived.properties.message_id, "left_out": len(left_out)}
                self._log.warning("a retry copy has no room for all of its message's headers", **counts)
        content = (BASIC, 0, len(arrived.body), flags)
        return _HEADER.pack(HEADER, self.channel, len(written) + HEADER_OVERHEAD, *content) + written + bytes((END,))
