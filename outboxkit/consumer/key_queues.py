"""The deliveries that wait, and which may start: in order of arrival, and one at a time within a key. Pure."""

from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter

from outboxkit.consumer.routing import Arrival, Mode


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
        for arrival in self._waiting[mode]:
            if self._may_start(arrival):
                return arrival
        return None

    def unknown(self) -> list[Arrival]:
        """The deliveries for transactions of their own of which it is not known whether they are duplicates."""
        return [arrival for arrival in self._waiting[Mode.SINGLE] if arrival.done is None]

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
            self._waiting[mode] = dict.fromkeys(sorted(self._waiting[mode], key=attrgetter("number")))
        for key in {arrival.key for arrival in arrivals if arrival.key is not None}:
            self._queues[key] = deque(sorted(self._queues[key], key=attrgetter("number")))
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
        deliveries = sorted((each for group in self._waiting.values() for each in group), key=attrgetter("number"))
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
