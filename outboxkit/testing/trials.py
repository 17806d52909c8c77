"""Deliveries of a message to a handler, in transactions whose end, and whose pauses, a test decides.

A handler that is a plain function runs in a thread, with a `Session`. A coroutine function runs in an event loop of its
own, with an `AsyncSession`. Both are run by `inbox.run_once`, as in a consumer.
"""

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import Any, Self

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outboxkit import inbox, tables
from outboxkit.inbox import Handler
from outboxkit.testing.database import TrialDatabase
from outboxkit.testing.outside import Recorder
from outboxkit.testing.trial import PATIENCE, Crashed, Ending, Statements, Trial

LEFT_BEHIND_SECONDS = 2.0
"""Tasks and threads that a handler left behind get so much time to have their effects."""


class Trials:
    """Runs deliveries on a database of a test. It is a context manager.

    Args:
        database: for the transactions.
        recorder: hears of what the handler does outside them.
    """

    def __init__(self, database: TrialDatabase, recorder: Recorder) -> None:
        self._database = database
        self._recorder = recorder
        self._threads = ThreadPoolExecutor(4, "outboxkit-trial")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: Thread | None = None
        self._engine: Any = None
        self._async_engine: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._loop_thread is not None:
            asyncio.run_coroutine_threadsafe(self._async_engine.dispose(), self._loop).result(PATIENCE)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop_thread.join()
        self._threads.shutdown()
        if self._engine is not None:
            self._engine.dispose()

    def run(self, delivery: Trial, handler: Handler) -> Trial:
        """Run a delivery to its end."""
        return self.wait(self.start(delivery, handler))

    def start(self, delivery: Trial, handler: Handler) -> Trial:
        """Begin a delivery, and return at once."""
        if handler.is_async:
            if self._async_engine is None:
                self._async_engine = self._database.async_engine()
            asyncio.run_coroutine_threadsafe(self._run_async(delivery, handler), self._running_loop())
        else:
            if self._engine is None:
                self._engine = self._database.sync_engine()
            self._threads.submit(copy_context().run, self._run_plain, delivery, handler)
        return delivery

    def wait(self, delivery: Trial) -> Trial:
        """Wait for the end of a delivery.

        Raises:
            AssertionError: it does not end.
        """
        try:
            delivery.ended.result(PATIENCE)
        except TimeoutError:
            self._database.kill(delivery.backend)
            raise AssertionError(
                f"the handler did not end within {PATIENCE:g} s: is it waiting for a lock? One of pg_advisory_lock "
                "outlives its transaction, and one of pg_advisory_xact_lock does not"
            ) from None
        return delivery

    def wait_for_pause(self, delivery: Trial) -> bool:
        """Wait until a delivery is at its pause; False if it ended before, or waits for a lock."""
        return self._wait_until(delivery, delivery.paused)

    def wait_for_end_or_lock(self, delivery: Trial) -> bool:
        """Wait until a delivery has ended; False if it waits for a lock."""
        return self._wait_until(delivery, delivery.ended)

    def _wait_until(self, delivery: Trial, reached: "Future[None]") -> bool:
        for _ in range(round(PATIENCE / 0.005)):
            with suppress(TimeoutError):
                reached.result(0.005)
            if reached.done() or delivery.ended.done():
                return reached.done()
            if self._database.is_waiting(delivery.backend):
                return False
        return False

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop_thread = Thread(target=_run_loop, args=(self._loop,), name="outboxkit-trials", daemon=True)
            self._loop_thread.start()
        return self._loop

    def _run_plain(self, delivery: Trial, handler: Handler) -> None:
        try:
            with Session(self._engine, expire_on_commit=False) as session:
                self._work(session, delivery, handler)
        except BaseException as error:  # noqa: BLE001 - the delivery tells
            delivery.error = delivery.error or error
        finally:
            self._recorder.join_threads(LEFT_BEHIND_SECONDS)
            delivery.ended.set_result(None)

    async def _run_async(self, delivery: Trial, handler: Handler) -> None:
        before = asyncio.all_tasks()
        try:
            async with AsyncSession(self._async_engine, expire_on_commit=False) as session:
                await session.run_sync(self._work, delivery, handler)
        except BaseException as error:  # noqa: BLE001 - the delivery tells
            delivery.error = delivery.error or error
        finally:
            left = {task for task in asyncio.all_tasks() - before if _is_handlers(task)}
            if left:
                await asyncio.wait(left, timeout=LEFT_BEHIND_SECONDS)
            for task in left:
                task.cancel()
            await asyncio.to_thread(self._recorder.join_threads, LEFT_BEHIND_SECONDS)
            delivery.ended.set_result(None)

    def _work(self, session: Session, delivery: Trial, handler: Handler) -> None:
        """The delivery in its transaction."""
        session.begin()
        connection = session.connection(bind_arguments={"clause": tables.inbox})
        delivery.backend = self._database.backend(connection)
        before = _running_tasks(connection)
        statements = Statements(delivery, connection)
        event.listen(session, "after_commit", lambda _: self._crash(delivery))
        try:
            if delivery.stale is not None:
                statements.stale = self._database.shadow(connection, delivery.stale)
            with self._recorder.recording(), statements.watched():
                delivery.outcome = _handle(session, delivery, handler)
                delivery.left = self._left_behind(connection, before)
            delivery.statements = statements.count
            statements.end_stale()
            statements.pause_before(statements.count + 1)
            delivery.is_ending = True
            with self._recorder.recording(after_commit=True):
                self._end(session, delivery)
        except Crashed:
            session.invalidate()
        except Exception as error:  # noqa: BLE001 - a consumer survives it, too
            delivery.error = error
            with suppress(Exception):
                session.rollback()

    def _end(self, session: Session, delivery: Trial) -> None:
        match delivery.ending:
            case Ending.COMMIT | Ending.CRASH:
                session.commit()
            case Ending.ROLLBACK:
                session.rollback()
            case Ending.KILLED:
                self._database.kill(delivery.backend)
                session.invalidate()

    def _crash(self, delivery: Trial) -> None:
        if delivery.ending is Ending.CRASH and delivery.is_ending:  # a savepoint's end calls it, too
            raise Crashed

    def _left_behind(self, connection: Connection, before: set["asyncio.Task[Any]"]) -> list[str]:
        tasks = [task for task in _running_tasks(connection) - before if _is_handlers(task)]
        left = [f"the task {_name(task)}" for task in tasks]
        return left + [f"the thread {thread.name}" for thread in self._recorder.running_threads()]


def _handle(session: Session, delivery: Trial, handler: Handler) -> inbox.Outcome:
    if not delivery.batch:
        return inbox.run_once(session, delivery.message, handler)
    entries = [inbox.Entry.of(message, handler) for message in (delivery.message, *delivery.batch)]
    return inbox.run_batch(session, entries)[0]


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def _running_tasks(connection: Connection) -> set["asyncio.Task[Any]"]:
    return asyncio.all_tasks() if connection.dialect.is_async else set()


def _is_handlers(task: "asyncio.Task[Any]") -> bool:
    """Whether it is not one of the trials' own deliveries."""
    return not _name(task).startswith(Trials.__name__)


def _name(task: "asyncio.Task[Any]") -> str:
    coroutine = task.get_coro()
    return str(getattr(coroutine, "__qualname__", task.get_name()))
