"""Waiting in tests: for a condition, with a deadline, never for a time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 120.0
PAUSE_SECONDS = 0.02


def eventually(read: Callable[[], T], accept: Callable[[T], bool] = bool, *, seconds: float = DEADLINE_SECONDS) -> T:
    """What `read` returns once `accept` says yes to it; AssertionError with what it last returned if it never does."""
    deadline = time.monotonic() + seconds
    while True:
        found = read()
        if accept(found):
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s; the last value was {found!r}")
        time.sleep(PAUSE_SECONDS)


async def eventually_async(
    read: Callable[[], Awaitable[T]], accept: Callable[[T], bool] = bool, *, seconds: float = DEADLINE_SECONDS
) -> T:
    """`eventually`, while the event loop goes on."""
    deadline = time.monotonic() + seconds
    while True:
        found = await read()
        if accept(found):
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s; the last value was {found!r}")
        await asyncio.sleep(PAUSE_SECONDS)
