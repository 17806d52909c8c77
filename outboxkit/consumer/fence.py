"""A transaction in a thread, with a fence: once the event loop has given it up, it cannot commit any more."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection
from sqlalchemy.orm import Session, sessionmaker

from outboxkit.inbox.handlers import Handler
from outboxkit.inbox.run_once import LIMIT_OF_THREAD

T = TypeVar("T")
RunEnding = tuple[T | None, BaseException | None]
"""The result of a transaction, or its error."""

CANCEL_SECONDS = 2.0
"""The limit for the request that cancels a statement."""
GRACE_SECONDS = 3.0
"""The time that a thread has to end after its handler's timeout, before it is left behind."""


class _GivenUp(Exception):
    """A transaction was given up while its thread ran, so that it must not commit."""


class FencedRun(Generic[T]):
    """One transaction in a thread.

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
