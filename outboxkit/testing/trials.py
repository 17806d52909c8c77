"""Deliveries of a message to a handler, in transactions whose end, pauses and failures a test decides.

A handler that is a plain function runs in a thread, with a `Session`. A coroutine function runs in an event loop of its
own, with an `AsyncSession`. Both are run by `inbox.run_once`, as in a consumer.
"""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import wraps
from inspect import unwrap
from pathlib import Path
from threading import Thread
from types import coroutine
from typing import Any, Self

from sqlalchemy import Connection, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outboxkit import ids, inbox, tables
from outboxkit.consumer.threads import frame_of
from outboxkit.database.sqlalchemy_asyncio import await_
from outboxkit.inbox import Handler
from outboxkit.message import Message
from outboxkit.testing.database import Contents, TrialDatabase
from outboxkit.testing.differences import Changes, changes, fits_any
from outboxkit.testing.memory import Memory
from outboxkit.testing.messages import message_of
from outboxkit.testing.outside import Recorder, frames, is_application, only_reads, source_line

ATTEMPTS = 5
PATIENCE = 60.0
"""Seconds after which a delivery that does not end is given up."""
LEFT_BEHIND_SECONDS = 2.0
"""Threads that a handler left behind get so much time to have their effects, before the rows are put back."""


class Ending(StrEnum):
    """The end of a delivery's transaction."""

    COMMIT = "commit"
    ROLLBACK = "a rollback"
    KILLED = "a connection lost before the commit"


@dataclass(eq=False)
class Trial:
    """One delivery, and its course. Statements and suspensions are numbered from 1; 0 is none of them.

    Attributes:
        batch: further messages that are handled in its transaction.
        pauses: whether it waits for `released` before its commit.
        failure: the statement that fails.
        cancelled: the suspension at which the handler is cancelled: it awaits something that is not there yet.
        stale: rows that it reads until its first write or lock, instead of those that are there: of `shadowed` tables.
        statements: how many it has executed, without the inbox's.
        left: the tasks, timers and threads that the handler left behind.
    """

    message: Message
    ending: Ending = Ending.COMMIT
    batch: Sequence[Message] = ()
    pauses: bool = False
    failure: int = 0
    cancelled: int = 0
    stale: Contents | None = None
    statements: int = -1
    suspensions: int = 0
    error: BaseException | None = None
    failed_statement: str | None = None
    left: list[str] = field(default_factory=list)
    backend: int | None = None
    thread: Thread | None = None
    coroutine: Any = None
    shadowed: list[str] = field(default_factory=list)
    paused: "Future[None]" = field(default_factory=Future)
    released: "Future[None]" = field(default_factory=Future)
    ended: "Future[None]" = field(default_factory=Future)

    def hear(self, connection: Connection, _: Any, statement: str, parameters: Any, context: Any, __: Any) -> None:
        """Count a statement before it is executed, or let it fail. The first one is the inbox's."""
        self.statements += 1
        if self.statements == 0:
            return
        locks = getattr(getattr(context.compiled, "statement", None), "_for_update_arg", None)
        if locks is not None or not only_reads(statement):
            self.end_stale(connection)
        if self.statements == self.failure:
            self.failed_statement = statement
            raise OperationalError(statement, parameters, Exception("outboxkit.testing lets this statement fail"))

    def end_stale(self, connection: Connection) -> None:
        """Drop the stale copies of tables, so that it reads the current rows from now on."""
        while self.shadowed:
            connection.connection.cursor().execute(f"DROP TABLE temp.{self.shadowed.pop()}")

    def pause(self, connection: Connection) -> None:
        """Wait here, if the delivery is to."""
        if self.pauses:
            self.paused.set_result(None)
            if connection.dialect.is_async:
                await_(asyncio.wrap_future(self.released))
            else:
                self.released.result()


