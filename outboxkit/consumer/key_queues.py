"""The deliveries that wait, and which of them may start: in order of arrival, and one at a time within a key. Pure."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from outboxkit.brokers import Delivery
from outboxkit.codec.envelopes.envelope import Malformed
from outboxkit.message import Message


class Mode(Enum):
    """The mode in which a delivery is handled."""

    ISOLATED = "isolated"
    """Nothing else runs in the process meanwhile: this delivery may have killed one."""
    BATCHED = "batched"
    """Shares a transaction with other deliveries."""
    SINGLE = "single"
    """In transactions of its own, concurrently with other deliveries."""


@dataclass(slots=True, eq=False)
class Limit:
    """The number of messages that a handler may handle at once, and the number that it handles now."""

    most: int
    running: int = 0


@dataclass(slots=True, eq=False)
class Arrival:
    """A delivery that waits for its turn, or is being handled.

    Attributes:
        delivery: the broker's delivery, which is settled by the methods here.
        mode: how it is handled.
        key: its ordering key; None if it has none, or if the consumer is not ordered.
        number: its rank in order of arrival.
        size: bytes of its payload once it is inflated, or more if its instances need more memory than plain objects.
        events: how many documents are made of it at the same time: in a batch one for each handler; pydantic makes two.
        waits: the delay before its next attempt, spent unsettled in its key queue; None if there is none.
        failures: the number of failures that were followed by such a delay.
        first_failed_at: the time of the first of them.
        handlers: the names of the handlers that still have to run; if empty, the delivery's own.
        limits: those of its handlers' concurrency.
        is_stuck: whether it could neither be handled nor become a dead letter.
        settled: whether it was acked, requeued or copied, or the attempt to do so may have succeeded.
        read: what a reader of foreign envelopes has found in it; None: it has not been read by one.
    """

    delivery: Delivery
    mode: Mode
    key: str | None = None
    number: int = 0
    size: int = 0
    events: int = 1
    waits: timedelta | None = None
    failures: int = 0
    first_failed_at: datetime | None = None
    handlers: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    is_stuck: bool = False
    settled: bool = False
    read: Message | Malformed | None = None

    @property
    def message(self) -> Message | Malformed:
        """The message."""
        return self.delivery.message if self.read is None else self.read

    async def ack(self) -> None:
        """It is done."""
        self.settled = True
        await self.delivery.ack()

    async def requeue(self) -> None:
        """Give it back unhandled."""
        self.settled = True
        await self.delivery.requeue()

    async def retry(self, after: timedelta | None, *, handlers: tuple[str, ...]) -> timedelta:
        """Have it come again later; it is not settled if no copy of it could be made."""
        delay = await self.delivery.retry(after, handlers=handlers)
        self.settled = True
        return delay

    async def requeue_fresh(self) -> None:
        """Put a copy at the end of the queue; it is not settled if none could be made."""
        await self.delivery.requeue_fresh()
        self.settled = True

    @property
    def room(self) -> int:
        """The bytes of payloads that are decoded for it at the same time."""
        return self.size * self.events


class KeyQueues:
    """The deliveries that wait. One with a key may start if it is the first in its key's queue and the key is free.

    One whose handlers have a limit may start if fewer of them run. It holds up its key alone.

    Attributes:
        held: keys of which none may start, whatever waits here.
    """

    def __init__(self) -> None:
        self.held: frozenset[str] = frozenset()
        self._count = 0
        self._waiting: dict[Mode, dict[Arrival, None]] = {mode: {} for mode in Mode}
        self._queues: dict[str, deque[Arrival]] = {}
        self._busy: dict[str, int] = {}

    def __len__(self) -> int:
        """The number of deliveries that wait."""
        return sum(map(len, self._waiting.values()))

    def add(self, arrival: Arrival) -> None:
        """Append a delivery, behind all others."""
        self._count += 1
        arrival.number = self._count
        self._wait(arrival)

    @property
    def added(self) -> int:
        """The number of deliveries that have been added so far."""
        return self._count

    def waiting(self, mode: Mode) -> int:
        """The number of deliveries that wait in this mode, whether they may start or not."""
        return len(self._waiting[mode])

    def first(self, mode: Mode) -> Arrival | None:
        """The first delivery that may start in this mode."""
        return next((arrival for arrival in self._waiting[mode] if self._may_start(arrival)), None)

    def has_next(self) -> bool:
        """Whether a delivery may start, now or as soon as its limits allow it."""
        return any(self._is_next(arrival) for group in self._waiting.values() for arrival in group)

    def take(self, arrival: Arrival) -> Arrival:
        """Take a delivery out to start it; its key is busy until `free`, and its limits count it."""
        del self._waiting[arrival.mode][arrival]
        for limit in arrival.limits:
            limit.running += 1
        key = arrival.key
        if key is not None:
            queue = self._queues[key]
            queue.popleft()
            if not queue:
                del self._queues[key]
            self._busy[key] = self._busy.get(key, 0) + 1
        return arrival

    def take_batch(self, limit: int, max_bytes: int) -> list[Arrival]:
        """Take up to `limit` deliveries for one transaction, in order of arrival, also several of one key.

        Their payloads have at most `max_bytes` in total, unless one alone has more. Their keys are busy until `free`.
        """
        batch: list[Arrival] = []
        batch_keys: set[str] = set()
        size = 0
        for arrival in list(self._waiting[Mode.BATCHED]):
            if len(batch) == limit or size >= max_bytes:
                break
            if self._may_start(arrival, batch_keys):
                size += arrival.room
                if batch and size > max_bytes:
                    break
                batch.append(self.take(arrival))
                if arrival.key is not None:
                    batch_keys.add(arrival.key)
        return batch

    def free(self, arrivals: Iterable[Arrival]) -> None:
        """Free the keys of these finished deliveries, so that the next ones may start."""
        for arrival in arrivals:
            if arrival.key is not None:
                self.unblock(arrival.key)

    def put_back(self, arrivals: Sequence[Arrival]) -> None:
        """Let these wait again at their old ranks, and free their keys."""
        for arrival in arrivals:
            self._wait(arrival)
        for mode in {arrival.mode for arrival in arrivals}:
            self._waiting[mode] = dict.fromkeys(sorted(self._waiting[mode], key=_number))
        for key in {arrival.key for arrival in arrivals if arrival.key is not None}:
            self._queues[key] = deque(sorted(self._queues[key], key=_number))
        self.free(arrivals)

    def block(self, key: str) -> None:
        """Keep deliveries of this key from starting, until `unblock`."""
        self._busy[key] = self._busy.get(key, 0) + 1

    def unblock(self, key: str) -> None:
        """Undo one `block`, or one `take`, of this key."""
        self._busy[key] -= 1
        if not self._busy[key]:
            del self._busy[key]

    def clear(self) -> list[Arrival]:
        """Remove and return all deliveries that wait, in order of arrival. Keys of running ones stay busy."""
        deliveries = sorted((each for group in self._waiting.values() for each in group), key=_number)
        self._waiting = {mode: {} for mode in Mode}
        self._queues.clear()
        return deliveries

    def _wait(self, arrival: Arrival) -> None:
        self._waiting[arrival.mode][arrival] = None
        if arrival.key is not None:
            self._queues.setdefault(arrival.key, deque()).append(arrival)

    def _may_start(self, arrival: Arrival, batch_keys: Iterable[str] = ()) -> bool:
        if arrival.limits and any(limit.running >= limit.most for limit in arrival.limits):
            return False
        return self._is_next(arrival, batch_keys)

    def _is_next(self, arrival: Arrival, batch_keys: Iterable[str] = ()) -> bool:
        key = arrival.key
        is_free = key not in self.held and (key not in self._busy or key in batch_keys)
        return key is None or (is_free and self._queues[key][0] is arrival)


def _number(arrival: Arrival) -> int:
    return arrival.number
