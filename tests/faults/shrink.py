"""The smallest part of a failing plan that still fails: delta debugging."""

from collections.abc import Callable
from math import ceil


def shrunk(entries: tuple[int, ...], breaks: Callable[[tuple[int, ...]], bool], *, tries: int) -> tuple[int, ...]:
    """The entries that are left when no part of them can be left out, or after so many tries.

    First halves are left out, then ever smaller parts, at last single entries.

    Args:
        entries: all together they break something.
        breaks: whether these entries, in their order, do.
    """
    parts = 2
    while len(entries) > 1:
        size = ceil(len(entries) / parts)
        for first in range(0, len(entries), size):
            if tries == 0:
                return entries
            tries -= 1
            others = entries[:first] + entries[first + size :]
            if breaks(others):
                entries, parts = others, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(entries))
    return entries