class Trials:
    """A handler, and deliveries to it that begin with the same rows. It is a context manager, and puts the rows back.

    The arguments are those of `assert_effects_once`.

    Attributes:
        single: one delivery; its statements are counted.
        expected: the changes by one delivery.
        varied: the columns whose values differ between two single deliveries.
        has_effects: whether one delivery changes anything, or acts outside.
    """

    single: Trial

    def __init__(
        self,
        database: TrialDatabase,
        handler: Handler,
        event: object,
        others: Collection[object] = (),
        *,
        ignore: Collection[str] = (),
        outside: Collection[str] = (),
        watch: Callable[[], object] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.database, self.handler, self.others = database, handler, others
        self._before = database.state()
        self.recorder = Recorder(unwrap(handler.function).__code__, (outside,) if isinstance(outside, str) else outside)
        self._event, self._watch, self._patience = event, watch, patience
        self._ignore = (ignore,) if isinstance(ignore, str) else ignore
        given = {getattr(kind, "__name__", repr(kind)): resource for kind, resource in handler.resources.items()}
        self._memory = Memory(handler.function, given | dict(handler.values))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine = database.sync_engine()
        self._hangs = False
        self.title = "an order of events"
        self.expected: Changes = {}
        self.varied: dict[str, set[str]] = {}
        self.has_effects = False

    def __enter__(self) -> Self:
        self.recorder.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._loop is not None and not self._hangs:
                self._loop.call_soon_threadsafe(self._stop.set)
                self._loop_thread.join()
            end = time.monotonic() + LEFT_BEHIND_SECONDS
            while self.recorder.left() and time.monotonic() < end:
                time.sleep(0.005)
            self._engine.dispose()
            self.database.restore(numbers=True)
        finally:
            self.recorder.__exit__()

    def message(self, event: object | None = None) -> Message:
        """A new message with the event."""
        content = self._event if event is None else event
        return replace(content, id=ids.new()) if isinstance(content, Message) else message_of(content)

    def changes(self, *, all_of_them: bool = False) -> Changes:
        """The changes since the start: those that are compared, or all of them."""
        return changes(self._before, self.database.state(), () if all_of_them else self._ignore)

    def remembered(self) -> dict[str, str]:
        """The variables that the handler reaches, and what is watched; files that it keeps open are written."""
        for file in self._memory.open_files():
            with suppress(OSError, ValueError):  # a disk that is full, or a file that another thread closes
                file.flush()
                if isinstance(path := getattr(file, "name", None), str) and Path(path).is_file():
                    self.recorder.note(os.path.realpath(path))
        values = self._memory.state() | ({"what is watched": repr(self._watch())} if self._watch else {})
        return {name: value for name, value in values.items() if not fits_any(name, self._ignore)}

    def deliver_until_handled(self, message: Message) -> Trial:
        """Deliver a message until no error ends it, as a consumer does. The last trial may have failed, too."""
        for _ in range(ATTEMPTS - 1):
            if (trial := self.deliver(message)).error is None:
                return trial
        return self.deliver(message)

    def deliver(self, message: Message, **options: Any) -> Trial:
        """Deliver a message, to the end."""
        return self.wait(self.begin(message, **options))

    def begin(self, message: Message, *, handler: Handler | None = None, **options: Any) -> Trial:
        """Begin a delivery with options of `Trial`, and return at once."""
        trial, handler = Trial(message, **options), handler or self.handler
        if handler.is_async:
            if self._loop is None:
                ready: Future[asyncio.AbstractEventLoop] = Future()
                self._loop_thread = Thread(target=self._run_loop, args=(ready,), name="outboxkit-trials", daemon=True)
                self._loop_thread.start()
                self._loop = ready.result()
            trial.thread = self._loop_thread
            asyncio.run_coroutine_threadsafe(self._run_async(trial, handler), self._loop)
        else:
            work = (self._run_plain, trial, handler)
            trial.thread = Thread(target=copy_context().run, args=work, name="outboxkit-trial", daemon=True)
            trial.thread.start()
        return trial

    def _run_loop(self, ready: "Future[asyncio.AbstractEventLoop]") -> None:
        with asyncio.Runner(
            loop_factory=asyncio.SelectorEventLoop
        ) as runner:  # its transports send on sockets of Python
            runner.run(self._serve(ready))

    async def _serve(self, ready: "Future[asyncio.AbstractEventLoop]") -> None:
        self._async_engine, self._stop = self.database.async_engine(), asyncio.Event()
        ready.set_result(asyncio.get_running_loop())
        await self._stop.wait()
        await self._async_engine.dispose()

    def wait(self, trial: Trial) -> Trial:
        """Wait for the end of a delivery.

        Raises:
            AssertionError: it does not end. The text has the trial, and the line at which the handler is.
        """
        with suppress(TimeoutError):
            trial.ended.result(self._patience)
            return trial
        self._hangs = True
        waits = "; it waits for a lock of the database" if self.database.is_waiting(trial.backend) else ""
        place = self._place(trial)
        if not trial.released.done():
            trial.released.set_result(None)
        self.database.kill(trial.backend)
        raise AssertionError(
            f"handler {self.handler.name!r} did not end within {self._patience:g} s in the trial {self.title!r}. "
            f"It is at {place}{waits}. Raise patience= if it needs longer"
        )

    def wait_for(self, trial: Trial, reached: "Future[None]") -> None:
        """Wait until a delivery is at its pause or its end; or waits for a lock."""
        for _ in range(round(self._patience / 0.005)):
            with suppress(TimeoutError):
                reached.result(0.005)
            if reached.done() or trial.ended.done() or self.database.is_waiting(trial.backend):
                return

    def _place(self, trial: Trial) -> str:
        """The line of the handler's file at which a delivery is, or the innermost one of its thread."""
        stack = list(frames(frame_of((trial.thread and trial.thread.ident) or 0)))
        if (awaits := getattr(trial.coroutine, "cr_frame", None)) is not None:
            stack.append(awaits)
        own = (each for each in stack if each.f_code.co_filename == self.recorder.code.co_filename)
        return source_line(next(own, stack[0]))

    def _run_plain(self, trial: Trial, handler: Handler) -> None:
        try:
            with Session(self._engine, expire_on_commit=False) as session:
                self._work(session, trial, handler)
        except BaseException as error:  # noqa: BLE001 - the delivery tells
            trial.error = trial.error or error
        finally:
            trial.ended.set_result(None)

    async def _run_async(self, trial: Trial, handler: Handler) -> None:
        try:
            async with AsyncSession(self._async_engine, expire_on_commit=False) as session:
                await session.run_sync(self._work, trial, handler)
        except BaseException as error:  # noqa: BLE001 - the delivery tells
            trial.error = trial.error or error
        finally:
            trial.ended.set_result(None)

    def _work(self, session: Session, trial: Trial, handler: Handler) -> None:
        """The delivery in its transaction."""
        session.begin()
        connection = session.connection(bind_arguments={"clause": tables.inbox})
        trial.backend = self.database.backend(connection)
        if trial.stale is not None:
            trial.shadowed = self.database.shadow(connection, trial.stale)
        event.listen(connection, "before_cursor_execute", trial.hear)
        try:
            # A call that is cut off by a cancellation is no effect of the handler's own.
            recording = nullcontext() if trial.cancelled else self.recorder.recording(connection, trial.message.id)
            with recording:
                _handle(session, trial, handler)
                trial.left = [*_running(connection), *self.recorder.left()]
            event.remove(connection, "before_cursor_execute", trial.hear)
            trial.end_stale(connection)
            trial.pause(connection)
            with self.recorder.recording(connection, trial.message.id, after_commit=True):
                match trial.ending:
                    case Ending.COMMIT:
                        session.commit()
                    case Ending.ROLLBACK:
                        session.rollback()
                    case Ending.KILLED:
                        self.database.kill(trial.backend)
                        session.invalidate()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a consumer survives it, too
            trial.error = error
            with suppress(Exception):
                session.rollback()


def _handle(session: Session, trial: Trial, handler: Handler) -> None:
    if handler.is_async:
        handler = replace(handler, function=_suspending(handler.function, trial))
    if trial.batch:
        inbox.run_batch(session, [inbox.Entry.of(message, handler) for message in (trial.message, *trial.batch)])
    else:
        inbox.run_once(session, trial.message, handler)


def _suspending(function: Any, trial: Trial) -> Any:
    """The handler's function, whose suspensions are counted; at one of them its task is cancelled."""

    @wraps(function)
    async def run(*arguments: Any, **options: Any) -> Any:
        trial.coroutine = function(*arguments, **options)
        return await _passed_on(trial.coroutine, trial)

    return run


@coroutine
def _passed_on(awaited: Any, trial: Trial) -> Generator[Any, Any, Any]:
    """Pass on what a coroutine awaits.

    Suspensions in a statement do not count: a cancelled one fails the transaction, and an SQLite file stays locked.
    """
    resume, value = awaited.send, None
    while True:
        try:
            future = resume(value)
        except StopIteration as end:
            return end.value
        if not _is_in_statement(awaited):
            trial.suspensions += 1
            if trial.suspensions == trial.cancelled and (task := asyncio.current_task()) is not None:
                task.cancel("outboxkit.testing cancels the handler")
        try:
            resume, value = awaited.send, (yield future)
        except BaseException as error:  # noqa: BLE001 - it is the coroutine's
            resume, value = awaited.throw, error


def _is_in_statement(awaited: Any) -> bool:
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        if frame.f_globals.get("__name__", "").startswith("sqlalchemy."):
            return True
        awaited = awaited.cr_await
    return False


def _running(connection: Connection) -> list[str]:
    """The tasks of an application, and the timers that it has set, of the running event loop."""
    if not connection.dialect.is_async:
        return []
    found = [f"the task {_name(task)}" for task in asyncio.all_tasks() if _is_handlers(task)]
    for timer in getattr(asyncio.get_running_loop(), "_scheduled", ()):
        code = getattr(getattr(timer._callback, "func", timer._callback), "__code__", None)  # noqa: SLF001
        if code is not None and is_application(code.co_filename) and not timer.cancelled():
            found.append(f"the timer of {code.co_qualname}")
    return found


def _is_handlers(task: "asyncio.Task[Any]") -> bool:
    """Whether it is not one of the trials' own deliveries."""
    return not _name(task).startswith(Trials.__name__)


def _name(task: "asyncio.Task[Any]") -> str:
    running = task.get_coro()
    return str(getattr(running, "__qualname__", task.get_name()))
