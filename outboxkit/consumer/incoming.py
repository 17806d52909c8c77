"""A delivery as the consumer has it: whether it was settled is known, however that went."""

from datetime import timedelta

from outboxkit.brokers import Delivery


class Incoming:
    """A delivery that remembers its settlement.

    Attributes:
        message, marks, returned, dropped: the delivery's own.
        settled: whether it was acked, released, retried or renewed, or the attempt to do so may have succeeded.
    """

    __slots__ = ("_delivery", "dropped", "marks", "message", "returned", "settled")

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self.message, self.marks = delivery.message, delivery.marks
        self.returned, self.dropped = delivery.returned, delivery.dropped
        self.settled = False

    async def ack(self) -> None:
        """It is done."""
        self.settled = True
        await self._delivery.ack()

    async def release(self) -> None:
        """Give it back unhandled."""
        self.settled = True
        await self._delivery.release()

    async def retry(self, after: timedelta | None = None, *, handlers: tuple[str, ...] = ()) -> timedelta:
        """Have it come again later; it is not settled if no copy of it could be made."""
        delay = await self._delivery.retry(after, handlers=handlers)
        self.settled = True
        return delay

    async def renew(self) -> None:
        """Put a copy at the end of the queue; it is not settled if none could be made."""
        await self._delivery.renew()
        self.settled = True
