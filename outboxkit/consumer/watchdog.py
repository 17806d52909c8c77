"""A watchdog for the event loop: it says which handler held everything up, and for how long."""

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import CodeType, FrameType

import structlog

from outboxkit.inbox import Handler

BLOCKED_SECONDS = 5.0
"""A loop that did not turn for longer is worth a line: heartbeats and timeouts run late by then."""
CURE = (
    "nothing else ran meanwhile, and connections may have been lost. Await in the handler instead, or give the work to "
    "a thread with asyncio.to_thread"
)


class Watchdog:
    """Measures how late the event loop is. While it is, a thread looks at what it does; else that thread only sleeps.

    Args:
        handlers: those whose code may be found at work.
        clock: seconds that only grow, for tests.
    """

    def __init__(self, handlers: Sequence[Handler], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._names = {code: handler.name for handler in handlers if (code := _code(handler)) is not None}
        self._clock = clock
        self._limit = BLOCKED_SECONDS
        self._turned = clock()
        self._seen: str | None = None
        self._over = threading.Event()
        self._log = structlog.get_logger("outboxkit").bind(process="consumer")

    async def run(self) -> None:
        """Watch the loop that this runs on, until cancelled."""
        self._turned = self._clock()
        thread = threading.Thread(target=self._look, args=(threading.get_ident(),), name="watchdog", daemon=True)
        thread.start()
        try:
            while True:
                await asyncio.sleep(self._limit / 4)
                self._turns()
        finally:
            self._over.set()

    def _turns(self) -> None:
        """Note that the loop goes on; say so if it did not for too long."""
        last, self._turned = self._turned, self._clock()
        blocked, seen = self._turned - last - self._limit / 4, self._seen
        self._seen = None
        if blocked >= self._limit:
            by = seen or "something that could not be seen (was the process stopped?)"
            self._log.warning(f"the event loop was blocked for {blocked:.0f} s by {by}: {CURE}")

    def _look(self, loop_thread: int) -> None:
        """In a thread: while the loop is late, find out what it does."""
        while not self._over.wait(self._limit / 4):
            if self._clock() - self._turned > self._limit / 2:
                frame = sys._current_frames().get(loop_thread)  # noqa: SLF001 - the documented way
                self._seen = self._culprit(frame) or self._seen
                del frame

    def _culprit(self, frame: FrameType | None) -> str | None:
        """The handler that is at work, and where its own code stands; else the function that is."""
        place = None if frame is None else f"{frame.f_globals.get('__name__')}, line {frame.f_lineno}"
        while frame is not None:
            name = self._names.get(frame.f_code)
            if name is not None:
                return f"handler {name!r} (line {frame.f_lineno} of {frame.f_globals.get('__name__')})"
            frame = frame.f_back
        return place and f"what is no handler ({place})"


def _code(handler: Handler) -> CodeType | None:
    return getattr(inspect.unwrap(handler.function), "__code__", None)
