"""Waiting in tests: for a condition, with a deadline, never for a time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 120.0
PAUSES_SECONDS = (0.02, 0.1)
"""Between two readings, at first and at most; else a tenth of what was waited, so that waiting costs little."""


def eventually(read: Callable[[], T], accept: Callable[[T], bool] = bool, *, seconds: float = DEADLINE_SECONDS) -> T:
    """What `read` returns once `accept` says yes to it; AssertionError with what it last returned if it never does."""
    began = time.monotonic()
    while True:
        found = read()
        if accept(found):
            return found
        if (waited := time.monotonic() - began) > seconds:
            raise AssertionError(f"not within {seconds:g} s; the last value was {found!r}")
        time.sleep(pause(waited))


async def eventually_async(
    read: Callable[[], Awaitable[T]], accept: Callable[[T], bool] = bool, *, seconds: float = DEADLINE_SECONDS
) -> T:
    """`eventually`, while the event loop goes on."""
    began = time.monotonic()
    while True:
        found = await read()
        if accept(found):
            return found
        if (waited := time.monotonic() - began) > seconds:
            raise AssertionError(f"not within {seconds:g} s; the last value was {found!r}")
        await asyncio.sleep(pause(waited))


def pause(waited: float) -> float:
    """How long to wait for the next reading, in seconds, if so long was waited already."""
    shortest, longest = PAUSES_SECONDS
    return min(longest, max(shortest, waited / 10))
