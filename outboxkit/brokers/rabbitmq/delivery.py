"""One arrival from RabbitMQ, and how it is settled."""

from datetime import UTC, datetime, timedelta
from typing import Protocol

from outboxkit.brokers import Malformed, marks
from outboxkit.brokers.marks import Marks
from outboxkit.brokers.rabbitmq import wire
from outboxkit.brokers.rabbitmq.deliveries import Arrived
from outboxkit.brokers.rabbitmq.intake import Intake
from outboxkit.message import Message
from outboxkit.retry import rung


class Source(Protocol):
    """Where a delivery comes from, and may go again."""

    async def copy(self, delivery: "RabbitDelivery", marked: Marks, step: timedelta | None) -> None:
        """Put a copy into a step of the ladder, or where there is none at the end of the delivery's own queue.

        Raises:
            BrokerUnavailable: the copy may be missing; the message is delivered again.
        """

    @property
    def ladder(self) -> tuple[timedelta, ...]:
        """The retry steps, ascending."""


class RabbitDelivery:
    """One arrival, on the channel that it must be settled on."""

    __slots__ = ("_source", "arrived", "dropped", "intake", "marks", "message", "returned", "topic")

    def __init__(self, arrived: Arrived, intake: Intake, source: Source, *, dropped: bool) -> None:
        found = arrived.properties
        self.arrived = arrived
        self.dropped = dropped
        self.topic = wire.topic_of(found, arrived.routing_key, dropped=dropped)
        self.message: Message | Malformed = wire.to_message(found, arrived.body, self.topic)
        self.marks = marks.read(found.headers) if found.headers else marks.FRESH
        self.returned = wire.returned(found, redelivered=arrived.redelivered)
        self.intake = intake
        self._source = source

    async def ack(self) -> None:
        """Basic.Ack, together with the others of this moment."""
        self.intake.ack(self.arrived.tag)

    async def release(self) -> None:
        """Basic.Nack with requeue."""
        self.intake.nack(self.arrived.tag)

    async def retry(self, after: timedelta | None = None, *, handlers: tuple[str, ...] = ()) -> timedelta:
        """Publish a copy to a retry step, confirmed, and only then ack: a crash in between leaves two, never none."""
        step = rung(self._source.ladder, self.marks.attempt, after)
        await self._source.copy(self, self.marks.next_attempt(now=datetime.now(UTC), handlers=handlers), step)
        await self.ack()
        return step

    async def renew(self) -> None:
        """Publish a copy to the same queue, confirmed, and only then ack."""
        await self._source.copy(self, self.marks, None)
        await self.ack()
