"""Deliveries of a message to a handler, in transactions whose end, pauses and failures a test decides.

A handler that is a plain function runs in a thread, with a `Session`. A coroutine function runs in an event loop of its
own, with an `AsyncSession`. Both are run by `inbox.run_once`, as in a consumer.
"""

import asyncio
import linecache
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import wraps
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any, Self

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outboxkit import inbox, tables
from outboxkit.database.sqlalchemy_asyncio import await_
from outboxkit.inbox import Handler, Outcome
from outboxkit.message import Message
from outboxkit.statements.dialects import is_server
from outboxkit.testing.database import Contents, TrialDatabase
from outboxkit.testing.outside import Recorder, is_application, profile

LEFT_BEHIND_SECONDS = 2.0
"""Tasks and threads that a handler left behind get so much time to have their effects."""
READING = ("SELECT", "SAVEPOINT", "RELEASE", "ROLLBACK TO")
FAILING = {
    True: "DO 'BEGIN RAISE EXCEPTION ''outboxkit.testing lets this statement fail'' USING ERRCODE = 40001; END'",
    False: "SELECT outboxkit_testing_lets_this_statement_fail",
}
"""Statements that fail: on a server with a serialization failure, as real ones do."""


class Ending(StrEnum):
    """The end of a delivery's transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    KILLED = "its connection is killed before the commit"
    CRASH = "its process ends between the commit and all that follows it"


class InjectedFailure(Exception):
    """Raised instead of a statement."""


class Crashed(BaseException):
    """Raised right after a commit, so that nothing of the process follows it."""


@dataclass(eq=False)
class Trial:
    """One delivery, and its course.

    Attributes:
        message: the message.
        ending: the end of its transaction.
        batch: further messages that are handled in its transaction.
        pause: the statement of the handler before which it waits for `release`, from 1; 0: none. The number after the
            last one is the commit.
        failure: the statement that fails; 0: none.
        fails_in_python: whether it fails before the database gets it, so that the transaction goes on.
        cancelled: the statement after which the next await of the handler is cancelled; 0: its first await.
        stale: rows that it reads until its first write or lock, instead of those that are there.
        statements: the number of statements of the handler.
        reads: the numbers of those that only read.
        outcome: the outcome, if it came that far.
        error: the error that ended it.
        failed_statement: the statement that was made to fail.
        left: descriptions of the tasks that the handler left behind.
    """

    message: Message
    ending: Ending = Ending.COMMIT
    batch: Sequence[Message] = ()
    pause: int = 0
    failure: int = 0
    fails_in_python: bool = False
    cancelled: int | None = None
    stale: Contents | None = None
    statements: int = 0
    reads: list[int] = field(default_factory=list)
    outcome: Outcome | None = None
    error: BaseException | None = None
    failed_statement: str | None = None
    left: list[str] = field(default_factory=list)
    backend: int | None = None
    run_by: Any = None
    is_ending: bool = False
    paused: "Future[None]" = field(default_factory=Future)
    released: "Future[None]" = field(default_factory=Future)
    ended: "Future[None]" = field(default_factory=Future)

    def release(self) -> None:
        """Let it go on after its pause."""
        if not self.released.done():
            self.released.set_result(None)


class Statements:
    """The statements of a handler: counted, paused before one of them, made to fail, or followed by a cancellation."""

    def __init__(self, delivery: Trial, connection: Connection, stale: list[str]) -> None:
        self._delivery = delivery
        self._connection = connection
        self._failing = FAILING[is_server(connection.dialect.name)]
        self._stale = stale
        self._is_first = True
        self._is_running = True
        self.count = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count the statements of the block; the first one is the inbox's."""
        listeners: dict[str, Any] = {
            "before_execute": self._before_locking,
            "before_cursor_execute": self._before,
            "after_cursor_execute": self._after,
        }
        for name, listener in listeners.items():
            event.listen(self._connection, name, listener, **({"retval": True} if listener == self._before else {}))
        try:
            yield
        finally:
            self._is_running = False
            for name, listener in listeners.items():
                event.remove(self._connection, name, listener)

    def _before(self, *arguments: Any) -> tuple[str, Any]:
        _, _, statement, parameters, context, _ = arguments
        if self._is_first:
            return statement, parameters
        if not statement.lstrip().upper().startswith(READING):
            self.end_stale()
        self.count += 1
        if statement.lstrip().upper().startswith("SELECT"):
            self._delivery.reads.append(self.count)
        self.pause_before(self.count)
        if self.count == self._delivery.failure:
            self._delivery.failed_statement = statement
            if self._delivery.fails_in_python:
                raise InjectedFailure("outboxkit.testing lets this statement fail")
            return self._failing, [()] if context.executemany else ()
        return statement, parameters

    def _after(self, *_: Any) -> None:
        self._is_first = False
        if self._delivery.cancelled and self._delivery.cancelled == self.count and self._connection.dialect.is_async:
            asyncio.get_running_loop().call_soon(self._cancel, asyncio.current_task())

    def _cancel(self, task: "asyncio.Task[Any] | None") -> None:
        if self._is_running and task is not None:
            task.cancel("outboxkit.testing cancels the handler")

    def _before_locking(self, _: Any, statement: Any, *__: Any) -> None:
        if getattr(statement, "_for_update_arg", None) is not None:
            self.end_stale()

    def end_stale(self) -> None:
        """Drop the stale copies of tables, so that it reads the current rows from now on."""
        tables, self._stale = self._stale, []
        if tables:
            cursor = self._connection.connection.cursor()
            for name in tables:
                cursor.execute(f"DROP TABLE temp.{name}")
            cursor.close()

    def pause_before(self, number: int) -> None:
        """Wait here, if the delivery is to."""
        delivery = self._delivery
        if number != delivery.pause or delivery.paused.done():
            return
        delivery.paused.set_result(None)
        if self._connection.dialect.is_async:
            await_(asyncio.wrap_future(delivery.released))
        else:
            delivery.released.result()


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that knows the timers which its application has set."""

    def __init__(self) -> None:
        super().__init__()
        self._timers: list[tuple[str, asyncio.TimerHandle]] = []

    def call_at(self, when: float, callback: Any, *arguments: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        """Set a timer."""
        handle = super().call_at(when, callback, *arguments, context=context)
        code = getattr(getattr(callback, "func", callback), "__code__", None)
        if code is not None and is_application(code.co_filename):
            self._timers.append((code.co_qualname, handle))
        return handle

    def timers(self) -> list[str]:
        """The functions that such timers will still call."""
        return [name for name, handle in self._timers if not handle.cancelled() and handle.when() > self.time()]


class Trials:
    """Runs deliveries on a database of a test. It is a context manager.

    Args:
        database: for the transactions.
        recorder: hears of what the handler does outside them.
        patience: seconds after which a delivery that does not end is given up.

    Attributes:
        title: the trial that is under way.
    """

    def __init__(self, database: TrialDatabase, recorder: Recorder, patience: float) -> None:
        self._database = database
        self._recorder = recorder
        self._patience = patience
        self._loop: _Loop | None = None
        self._loop_thread: Thread | None = None
        self._engine: Any = None
        self._async_engine: Any = None
        self._hangs = False
        self.title = "a single delivery"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._loop_thread is not None and not self._hangs:
            asyncio.run_coroutine_threadsafe(self._async_engine.dispose(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop_thread.join()
        if self._engine is not None:
            self._engine.dispose()

    def run(self, delivery: Trial, handler: Handler) -> Trial:
        """Run a delivery to its end."""
        return self.wait(self.start(delivery, handler), handler)

    def start(self, delivery: Trial, handler: Handler) -> Trial:
        """Begin a delivery, and return at once."""
        if handler.is_async:
            if self._loop is None:
                self._async_engine = self._database.async_engine()
                self._loop = _Loop()
                self._loop_thread = Thread(target=_run_loop, args=(self._loop,), name="outboxkit-trials", daemon=True)
                self._loop_thread.start()
            asyncio.run_coroutine_threadsafe(self._run_async(delivery, handler), self._loop)
        else:
            if self._engine is None:
                self._engine = self._database.sync_engine()
            work = (self._run_plain, delivery, handler)
            delivery.run_by = Thread(target=copy_context().run, args=work, name="outboxkit-trial", daemon=True)
            delivery.run_by.start()
        return delivery

    def wait(self, delivery: Trial, handler: Handler) -> Trial:
        """Wait for the end of a delivery.

        Raises:
            AssertionError: it does not end. The text has the trial, and the line at which the handler is.
        """
        try:
            delivery.ended.result(self._patience)
        except TimeoutError:
            self._hangs = True
            waits = "; it waits for a lock of the database" if self._database.is_waiting(delivery.backend) else ""
            place = self._place(delivery, handler)
            delivery.release()
            self._database.kill(delivery.backend)
            raise AssertionError(
                f"handler {handler.name!r} did not end within {self._patience:g} s in the trial {self.title!r}. "
                f"It is at {place}{waits}. Raise patience= if it needs longer"
            ) from None
        return delivery

    def wait_for_pause(self, delivery: Trial) -> bool:
        """Wait until a delivery is at its pause; False if it ended before, or waits for a lock."""
        return self._wait_until(delivery, delivery.paused)

    def wait_for_end_or_lock(self, delivery: Trial) -> bool:
        """Wait until a delivery has ended; False if it waits for a lock."""
        return self._wait_until(delivery, delivery.ended)

    def _wait_until(self, delivery: Trial, reached: "Future[None]") -> bool:
        for _ in range(round(self._patience / 0.005)):
            with suppress(TimeoutError):
                reached.result(0.005)
            if reached.done() or delivery.ended.done():
                return reached.done()
            if self._database.is_waiting(delivery.backend):
                return False
        return False

    def _place(self, delivery: Trial, handler: Handler) -> str:
        """The line of the handler's file at which a delivery is, or the innermost one."""
        frames: list[FrameType] = []
        task = delivery.run_by
        while isinstance(task, asyncio.Task):
            awaited: Any = task.get_coro()
            while (frame := getattr(awaited, "cr_frame", None)) is not None:
                frames.append(frame)
                awaited = awaited.cr_await
            task = getattr(task, "_fut_waiter", None)  # the handler's own task
        thread = self._loop_thread if isinstance(delivery.run_by, asyncio.Task) else delivery.run_by
        inner = sys._current_frames().get(thread.ident or 0) if thread is not None else None  # noqa: SLF001
        stack: list[FrameType] = []
        while inner is not None:
            stack.insert(0, inner)
            inner = inner.f_back
        frames = [*frames, *stack] if not isinstance(delivery.run_by, asyncio.Task) else [*stack, *frames]
        own = handler.function.__code__.co_filename
        place = next((each for each in reversed(frames) if each.f_code.co_filename == own), frames[-1])
        file, number = place.f_code.co_filename, place.f_lineno
        return f"{Path(file).name}:{number}: {linecache.getline(file, number).strip()}"

    def _run_plain(self, delivery: Trial, handler: Handler) -> None:
        sys.setprofile(profile)
        try:
            with Session(self._engine, expire_on_commit=False) as session:
                self._work(session, delivery, handler)
        except BaseException as error:  # noqa: BLE001 - the delivery tells
            delivery.error = delivery.error or error
        finally:
            sys.setprofile(None)
            self._join_threads()
            delivery.ended.set_result(None)

    async def _run_async(self, delivery: Trial, handler: Handler) -> None:
        delivery.run_by, before = asyncio.current_task(), asyncio.all_tasks()
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
            await asyncio.to_thread(self._join_threads)
            delivery.ended.set_result(None)

    def _join_threads(self) -> None:
        for thread in self._recorder.running():
            thread.join(LEFT_BEHIND_SECONDS)

    def _work(self, session: Session, delivery: Trial, handler: Handler) -> None:
        """The delivery in its transaction."""
        session.begin()
        connection = session.connection(bind_arguments={"clause": tables.inbox})
        delivery.backend = self._database.backend(connection)
        before = _running_tasks(connection)
        stale = self._database.shadow(connection, delivery.stale) if delivery.stale is not None else []
        statements = Statements(delivery, connection, stale)
        event.listen(session, "after_commit", lambda _: self._crash(delivery))
        try:
            with self._recorder.recording(connection, delivery.message.id), statements.watched():
                delivery.outcome = _handle(session, delivery, handler)
                delivery.left = self._left_behind(connection, before)
            delivery.statements = statements.count
            statements.end_stale()
            statements.pause_before(statements.count + 1)
            delivery.is_ending = True
            with self._recorder.recording(connection, delivery.message.id, after_commit=True):
                self._end(session, delivery)
        except Crashed:
            session.invalidate()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a consumer survives it, too
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
        left += (
            [f"the timer of {name}" for name in self._loop.timers()]
            if connection.dialect.is_async and self._loop
            else []
        )
        return left + [f"the thread {thread.name}" for thread in self._recorder.running()]


def _handle(session: Session, delivery: Trial, handler: Handler) -> inbox.Outcome:
    if delivery.cancelled == 0:
        handler = replace(handler, function=_cancelling(handler.function))
    if not delivery.batch:
        return inbox.run_once(session, delivery.message, handler)
    entries = [inbox.Entry.of(message, handler) for message in (delivery.message, *delivery.batch)]
    return inbox.run_batch(session, entries)[0]


def _cancelling(function: Any) -> Any:
    """The handler's function, whose first await is cancelled."""

    @wraps(function)
    async def run(*arguments: Any, **options: Any) -> Any:
        if (task := asyncio.current_task()) is not None:
            asyncio.get_running_loop().call_soon(task.cancel)
        return await function(*arguments, **options)

    return run


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    sys.setprofile(profile)
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
