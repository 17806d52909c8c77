"""Keys that another relay, or a transaction that stays open, has in its hands: not to be claimed for a while. Pure."""

from collections import Counter
from collections.abc import Callable

PATIENCE = 3
"""How many claims in a row may be blocked for the most part: relays that meet at a key get out of each other's way."""
AVOIDED_KEYS = 32
AVOID_SECONDS = 0.25


class Avoidance:
    """Remembers which keys have blocked claims, so that they do not fill every batch while other keys wait.

    Args:
        monotonic: seconds, for tests.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._blocked_claims = 0
        self._until: dict[str, float] = {}

    def keys(self) -> list[str]:
        """What the next claim leaves out."""
        if self._until:
            now = self._monotonic()
            self._until = {key: until for key, until in self._until.items() if until > now}
        return list(self._until)

    def saw(self, rows: int, blocked: Counter[str]) -> None:
        """Note how many rows a claim had, and how many of them, by key, were not this relay's turn."""
        if blocked.total() * 2 <= rows:
            self._blocked_claims = 0
            return
        self._blocked_claims += 1
        if self._blocked_claims >= PATIENCE:
            until = self._monotonic() + AVOID_SECONDS
            self._until |= {key: until for key, _ in blocked.most_common(AVOIDED_KEYS)}
