"""A watch on the event loop: a handler that blocks it is logged, with its cure."""

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

import structlog

from outboxkit.consumer.threads import frame_of
from outboxkit.inbox import Handler

BLOCKED_SECONDS = 5.0
"""An event loop that was blocked for longer is reported: by then heartbeats and timeouts run late."""
BLOCKED_CURE = (
    "nothing else ran meanwhile, and connections may have been lost. Make it a plain def without in_loop, await in it, "
    "or give the work to a thread with asyncio.to_thread"
)


class Watchdog:
    """Measures how late the event loop is. Once it is late, a thread records which code the loop runs."""

    def __init__(self, handlers: Sequence[Handler], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._names = {getattr(inspect.unwrap(each.function), "__code__", None): each.name for each in handlers}
        self._clock, self._limit = clock, BLOCKED_SECONDS
        self._iterated_at = clock()
        self._blocked_by: str | None = None
        self._over = threading.Event()
        self._log = structlog.get_logger("outboxkit").bind(process="consumer")

    async def run(self) -> None:
        """Watch the loop that this runs on, until cancelled."""
        self._iterated_at = self._clock()
        threading.Thread(target=self._record_code, args=(threading.get_ident(),), name="watchdog", daemon=True).start()
        try:
            while True:
                await asyncio.sleep(self._limit / 4)
                self._note_iteration()
        finally:
            self._note_iteration()  # the end may come before this task runs again
            self._over.set()

    def _note_iteration(self) -> None:
        """Note that the loop goes on; report it if it was blocked for too long."""
        last, self._iterated_at = self._iterated_at, self._clock()
        blocked, blocked_by = self._iterated_at - last - self._limit / 4, self._blocked_by
        self._blocked_by = None
        if blocked >= self._limit:
            by = blocked_by or "an unknown cause (was the process stopped?)"
            self._log.warning(f"the event loop was blocked for {blocked:.0f} s by {by}: {BLOCKED_CURE}")

    def _record_code(self, loop_thread: int) -> None:
        """While the loop is late, record which code its thread runs. The first record counts."""
        while not self._over.wait(self._limit / 4):
            if self._clock() - self._iterated_at > self._limit / 2:
                self._blocked_by = self._blocked_by or self._running_code(frame_of(loop_thread))

    def _running_code(self, frame: FrameType | None) -> str | None:
        """The running handler, and the line in its module; otherwise the running function, unless the loop is idle."""
        inner = frame
        while frame is not None:
            if name := self._names.get(frame.f_code):
                return f"handler {name!r} (line {frame.f_lineno} of {frame.f_globals.get('__name__')})"
            frame = frame.f_back
        module = None if inner is None else inner.f_globals.get("__name__")
        if inner is None or module == "selectors":
            return None
        return f"code outside the handlers ({module}, line {inner.f_lineno})"
