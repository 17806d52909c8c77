"""The floor: a position below which no ready row can be, so that no claim scans the index entries of deleted rows.

PostgreSQL cannot remove these entries while any transaction in the server may still see them. Without a floor every
claim would scan all of them.
"""

from collections.abc import Iterable


class Floor:
    """Rises behind the relay, and never past a row that exists or may still appear. Pure.

    A position that was allocated early may become visible late, when its transaction commits. So a mark is set at the
    highest position seen, together with the transactions that were writing at that moment. Once all of them have ended,
    nothing new can appear below the mark. The next look then raises the floor to the mark, or to just below the oldest
    ready row.
    """

    def __init__(self) -> None:
        self.value = 0
        self._highest = 0
        self._mark: tuple[int, frozenset[str]] | None = None
        self._cleared: int | None = None

    def saw(self, positions: Iterable[int]) -> None:
        """Note ready rows that were claimed."""
        self._highest = max(self._highest, max(positions, default=0))

    def look(self, writers: Iterable[str], oldest_ready: int | None) -> None:
        """Take a look at the table: the writers, read first, and then the oldest ready row above the floor."""
        if self._cleared is not None:
            free = self._cleared if oldest_ready is None else min(self._cleared, oldest_ready - 1)
            self.value = max(self.value, free)
        now = frozenset(writers)
        if self._mark is None or not self._mark[1] & now:
            self._cleared = self._mark[0] if self._mark else None
            self._mark = (self._highest, now)
