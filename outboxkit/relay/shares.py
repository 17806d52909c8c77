"""The keys that a relay claims while others claim, too, so that none waits for another. Pure.

Keys that keep blocking claims are left out of the next ones for a moment. Relays of a destination that have a backlog
claim different shares of the keys; if there are more relays than shares, some stand by. All of it is for speed alone:
row locks and predecessors keep the order, also of relays that have the same share.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Iterable

BLOCKED_CLAIMS = 3
"""After so many claims in a row with more than half of their rows blocked, the relay leaves their keys to others."""
AVOID_SECONDS, LONGEST_AVOID_SECONDS, KEYS_A_SECOND = 0.25, 2.0, 1000
"""The first time for which a relay leaves such keys to others. It doubles with each further blocked claim, to 2 s or to
a second for each thousand keys if that is longer. So the keys of several claims add up: a relay that froze holds all
of its keys, and other messages wait behind them."""


class ContendedKeys:
    """The keys that have blocked claims lately, so that they do not fill every batch while other keys wait."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._blocked_claims = 0
        self._new: list[str] = []
        self._until: dict[str, float] = {}

    def keys(self) -> list[str]:
        """The keys that the next claim leaves out. Their time begins with it, as the relay may pause before."""
        if self._new or self._until:
            now = self._monotonic()
            again = max(self._blocked_claims - BLOCKED_CLAIMS, 0)
            longest = max(LONGEST_AVOID_SECONDS, (len(self._until) + len(self._new)) / KEYS_A_SECOND)
            seconds = min(AVOID_SECONDS * 2 ** min(again, 10), longest)
            self._until |= dict.fromkeys(self._new, now + seconds)
            self._new = []
            self._until = {key: until for key, until in self._until.items() if until > now}
        return list(self._until)

    def saw(self, rows: int, blocked: Counter[str]) -> None:
        """Note the rows of a claim, and how many of them, by key, have to wait for another relay."""
        if blocked.total() * 2 <= rows:
            self._blocked_claims = 0
            return
        self._blocked_claims += 1
        if self._blocked_claims >= BLOCKED_CLAIMS:
            self._new = list(blocked)


STILL_SECONDS = 2.0
"""A relay without a new transaction for 2 s loses its share. A first ready row that stays so long bounds no share."""
STILL_LOOKS = 4
"""So many of our own claims have to pass, too, before a relay counts as frozen: with a slow broker a batch takes longer
than 2 s."""
MOST_SHARES = 2
"""The maximum number of shares if the destination is a broker, which one relay can keep busy. More relays only add to
the rows of others that each claim walks over: ten had 0.7 of the speed of one."""
SHARE_POSITIONS = 100_000
"""The number of positions from the first ready row on, in which a relay claims its share. It takes 25 ms at most."""
LAST_POSITION = 2**63 - 1


class Shares:
    """The relays that have a backlog now, as this relay sees them, and its own place among them.

    Args:
        most: the maximum number of shares; None: any.

    Attributes:
        number: this relay's own number, drawn at random.
        count: the number of shares: one for each relay, up to `most`.
        rank: the place of this one by its number, from 0 on. Its keys are those whose hash modulo `count` is this.
        has_others: whether another relay, one that has not frozen, took part at the last claim.
    """

    def __init__(self, monotonic: Callable[[], float], most: int | None = None) -> None:
        self._monotonic = monotonic
        self._most = most
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
        moving = {
            number
            for number, seen in self._seen.items()
            if now - seen[1] < STILL_SECONDS or self._looks - seen[2] < STILL_LOOKS
        }
        # One that stands still is kept, for its old transaction would count as a new one at the next look.
        self._seen = {number: seen for number, seen in self._seen.items() if number in moving or number in by_relay}
        self.has_others = any(number in moving for number in by_relay if number != self.number)
        living = sorted({self.number, *moving})
        self.count, self.rank = min(len(living), self._most or len(living)), living.index(self.number)

    @property
    def stands_by(self) -> bool:
        """Whether there is no share for this relay, until another one is gone."""
        return self.rank >= self.count

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
        return LAST_POSITION if self._first is None or self.stand_still else self._first + SHARE_POSITIONS
