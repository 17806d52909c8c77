"""Deliveries of a message to a handler, in transactions whose end, pauses and failures a test decides.

A handler that is a plain function runs in a thread, with a `Session`. A coroutine function runs in an event loop of its
own, with an `AsyncSession`. Both are run by `inbox.run_once`, as in a consumer.
"""

import asyncio
import linecache
import sys
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import wraps
from inspect import unwrap
from pathlib import Path
from threading import Thread
from types import FrameType
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
from outboxkit.statements.dialects import is_server
from outboxkit.testing.database import Contents, TrialDatabase
from outboxkit.testing.differences import Changes, changes, fits_any
from outboxkit.testing.memory import Memory
from outboxkit.testing.messages import message_of
from outboxkit.testing.outside import Recorder, is_application, profile

ATTEMPTS = 5
PATIENCE = 60.0
"""Seconds after which a delivery that does not end is given up."""
LEFT_BEHIND_SECONDS = 2.0
"""Tasks and threads that a handler left behind get so much time to have their effects."""
READING = ("SELECT", "SAVEPOINT", "RELEASE", "ROLLBACK TO")


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
        pause: the statement of the handler before which it waits for `released`; the one after the last is the commit.
        cancelled: the suspension at which the handler is cancelled: it awaits something that is not there yet.
        stale: rows that it reads until its first write or lock, instead of those that are there.
        reads: the numbers of the statements that only read.
        left: the tasks, timers and threads that the handler left behind.
    """

    message: Message
    ending: Ending = Ending.COMMIT
    batch: Sequence[Message] = ()
    pause: int = 0
    failure: int = 0
    cancelled: int = 0
    stale: Contents | None = None
    statements: int = 0
    reads: list[int] = field(default_factory=list)
    suspensions: int = 0
    error: BaseException | None = None
    failed_statement: str | None = None
    left: list[str] = field(default_factory=list)
    backend: int | None = None
    run_by: Any = None
    paused: "Future[None]" = field(default_factory=Future)
    released: "Future[None]" = field(default_factory=Future)
    ended: "Future[None]" = field(default_factory=Future)


class _Statements:
    """The statements of a handler: counted, paused before one of them, or made to fail."""

    def __init__(self, trial: Trial, connection: Connection, stale: list[str]) -> None:
        self._trial = trial
        self._connection = connection
        self._stale = stale
        self._is_first = True

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count the statements of the block; the first one is the inbox's."""
        event.listen(self._connection, "before_cursor_execute", self._before)
        try:
            yield
        finally:
            event.remove(self._connection, "before_cursor_execute", self._before)

    def _before(self, _: Any, __: Any, statement: str, parameters: Any, context: Any, ___: Any) -> None:
        trial, text = self._trial, statement.lstrip().upper()
        if self._is_first:
            self._is_first = False
            return
        locks = getattr(getattr(context.compiled, "statement", None), "_for_update_arg", None)
        if locks is not None or not text.startswith(READING):
            self.end_stale()
        trial.statements += 1
        if text.startswith("SELECT"):
            trial.reads.append(trial.statements)
        self.pause_before(trial.statements)
        if trial.statements == trial.failure:
            trial.failed_statement = statement
            raise OperationalError(statement, parameters, Exception("outboxkit.testing lets this statement fail"))

    def end_stale(self) -> None:
        """Drop the stale copies of tables, so that it reads the current rows from now on."""
        tables, self._stale = self._stale, []
        for name in tables:
            self._connection.connection.cursor().execute(f"DROP TABLE temp.{name}")

    def pause_before(self, number: int) -> None:
        """Wait here, if the delivery is to."""
        trial = self._trial
        if number != trial.pause or trial.paused.done():
            return
        trial.paused.set_result(None)
        if self._connection.dialect.is_async:
            await_(asyncio.wrap_future(trial.released))
        else:
            trial.released.result()


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
        *,
        ignore: Collection[str] = (),
        outside: Collection[str] = (),
        watch: Callable[[], object] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        allowed = (outside,) if isinstance(outside, str) else outside
        self.database, self.handler = database, handler
        self.start = database.save()
        self.recorder = Recorder(getattr(unwrap(handler.function), "__code__", None), allowed)
        self._event, self._watch, self._patience = event, watch, patience
        self._ignore = (ignore,) if isinstance(ignore, str) else ignore
        self._memory = Memory(handler.function)
        self._before = database.state()
        self._loop: asyncio.SelectorEventLoop | None = None
        self._loop_thread: Thread | None = None
        self._engine: Any = None
        self._async_engine: Any = None
        self._hangs = False
        self.title = "an order of events"
        self.others: Collection[object] = ()
        self.expected: Changes = {}
        self.varied: dict[str, set[str]] = {}
        self.has_effects = False

    def __enter__(self) -> Self:
        self.recorder.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._loop is not None and self._loop_thread is not None and not self._hangs:
                asyncio.run_coroutine_threadsafe(self._async_engine.dispose(), self._loop).result()
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop_thread.join()
            if self._engine is not None:
                self._engine.dispose()
            self.reset()
        finally:
            self.recorder.__exit__()

    def reset(self) -> None:
        """Go back to the rows of the start."""
        self.database.restore(self.start)

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
                    self.recorder.note(str(Path(path).resolve()))
        values = self._memory.state() | ({"what is watched": repr(self._watch())} if self._watch else {})
        return {name: value for name, value in values.items() if not fits_any(name, self._ignore)}

    def settle(self, message: Message) -> Trial:
        """Deliver a message until no error ends it, as a consumer does; in vain after some attempts."""
        for _ in range(ATTEMPTS - 1):
            if (trial := self.deliver(message)).error is None:
                return trial
        return self.deliver(message)

    def deliver(
        self, message: Message, ending: Ending = Ending.COMMIT, *, handler: Handler | None = None, **options: Any
    ) -> Trial:
        """Deliver a message, to the end."""
        return self.wait(self.begin(message, ending, handler=handler, **options))

    def begin(
        self, message: Message, ending: Ending = Ending.COMMIT, *, handler: Handler | None = None, **options: Any
    ) -> Trial:
        """Begin a delivery, and return at once."""
        trial, handler = Trial(message, ending, **options), handler or self.handler
        if handler.is_async:
            if self._loop is None:
                self._async_engine = self.database.async_engine()
                self._loop = asyncio.SelectorEventLoop()
                self._loop_thread = Thread(target=_run_loop, args=(self._loop,), name="outboxkit-trials", daemon=True)
                self._loop_thread.start()
            asyncio.run_coroutine_threadsafe(self._run_async(trial, handler), self._loop)
        else:
            if self._engine is None:
                self._engine = self.database.sync_engine()
            work = (self._run_plain, trial, handler)
            trial.run_by = Thread(target=copy_context().run, args=work, name="outboxkit-trial", daemon=True)
            trial.run_by.start()
        return trial

    def wait(self, trial: Trial) -> Trial:
        """Wait for the end of a delivery.

        Raises:
            AssertionError: it does not end. The text has the trial, and the line at which the handler is.
        """
        try:
            trial.ended.result(self._patience)
        except TimeoutError:
            self._hangs = True
            waits = "; it waits for a lock of the database" if self.database.is_waiting(trial.backend) else ""
            place = self._place(trial)
            if not trial.released.done():
                trial.released.set_result(None)
            self.database.kill(trial.backend)
            raise AssertionError(
                f"handler {self.handler.name!r} did not end within {self._patience:g} s in the trial {self.title!r}. "
                f"It is at {place}{waits}. Raise patience= if it needs longer"
            ) from None
        return trial

    def wait_for(self, trial: Trial, reached: "Future[None]") -> None:
        """Wait until a delivery is at its pause or its end; or waits for a lock."""
        for _ in range(round(self._patience / 0.005)):
            with suppress(TimeoutError):
                reached.result(0.005)
            if reached.done() or trial.ended.done() or self.database.is_waiting(trial.backend):
                return

    def _place(self, trial: Trial) -> str:
        """The line of the handler's file at which a delivery is, or the innermost one."""
        is_task = isinstance(trial.run_by, asyncio.Task)
        thread = self._loop_thread if is_task else trial.run_by
        stack: list[FrameType] = []
        inner = frame_of(thread.ident or 0) if thread is not None else None
        while inner is not None:
            stack.insert(0, inner)
            inner = inner.f_back
        awaited: Any = trial.run_by.get_coro() if is_task else None
        while (frame := getattr(awaited, "cr_frame", None)) is not None:
            stack.append(frame)
            awaited = awaited.cr_await
        own = self.handler.function.__code__.co_filename
        place = next((each for each in reversed(stack) if each.f_code.co_filename == own), stack[-1])
        file, number = place.f_code.co_filename, place.f_lineno
        return f"{Path(file).name}:{number}: {linecache.getline(file, number).strip()}"

    def _run_plain(self, trial: Trial, handler: Handler) -> None:
        sys.setprofile(profile)
        try:
            with Session(self._engine, expire_on_commit=False) as session:
                self._work(session, trial, handler)
        except BaseException as error:  # noqa: BLE001 - the delivery tells
            trial.error = trial.error or error
        finally:
            sys.setprofile(None)
            self._join_threads()
            trial.ended.set_result(None)

    async def _run_async(self, trial: Trial, handler: Handler) -> None:
        trial.run_by, before = asyncio.current_task(), asyncio.all_tasks()
        try:
            async with AsyncSession(self._async_engine, expire_on_commit=False) as session:
                await session.run_sync(self._work, trial, handler)
        except BaseException as error:  # noqa: BLE001 - the delivery tells
            trial.error = trial.error or error
        finally:
            left = {task for task in asyncio.all_tasks() - before if _is_handlers(task)}
            if left:
                await asyncio.wait(left, timeout=LEFT_BEHIND_SECONDS)
            for task in left:
                task.cancel()
            await asyncio.to_thread(self._join_threads)
            trial.ended.set_result(None)

    def _join_threads(self) -> None:
        for thread in self.recorder.running():
            thread.join(LEFT_BEHIND_SECONDS)

    def _work(self, session: Session, trial: Trial, handler: Handler) -> None:
        """The delivery in its transaction."""
        session.begin()
        connection = session.connection(bind_arguments={"clause": tables.inbox})
        trial.backend = self.database.backend(connection)
        before = _running(connection)
        stale = self.database.shadow(connection, trial.stale) if trial.stale is not None else []
        statements = _Statements(trial, connection, stale)
        try:
            # A call that is cut off by a cancellation is no effect of the handler's own.
            recording = nullcontext() if trial.cancelled else self.recorder.recording(connection, trial.message.id)
            with recording, statements.watched():
                _handle(session, trial, handler)
                trial.left = [each for each in _running(connection) if each not in before]
                trial.left += [f"the thread {thread.name}" for thread in self.recorder.running()]
            statements.end_stale()
            statements.pause_before(trial.statements + 1)
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
        is_file = not is_server(session.get_bind().dialect.name)
        handler = replace(handler, function=_suspending(handler.function, trial, between_statements=is_file))
    if trial.batch:
        inbox.run_batch(session, [inbox.Entry.of(message, handler) for message in (trial.message, *trial.batch)])
    else:
        inbox.run_once(session, trial.message, handler)


