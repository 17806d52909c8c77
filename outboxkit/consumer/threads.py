"""Threads for plain `def` handlers: each transaction in a thread, with a synchronous session of its own.

Nothing can end a thread. If a handler takes longer than its timeout, its statement is cancelled and its connection
closed. If its thread still runs after that, it is left behind: it can commit nothing, and another one takes its place.
"""

import asyncio
import gc
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Any, Generic, TypeVar, cast

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, sessionmaker

from outboxkit.database import engines
from outboxkit.database.sqlalchemy_asyncio import AsyncEngine
from outboxkit.database.transaction import HandlerSession
from outboxkit.inbox.handlers import Handler
from outboxkit.inbox.run_once import LIMIT_OF_THREAD

T = TypeVar("T")
RunEnding = tuple[T | None, BaseException | None]
"""The result of a transaction, or its error."""

THREAD_NAME = "outboxkit handler"
"""The name of each thread."""
MOST_LEFT = 100
"""If so many threads are left behind, no handler starts in a thread before one of them ends."""
STACK = 8
"""The number of frames that are shown of such a thread."""
THREAD_CURE = "a thread cannot be ended: give its calls timeouts of their own, which are shorter than the handler's"
CANCEL_SECONDS = 2.0
"""The limit for the request that cancels a statement."""
GRACE_SECONDS = 3.0
"""The time that a thread has to end after its handler's timeout, before it is left behind."""

_looking = threading.Lock()  # for the moment in which no garbage is collected


class HandlerThread(threading.Thread):
    """A thread that runs one transaction after another. It is a daemon: a program can end although one still runs."""

    runs_handlers = True
    """For `lifetime.leave`, which waits for it for a moment all the same."""

    def __init__(self) -> None:
        super().__init__(name=THREAD_NAME, daemon=True)
        self._jobs = SimpleQueue[Callable[[], None] | None]()

    def put(self, job: Callable[[], None] | None) -> None:
        """Have it do this next; None: end after that."""
        self._jobs.put(job)

    def run(self) -> None:
        """Run the jobs of the queue, in order."""
        while (job := self._jobs.get()) is not None:
            job()
            del job  # it would keep the session of the last transaction


class _GivenUp(Exception):
    """A transaction was given up while its thread ran, so that it must not commit."""


