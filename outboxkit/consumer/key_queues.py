"""Which deliveries may start now: in the order of their arrival, and one after the other within a key. Pure."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from outboxkit.brokers import Delivery


class Mode(Enum):
    """How a delivery is handled."""

    ISOLATED = "alone"
    """With nothing beside it in the process: it may be what has killed one."""
    BATCHED = "together"
    """With others in one transaction."""
    SINGLE = "singly"
    """In transactions of its own, beside others."""


@dataclass(slots=True, eq=False)
class Arrival:
    """A delivery that waits for its turn, or has it.

    Attributes:
        delivery: what arrived.
        way: how it is handled.
        key: what it has an order by; None where it has none.
        number: its place among all arrivals.
        size: bytes of its payload.
        waits: how long it waits in its lane for its next attempt, unsettled; None where it does not.
        failures: those that were followed by such a wait.
        first_failed_at: when the first of them was.
        handlers: the names of those that are still to run after them; the delivery's own where empty.
        is_stuck: whether it could be neither handled nor set aside.
    """

    delivery: Delivery
    way: Mode
    key: str | None = None
    number: int = 0
    size: int = 0
    waits: timedelta | None = None
    failures: int = 0
    first_failed_at: datetime | None = None
    handlers: tuple[str, ...] = ()
    is_stuck: bool = False

    @property
    def settled(self) -> bool:
        """Whether its delivery is settled, or may be."""
        return bool(getattr(self.delivery, "settled", False))


class KeyQueues:
    """The deliveries that wait. One with a key may start when it is the first of its lane, and the lane is free."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: dict[Mode, dict[Arrival, None]] = {way: {} for way in Mode}
        self._lanes: dict[str, deque[Arrival]] = {}
        self._busy: dict[str, int] = {}

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    def add(self, arrival: Arrival) -> None:
        """It waits behind all others."""
        self._count += 1
        arrival.number = self._count
        self._waiting[arrival.way][arrival] = None
        if arrival.key is not None:
            self._lanes.setdefault(arrival.key, deque()).append(arrival)

    @property
    def taken_in(self) -> int:
        """How many have been added so far."""
        return self._count

    def waiting(self, way: Mode) -> int:
        """How many wait to be handled this way, whether they may start or not."""
        return len(self._waiting[way])

    def first(self, way: Mode) -> Arrival | None:
        """The first that may start this way."""
        return next((arrival for arrival in self._waiting[way] if self._may_start(arrival)), None)

    def take(self, arrival: Arrival) -> Arrival:
        """It starts; its lane is taken until `free`."""
        del self._waiting[arrival.way][arrival]
        key = arrival.key
        if key is not None:
            lane = self._lanes[key]
            lane.popleft()
            if not lane:
                del self._lanes[key]
            self._busy[key] = self._busy.get(key, 0) + 1
        return arrival

    def take_together(self, limit: int, most_bytes: int) -> list[Arrival]:
        """Up to `limit` for one transaction, in the order of their arrival: several of a key too, one behind the other.

        Their payloads have `most_bytes` together, unless one alone has more.

        Their lanes are taken until each of them is freed.
        """
        taken: list[Arrival] = []
        ours: set[str] = set()
        size = 0
        for arrival in list(self._waiting[Mode.BATCHED]):
            if len(taken) == limit or size >= most_bytes:
                break
            if self._may_start(arrival, ours):
                size += arrival.size
                if taken and size > most_bytes:
                    break
                taken.append(self.take(arrival))
                if arrival.key is not None:
                    ours.add(arrival.key)
        return taken

    def free(self, arrivals: Iterable[Arrival]) -> None:
        """These are done: what waits behind them in their lanes may start."""
        for arrival in arrivals:
            if arrival.key is not None:
                self.unblock(arrival.key)

    def put_back(self, arrivals: Sequence[Arrival]) -> None:
        """These wait again, at their old places; their lanes are as free as they were."""
        for arrival in arrivals:
            self._waiting[arrival.way][arrival] = None
            if arrival.key is not None:
                self._lanes.setdefault(arrival.key, deque()).append(arrival)
        for way in {arrival.way for arrival in arrivals}:
            self._waiting[way] = dict.fromkeys(sorted(self._waiting[way], key=_place))
        for key in {arrival.key for arrival in arrivals if arrival.key is not None}:
            self._lanes[key] = deque(sorted(self._lanes[key], key=_place))
        self.free(arrivals)

    def block(self, key: str) -> None:
        """Nothing of this key starts until `unblock`."""
        self._busy[key] = self._busy.get(key, 0) + 1

    def unblock(self, key: str) -> None:
        """The key goes on."""
        self._busy[key] -= 1
        if not self._busy[key]:
            del self._busy[key]

    def clear(self) -> list[Arrival]:
        """All that wait, in the order of their arrival; none does then. What has been taken is still to be freed."""
        left = sorted((one for ways in self._waiting.values() for one in ways), key=_place)
        self._waiting = {way: {} for way in Mode}
        self._lanes.clear()
        return left

    def _may_start(self, arrival: Arrival, ours: Iterable[str] = ()) -> bool:
        key = arrival.key
        return key is None or ((key not in self._busy or key in ours) and self._lanes[key][0] is arrival)


def _place(arrival: Arrival) -> int:
    return arrival.number
