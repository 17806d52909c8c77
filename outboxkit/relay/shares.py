"""Shares of the keys: relays of a destination that have a backlog claim different keys, so that none waits for another.

Pure. Shares are for speed alone: row locks and predecessors keep the order, also of relays that have the same share.
"""

import secrets
from collections.abc import Callable, Iterable

STILL_SECONDS = 2.0
"""A relay without a new transaction for 2 s loses its share. A first ready row that stays so long bounds no share."""
STILL_LOOKS = 4
"""The minimum number of claims within that time: with a slow broker a batch takes longer."""
WINDOW = 100_000
"""The number of positions from the first ready row on, in which a relay claims its share. It takes 25 ms at most."""
LAST_POSITION = 2**63 - 1


class Shares:
    """The relays that have a backlog now, as this relay sees them, and its own place among them.

    Args:
        monotonic: a monotonic clock in seconds, for tests.

    Attributes:
        number: this relay's own number, drawn at random.
        count: the number of relays.
        rank: the place of this one by its number, from 0 on. Its keys are those whose hash modulo `count` is this.
        has_others: whether another relay, one that has not frozen, took part at the last claim.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.number = secrets.randbits(31)
        self.count, self.rank = 1, 0
        self.has_others = False
        self._looks = 0
        self._seen: dict[int, tuple[frozenset[str], float, int]] = {}
        self._first: int | None = None
        self._first_at, self._first_looks = float("-inf"), 0

    def saw(self, transactions: Iterable[tuple[int | None, str | None]]) -> None:
        """Note the transactions of all relays with a backlog, each with its relay's number."""
        now = self._monotonic()
        self._looks += 1
        by_relay: dict[int, set[str]] = {}
        for number, transaction in transactions:
            if number is None or transaction is None:
                continue
            by_relay.setdefault(number, set()).add(transaction)
        for number, current in by_relay.items():
            before = self._seen[number][0] if number in self._seen else frozenset()
            if current - before:
                self._seen[number] = frozenset(current), now, self._looks
        self._seen = {
            number: seen
            for number, seen in self._seen.items()
            if now - seen[1] < STILL_SECONDS or self._looks - seen[2] < STILL_LOOKS
        }
        self.has_others = any(number in self._seen for number in by_relay if number != self.number)
        living = sorted({self.number, *self._seen})
        self.count, self.rank = len(living), living.index(self.number)

    def leave(self) -> None:
        """Have all keys again: this relay has no backlog, and needs no share."""
        self.count, self.rank = 1, 0

    def saw_first(self, position: int | None) -> None:
        """Note the position of the first ready row."""
        self._first_looks += 1
        if position != self._first:
            self._first, self._first_at, self._first_looks = position, self._monotonic(), 0

    @property
    def stand_still(self) -> bool:
        """Whether the first ready row has been the same for 2 s: a relay froze, or the row is in no relay's share."""
        is_old = self._monotonic() - self._first_at > STILL_SECONDS
        return self._first is not None and is_old and self._first_looks >= STILL_LOOKS

    @property
    def last_position(self) -> int:
        """The last position at which this relay claims its share."""
        return LAST_POSITION if self._first is None or self.stand_still else self._first + WINDOW