class FencedRun(Generic[T]):
    """One transaction in a thread, with a fence: once the event loop has given it up, it cannot commit any more.

    Attributes:
        done: its ending, for the event loop.
        has_ended: whether the thread has left it.
    """

    def __init__(self, work: Callable[[Session], T], sessions: sessionmaker[Session]) -> None:
        self._work, self._sessions = work, sessions
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[RunEnding[T]] = self.loop.create_future()
        self.has_ended = False
        self._lock = threading.Lock()
        self._driver: Any = None
        self._limited: object = None
        self._refusal: BaseException | None = None
        self._commits = self._cut = False
        self._timer: asyncio.TimerHandle | None = None

    def transact(self) -> RunEnding[T]:
        """Run the work and commit, in the thread. Its ending is the result, or the error that prevented the commit."""
        try:
            with self._sessions() as session:
                session.info[LIMIT_OF_THREAD] = self._limit
                driver = None
                try:
                    session.begin()
                    driver = session.connection().connection.driver_connection
                    self._step(driver)
                    result = self._work(session)
                    self._step(None, commits=True)
                    session.commit()
                except BaseException:
                    self._let_go(driver)  # before the pool may give the connection to another one
                    with suppress(Exception):
                        session.rollback()  # not only closed: what it has inserted is new again
                    raise
        except BaseException as error:  # noqa: BLE001 - raised again in the event loop
            return None, error
        return result, None

    def _let_go(self, driver: Any) -> None:
        """Keep `_hang_up` from the connection. If its socket is shut, close it, so that no pool keeps it."""
        with self._lock:
            self._driver = None
        if self._cut:
            with suppress(Exception):
                driver.close()

    def _step(self, driver: Any, *, commits: bool = False) -> None:
        """Go on unless it was given up, with this connection for `_hang_up`."""
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            self._driver, self._commits = driver, commits

    @contextmanager
    def _limit(self, handler: Handler, _: Connection) -> Iterator[None]:
        """Give it up if the block, in the thread, takes longer than the handler's timeout.

        A statement that runs in the database, or is begun later, gets an error.
        """
        if handler.timeout is None:
            yield
            return
        seconds = handler.timeout.total_seconds()
        text = f"handler {handler.name!r} took longer than {seconds:g} s"
        self._limited = token = object()
        self.loop.call_soon_threadsafe(self._arm, token, seconds, text)
        try:
            yield
        finally:
            with self._lock:
                self._limited = None
            if self._refusal is not None:
                raise TimeoutError(f"{text} and was cancelled")

    def _arm(self, token: object, seconds: float, text: str) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, self._expire, token, text)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def end(self, ending: RunEnding[T]) -> None:
        """Note that the thread has left it, and its ending unless it was given up. In the event loop."""
        self._disarm()
        self.has_ended = True
        if not self.done.done():
            self.done.set_result(ending)

    def _expire(self, token: object, text: str) -> None:
        if self._refusal is not None:  # `_hang_up` may have the lock, for seconds
            return
        with self._lock:
            if self._limited is not token:
                return
            self._refusal = TimeoutError(text)
        self._hang_up_soon()
        self._timer = self.loop.call_later(GRACE_SECONDS, self._leave, text)

    def _leave(self, text: str) -> None:
        if not self.done.done():
            self.done.set_result((None, TimeoutError(f"{text}; its thread still runs, and can commit nothing")))

    def give_up(self) -> None:
        """Keep it from committing, unless it does already, and end its connection."""
        if self._refusal is None:
            with self._lock:
                if self._commits:
                    return
                self._refusal = _GivenUp()
            self._hang_up_soon()

    def _hang_up_soon(self) -> None:
        with suppress(RuntimeError):  # no thread can be started
            threading.Thread(target=self._hang_up, name="outboxkit cancels").start()

    def _hang_up(self) -> None:
        """Cancel the running statement, then close the connection's socket: the server rolls back at once.

        It has the lock meanwhile, so that the connection serves no other transaction.
        """
        with self._lock:
            if self._driver is None:
                return
            with suppress(Exception):
                _cancel(self._driver)
            if hasattr(self._driver, "fileno"):
                self._cut = True
                with suppress(Exception):
                    _shut(self._driver)


