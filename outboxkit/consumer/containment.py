"""The net around every delivery: whatever happens at any step, it is settled, or requeued after a while."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from outboxkit.brokers import Delivery
from outboxkit.consumer.batch import BatchRunner
from outboxkit.consumer.handle import HandlerRunner
from outboxkit.consumer.key_queues import Arrival
from outboxkit.consumer.reports import Reports
from outboxkit.consumer.transactions import UNUSABLE, Cancellations
from outboxkit.envelopes import Envelope
from outboxkit.errors import BrokerUnavailable
from outboxkit.failures import first_line
from outboxkit.outage import what_is_away
from outboxkit.sqlstates import TRANSIENT


class Incoming:
    """A delivery that remembers its settlement.

    Attributes:
        message, delivery_headers, redeliveries, dropped, envelope: the delivery's own.
        settled: whether it was acked, released, retried or renewed, or the attempt to do so may have succeeded.
    """

    __slots__ = ("_delivery", "delivery_headers", "dropped", "message", "redeliveries", "settled")

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self.message, self.delivery_headers = delivery.message, delivery.delivery_headers
        self.redeliveries, self.dropped = delivery.redeliveries, delivery.dropped
        self.settled = False

    @property
    def envelope(self) -> Envelope:
        """The delivery as its publisher sent it."""
        return self._delivery.envelope

    async def ack(self) -> None:
        """It is done."""
        self.settled = True
        await self._delivery.ack()

    async def requeue(self) -> None:
        """Give it back unhandled."""
        self.settled = True
        await self._delivery.requeue()

    async def retry(self, after: timedelta | None = None, *, handlers: tuple[str, ...] = ()) -> timedelta:
        """Have it come again later; it is not settled if no copy of it could be made."""
        delay = await self._delivery.retry(after, handlers=handlers)
        self.settled = True
        return delay

    async def requeue_fresh(self, after: timedelta | None = None) -> None:
        """Put a copy at the end of the queue, now or later; it is not settled if none could be made."""
        await self._delivery.requeue_fresh(after)
        self.settled = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Containment:
    """Handles deliveries, and contains errors that nobody has expected.

    Attributes:
        handling: handles one delivery.
        batches: handles many in a transaction.
        cancellations: tells a task that the consumer has cancelled from every other one.
        reports: hears of errors that nobody has expected.
    """

    handling: HandlerRunner
    batches: BatchRunner
    cancellations: Cancellations
    reports: Reports

    async def handle(self, arrival: Arrival, stop: asyncio.Event) -> None:
        """Handle one delivery; one that could not even be set aside is left unsettled, and `is_stuck`.

        Raises:
            BrokerUnavailable: the connection was lost, or nobody knows whether the delivery was settled.
            UnusableTables, UnusableSessions: outboxkit's tables or a pooler are to blame.
            sqlalchemy.exc.DBAPIError: the database was away for longer than the consumer's patience.
        """
        try:
            await self.handling.handle(arrival, stop)
        except BaseException as error:  # noqa: BLE001 - looked at there
            self._raise_if_expected(error)
            await self._contain(arrival, error, stop)

    async def handle_batch(self, arrivals: Sequence[Arrival], stop: asyncio.Event) -> list[Arrival]:
        """Handle many; returns those that are not settled, as `BatchRunner.handle` does.

        Raises:
            BrokerUnavailable, sqlalchemy.exc.DBAPIError: as `handle`.
        """
        try:
            return await self.batches.handle(arrivals, stop)
        except BaseException as error:  # noqa: BLE001 - looked at there
            self._raise_if_expected(error)
            self.reports.unexpected("a batch failed unexpectedly, its messages are handled singly", error)
        left: list[Arrival] = []
        for arrival in arrivals:
            if arrival.settled:
                continue
            if arrival.waits is None and not (arrival.key is not None and arrival.key in {each.key for each in left}):
                await self.handle(arrival, stop)
                if arrival.waits is None:
                    continue
            left.append(arrival)
        return left

    async def _contain(self, arrival: Arrival, error: BaseException, stop: asyncio.Event) -> None:
        arrival.waits = None
        if arrival.settled:
            raise BrokerUnavailable(f"a delivery could not be settled: {first_line(error)}") from error
        try:
            await self.handling.give_up(arrival, error, stop)
        except BaseException as other:
            self._raise_if_expected(other)
            if arrival.settled:
                raise BrokerUnavailable(f"a delivery could not be settled: {first_line(other)}") from other
            self.reports.unexpected("a message can be neither handled nor set aside, and is given back", other)
            arrival.is_stuck = True

    def _raise_if_expected(self, error: BaseException) -> None:
        """Pass on an error that ends the flow for a reason; go on after a cancellation that nobody asked for."""
        ends = isinstance(error, (BrokerUnavailable, *UNUSABLE, KeyboardInterrupt, GeneratorExit))
        if ends or self.cancellations.requested() or what_is_away(error, passing=TRANSIENT):
            raise error
        self.cancellations.undo_foreign()