def _suspending(function: Any, trial: Trial, *, between_statements: bool) -> Any:
    """The handler's function, whose suspensions are counted; at one of them its task is cancelled.

    A file stays locked if a statement is cancelled, so that only those between statements count there.
    """

    @wraps(function)
    async def run(*arguments: Any, **options: Any) -> Any:
        return await _Suspensions(function(*arguments, **options), trial, between_statements)

    return run


class _Suspensions:
    """A coroutine as an awaitable, which passes on what it awaits."""

    def __init__(self, coroutine: Any, trial: Trial, between_statements: bool) -> None:  # noqa: FBT001
        self._coroutine, self._trial, self._between = coroutine, trial, between_statements
        self._task: Any = asyncio.current_task()

    def __await__(self) -> Generator[Any, Any, Any]:
        resume, value = self._coroutine.send, None
        while True:
            try:
                future = resume(value)
            except StopIteration as end:
                return end.value
            counts = not (self._between and self._is_in_statement())
            self._trial.suspensions += counts
            if counts and self._trial.suspensions == self._trial.cancelled:
                self._task.cancel("outboxkit.testing cancels the handler")
            try:
                resume, value = self._coroutine.send, (yield future)
            except BaseException as error:  # noqa: BLE001 - it is the coroutine's
                resume, value = self._coroutine.throw, error

    def _is_in_statement(self) -> bool:
        awaited = self._coroutine
        while (frame := getattr(awaited, "cr_frame", None)) is not None:
            if frame.f_globals.get("__name__", "").startswith("sqlalchemy."):
                return True
            awaited = awaited.cr_await
        return False


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    sys.setprofile(profile)
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


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
    coroutine = task.get_coro()
    return str(getattr(coroutine, "__qualname__", task.get_name()))