class Threads:
    """The threads for handlers, and their sessions.

    Args:
        engine: a synchronous engine is made beside it when one is needed.
        size: the number of threads and connections that are kept for later.

    Attributes:
        own: a synchronous engine to use instead of one that is made.
    """

    def __init__(self, engine: AsyncEngine, *, size: int, process: str, own: Engine | None = None) -> None:
        self.own = own
        self._engine, self._size = engine, size
        self._made: Engine | None = None
        self._sessions: sessionmaker[Session] | None = None
        self._making, self._fewer = asyncio.Lock(), asyncio.Event()
        self._threads, self.left, self._idle = set[HandlerThread](), set[HandlerThread](), list[HandlerThread]()
        self._log = structlog.get_logger("outboxkit").bind(process=process)

    async def open(self) -> sessionmaker[Session]:
        """Make the engine, unless that was done.

        Raises:
            ConfigurationError: none can be made beside the asynchronous one.
        """
        async with self._making:
            if self._sessions is None:
                engine = self.own
                if engine is None:
                    engine = self._made = await engines.beside(self._engine, pool_size=self._size)
                # A task that a handler left behind must not use its session: it would keep a connection for ever.
                self._sessions = sessionmaker(
                    engine, class_=HandlerSession, expire_on_commit=False, close_resets_only=False
                )
            return self._sessions

    def close(self) -> None:
        """End the threads, each after its transaction, and close the connections that are not in use."""
        for thread in self._threads:
            thread.put(None)
        self._threads.clear()
        self._idle.clear()
        self._sessions = None
        if self._made is not None:
            self._made.dispose()
            self._made = None

    async def run(self, work: Callable[[Session], T]) -> T:
        """The result of the work, once a thread has committed it. After a cancellation it cannot commit any more.

        Raises:
            Exception: the work's own error.
            TimeoutError: a handler took longer than its timeout.
            ConfigurationError, sqlalchemy.exc.DBAPIError: as `open`.
        """
        run = FencedRun(work, self._sessions or await self.open())
        await self._have_room()
        thread = self._idle.pop() if self._idle else self._start()
        thread.put(partial(self._transact, copy_context(), run, thread))
        try:
            result, error = await run.done
        except asyncio.CancelledError:
            run.give_up()
            if not run.has_ended:
                self.left.add(thread)
            raise
        if not run.has_ended:
            self._leave(thread, error)
        if error is not None:
            raise error
        return cast("T", result)

    async def _have_room(self) -> None:
        while len(self.left) >= MOST_LEFT:
            self._log.error("too many handlers' threads do not end, so no other starts: restart this process")
            self._fewer.clear()
            await self._fewer.wait()

    def _start(self) -> HandlerThread:
        thread = HandlerThread()
        thread.start()
        self._threads.add(thread)
        return thread

    def _transact(self, context: Context, run: FencedRun[Any], thread: HandlerThread) -> None:
        ending = context.run(run.transact)
        with suppress(RuntimeError):  # the event loop is closed
            run.loop.call_soon_threadsafe(self._ended, run, thread, ending)

    def _ended(self, run: FencedRun[Any], thread: HandlerThread, ending: RunEnding[Any]) -> None:
        """Take the ending, in the event loop, unless the transaction was given up."""
        run.end(ending)
        if thread in self.left:
            self.left.discard(thread)
            self._fewer.set()
            self._log.info("a handler's thread that was left behind has ended", left=len(self.left))
        if thread in self._threads:
            if len(self._idle) < self._size:
                self._idle.append(thread)
            else:
                self._threads.discard(thread)
                thread.put(None)

    def _leave(self, thread: HandlerThread, error: BaseException | None) -> None:
        """Leave a thread behind whose handler went on after its timeout."""
        self.left.add(thread)
        frame = frame_of(thread.ident or 0)
        if frame is not None and error is not None:
            error.add_note("".join(["It is at:\n", *traceback.format_stack(frame, limit=STACK)]))
        self._log.warning(
            "a handler's thread went on after its timeout and is left behind", left=len(self.left), cure=THREAD_CURE
        )


def frame_of(thread: int) -> FrameType | None:
    """The frame that a thread runs just now. The thread is given by its ident.

    No garbage is collected meanwhile. Before Python 3.12 a collection at that moment could stop the process for ever:
    https://github.com/python/cpython/issues/106883.
    """
    with _looking:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames().get(thread)  # noqa: SLF001 - the documented way
        finally:
            if collects:
                gc.enable()


def _cancel(driver: Any) -> None:
    if hasattr(driver, "cancel_safe"):  # psycopg
        driver.cancel_safe(timeout=CANCEL_SECONDS)
    elif hasattr(driver, "interrupt"):  # sqlite3
        driver.interrupt()
    else:  # psycopg2
        driver.cancel()


def _shut(driver: Any) -> None:
    """Shut the connection's socket. The driver's own `close` would free what its thread still uses."""
    with socket.socket(fileno=os.dup(driver.fileno())) as wire:
        if not driver.closed:  # now it cannot be another socket that has got the number meanwhile
            wire.shutdown(socket.SHUT_RDWR)
