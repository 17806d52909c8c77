"""The floor: the position at which a claim starts, below which no ready row is or can appear. Pure.

PostgreSQL cannot remove the index entries of deleted rows while any transaction may still see them. Without a floor
every claim would scan all of them.
"""

from collections.abc import Iterable

SMALL_GAP, SMALL_GAP_SECONDS = 100, 1.0
"""While a claim has to pass at most 100 positions above the floor, it is enough to raise the floor once a second."""


class Floor:
    """A position that rises behind the relay, and never past a ready row that exists or may still appear.

    Rows with a due time are found without it.

    A position that was allocated early may become visible late, when its transaction commits. So a mark is set at the
    highest position seen, together with the transactions that were writing at that moment. Once all of them have ended,
    nothing new can appear below the mark. The next `rise` then raises the floor to the mark, or to below the oldest
    ready row.
    """

    def __init__(self) -> None:
        self.value = 0
        self._highest = 0
        self._mark: tuple[int, frozenset[str]] | None = None
        self._cleared: int | None = None

    @property
    def gap(self) -> int:
        """The number of positions between the floor and the highest one that was seen."""
        return max(0, self._highest - self.value)

    def saw(self, positions: Iterable[int]) -> None:
        """Note ready rows that were claimed."""
        self._highest = max(self._highest, max(positions, default=0))

    def rise(self, writers: Iterable[str], oldest_ready: int | None) -> None:
        """Raise the floor, by the writing transactions and the oldest ready row above the floor, read after them."""
        if self._cleared is not None:
            free = self._cleared if oldest_ready is None else min(self._cleared, oldest_ready - 1)
            self.value = max(self.value, free)
        now = frozenset(writers)
        if self._mark is None or not self._mark[1] & now:
            self._cleared = self._mark[0] if self._mark else None
            self._mark = (self._highest, now)
