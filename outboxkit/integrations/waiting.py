"""Places for duplicates that wait for the first request to end: a waiting one keeps a thread or a connection."""

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from threading import Lock


class Places:
    """So many requests may wait at once; the duplicates of one caller take half of the places, at most.

    Args:
        most: places in all.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_one = (most + 1) // 2
        self._waiting: Counter[Hashable] = Counter()
        self._lock = Lock()

    @contextmanager
    def taken(self, caller: Hashable) -> Iterator[bool]:
        """Have a place inside the block, if the value is True. Nobody waits for one."""
        with self._lock:
            is_free = self._waiting.total() < self._most and self._waiting[caller] < self._of_one
            if is_free:
                self._waiting[caller] += 1
        try:
            yield is_free
        finally:
            with self._lock:
                self._waiting[caller] -= is_free
                if not self._waiting[caller]:
                    del self._waiting[caller]
