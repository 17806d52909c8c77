"""The life of a process: its event loop, its signals, a deadline for stopping, and an end that nothing can delay."""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn, TypeVar

from outboxkit.errors.failures import first_line, printable
from outboxkit.runtime import logs
from outboxkit.runtime.supervised import supervised

T = TypeVar("T")

GIVE_BACK_SECONDS, CANCEL_AGAIN_SECONDS = 3.0, 1.5
"""The time that a cancelled service has to give back its work, and after which it is cancelled once more."""
LEFT_SECONDS = 1.0
"""The time that the process gives to tasks and threads that handlers left behind, once all else has ended. A stop takes
the shutdown timeout and these two times at most."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
_left_until = 0.0
"""The end of that last time, by the monotonic clock."""


def run(service: Callable[[asyncio.Event], Awaitable[int]], *, shutdown_timeout: timedelta, cancelled: int = 0) -> int:
    """Run a service until it ends, or until SIGTERM or SIGINT; returns its exit code.

    The first signal sets the service's `stop` event, and the service finishes the work in flight. After
    `shutdown_timeout`, or at a second signal, the rest is cancelled: its transaction is rolled back and its messages
    are given back. If that takes longer than a few seconds, as with servers that are silent, their connections just
    end. That is a clean stop, too, with the exit code `cancelled`. Call it as the process's last act: later signals,
    which would spoil the exit code, are ignored.
    """
    loop, signals = asyncio.new_event_loop(), _Signals()
    executor = ThreadPoolExecutor(thread_name_prefix="outboxkit")
    loop.set_default_executor(executor)
    loop.set_exception_handler(logs.unretrieved)
    asyncio.set_event_loop(loop)
    for number in SIGNALS:
        loop.add_signal_handler(number, signals.arrived)
    if (process := supervised()) is not None:
        limit = shutdown_timeout.total_seconds() + GIVE_BACK_SECONDS + LEFT_SECONDS
        process.watch(partial(loop.call_soon_threadsafe, signals.stop.set), seconds=limit)
    gc.collect()
    gc.freeze()  # imported modules stay for ever, so no collection has to look at them again
    try:
        return _run_to_end(
            loop, loop.create_task(_supervise(service, signals, shutdown_timeout.total_seconds(), cancelled))
        )
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
        _close(loop, executor)


def leave(code: int) -> int:
    """Return the exit code; or end the process with it, if a thread that a handler left behind does not end."""
    own_threads = (threading.main_thread(), threading.current_thread())
    deadline = _left_until or time.monotonic() + LEFT_SECONDS
    for thread in threading.enumerate():
        if thread not in own_threads and (not thread.daemon or getattr(thread, "runs_handlers", False)):
            thread.join(max(deadline - time.monotonic(), 0))
            if thread.is_alive():
                logs.logger().warning(
                    "threads of handlers still run, the process ends without them", thread=thread.name
                )
                _end_now(code)
    return code


async def together(
    parts: Sequence[Callable[[asyncio.Event], Awaitable[T]]], stop: asyncio.Event, *, grace: timedelta | None
) -> list[T]:
    """Run the parts of a process beside each other until `stop` is set; returns their results.

    The first part that fails stops the others, and its error is raised. They then have `grace` to finish what is in
    flight; after that they are cancelled. None means for ever.
    """
    ending, failure, failed = asyncio.Event(), asyncio.Event(), list[asyncio.Task[T]]()

    def ended(task: asyncio.Task[T]) -> None:
        if task.cancelled() or task.exception() is not None:
            failed.append(task)
            ending.set()
            failure.set()

    async def one(part: Callable[[asyncio.Event], Awaitable[T]]) -> T:
        return await part(ending)

    async def forward() -> None:
        await stop.wait()
        ending.set()

    async def limit() -> None:
        await failure.wait()
        _, pending = await asyncio.wait(tasks, timeout=None if grace is None else grace.total_seconds())
        await end_tasks(list(pending))

    tasks = [asyncio.create_task(one(part)) for part in parts]
    for task in tasks:
        task.add_done_callback(ended)
    watchers = [asyncio.create_task(forward()), asyncio.create_task(limit())]
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        await end_tasks(tasks)
        raise
    finally:
        for watcher in watchers:
            watcher.cancel()
    for task in failed:
        task.result()
    return [task.result() for task in tasks]


async def end_tasks(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait until they have ended, however they do.

    Again after a while: before Python 3.12 `asyncio.wait_for`, which client libraries use, may swallow a cancellation,
    and a task that repeats something for ever would go on.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        ended, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_SECONDS)
        for task in ended:
            if not task.cancelled():
                task.exception()  # marks it as retrieved, else Python logs it


class _Signals:
    """The events that signals set: the first one stop, the second one stop at once."""

    def __init__(self) -> None:
        self.stop, self.at_once, self._is_first = asyncio.Event(), asyncio.Event(), True

    def arrived(self) -> None:
        (self.stop if self._is_first else self.at_once).set()
        self._is_first = False


def _run_to_end(loop: asyncio.AbstractEventLoop, main: asyncio.Task[int]) -> int:
    """The result of the task, once it has ended.

    Code of the application may stop the loop, exit, or cancel tasks that it did not start. Then the process ends at
    once, with one line and exit code 1. A supervisor restarts it, and the crash record finds the message.
    """
    ending: BaseException | None = None
    try:
        return loop.run_until_complete(main)
    except BaseException as error:
        if main.done() and isinstance(error, Exception):  # the service's own
            raise
        ending = None if isinstance(error, Exception) else error
    text = "the event loop was stopped" if ending is None else first_line(ending)
    text = printable(", ".join([text, *getattr(ending, "__notes__", ())]))
    logs.logger().error("code of the application ended the process", error=text, exc_info=ending)
    return _end_now(1)


def _end_now(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader has gone
            stream.flush()
    os._exit(code)


def _close(loop: asyncio.AbstractEventLoop, executor: ThreadPoolExecutor) -> None:
    """Cancel the tasks and threads that were left behind, and wait for them for a moment."""
    global _left_until  # noqa: PLW0603 - of the process
    _left_until = time.monotonic() + LEFT_SECONDS
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    with suppress(Exception):
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=LEFT_SECONDS))
        left = _left_until - time.monotonic()
        loop.run_until_complete(asyncio.wait_for(loop.shutdown_asyncgens(), max(left, 0.1)))
    executor.shutdown(wait=False, cancel_futures=True)
    asyncio.set_event_loop(None)
    loop.close()


async def _supervise(
    service: Callable[[asyncio.Event], Awaitable[int]], signals: _Signals, grace: float, cancelled: int
) -> int:
    main = asyncio.ensure_future(service(signals.stop))
    await _first_of(main, signals.stop, None)
    await _first_of(main, signals.at_once, grace)
    if main.done():
        return main.result()
    with suppress(TimeoutError):
        async with asyncio.timeout(GIVE_BACK_SECONDS):
            await end_tasks([main])
    if main.done():
        with suppress(asyncio.CancelledError):
            main.result()
    else:
        logs.logger().warning(
            "what is in hand could not be given back in time, the process ends without that: do the servers answer?"
        )
    return cancelled


async def _first_of(main: asyncio.Future[int], event: asyncio.Event, seconds: float | None) -> None:
    """Wait for the service's end or the event."""
    signalled = asyncio.ensure_future(event.wait())
    await asyncio.wait((main, signalled), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
