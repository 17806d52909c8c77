"""The outside world of a handler: requests, mails, files, programs and connections, recorded while they really happen.

Python's audit events tell of files, programs and sockets, whatever library uses them. Requests and mails are recorded
by the methods that send them, because one connection may carry many.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from threading import Thread
from typing import Any, Self

from sqlalchemy import URL

from outboxkit.http.request import SAFE
from outboxkit.testing import files
from outboxkit.testing.differences import State, Values
from outboxkit.testing.memory import Memory
from outboxkit.testing.sending import MAILS, REQUESTS, Answers, patched

FILES, PROGRAMS = "files written", "programs started"
CONNECTIONS, WATCHED = "connections opened", "what is watched"
OUTSIDE = frozenset((REQUESTS, MAILS, FILES, PROGRAMS, CONNECTIONS, WATCHED))
"""The names under which these are compared, beside those of tables."""
REPEATABLE = frozenset(("PUT", "DELETE"))
"""Methods whose repetition changes nothing more (RFC 9110, section 9.2.2)."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A stretch of a delivery that is recorded."""

    recorder: "Recorder"
    after_commit: bool
    peers: set[str] = field(default_factory=set)


_span: ContextVar[_Span | None] = ContextVar("outboxkit_testing_span", default=None)
_inside: ContextVar[bool] = ContextVar("outboxkit_testing_inside", default=False)
"""Whether a call that was recorded is being made: what it consists of is not recorded again."""


class Recorder:
    """Records what is done outside the database, and in the memory of the handler's modules. It is a context manager.

    Args:
        function: the handler's.
        database: the address of its database, whose connections do not count.
        watch: returns what is to be compared, too.
        answers: functions that answer instead of the outside world.

    Attributes:
        forgotten: the names of coroutines that were never awaited.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        database: URL,
        watch: Callable[[], object] | None = None,
        answers: Answers | None = None,
    ) -> None:
        self._answers = answers or {}
        self._memory = Memory(function)
        self._database_port = str(database.port or 5432)
        self._watch = watch
        self._mark: object = None
        self._rows: dict[str, list[Values]] = {name: [] for name in OUTSIDE}
        self._files = files.Files()
        self._process = os.getpid()
        self._known_peers: set[str] = set()
        self._after_commit: list[str] = []
        self._threads: list[Thread] = []
        self.forgotten: list[str] = []

    def __enter__(self) -> Self:
        _audit()
        self._patches = patched(record_call, record_thread, record_peer, record_forgotten, self._answers)
        self._patches.__enter__()
        self.reset()
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.__exit__(None, None, None)

    @contextmanager
    def recording(self, *, after_commit: bool = False) -> Iterator[None]:
        """Record what this context does, and the tasks and threads that it starts."""
        token = _span.set(_Span(self, after_commit))
        try:
            yield
        finally:
            _span.reset(token)

    def reset(self) -> None:
        """Forget what was recorded, and put back the files and the modules' variables."""
        for rows in self._rows.values():
            rows.clear()
        self._after_commit.clear()
        self._threads.clear()
        self.forgotten.clear()
        self._note_open_files()
        self._files.restore()
        self._memory.restore()
        self._mark = self._watched()

    def state(self) -> State:
        """The rows of all that was recorded. Repeated requests that are known to be harmless count once."""
        rows: dict[str, Sequence[Values]] = {name: list(rows) for name, rows in self._rows.items()}
        rows[REQUESTS] = list(_once_each(rows[REQUESTS]))
        self._note_open_files()
        rows[FILES] = self._files.rows()
        rows[WATCHED] = list(_new(self._mark, self._watched()))
        return {**rows, **self._memory.state()}

    def after_commit(self) -> str | None:
        """The first thing that was done after the commit."""
        return self._after_commit[0] if self._after_commit else None

    def running_threads(self) -> list[Thread]:
        """The threads that the handler has started, and that run."""
        return [thread for thread in self._threads if thread.is_alive()]

    def join_threads(self, seconds: float) -> None:
        """Wait for these threads, but not for ever."""
        deadline = time.monotonic() + seconds
        for thread in self.running_threads():
            thread.join(max(0.0, deadline - time.monotonic()))

    def add(self, span: _Span, table: str, row: Values) -> None:
        """Record one thing."""
        self._rows[table].append(row)
        if span.after_commit:
            self._after_commit.append(
                f"{table}: {', '.join(str(value) for value in row.values() if value is not None)}"
            )

    def connected(self, span: _Span, peer: str) -> None:
        """Record a connection, once for each span; not one that carries requests and mails."""
        is_database = peer.endswith((f":{self._database_port}", f"/.s.PGSQL.{self._database_port}"))
        if _inside.get():
            self._known_peers.add(peer)
        elif peer not in span.peers | self._known_peers and not is_database:
            span.peers.add(peer)
            self.add(span, CONNECTIONS, {"to": peer})

    def touched(self, span: _Span, path: str) -> None:
        """Record that a file or a folder is about to be written, renamed to or removed."""
        self._files.note(path)
        if span.after_commit:
            self._after_commit.append(f"{FILES}: {path}")

    def run(self, span: _Span, event: str, arguments: tuple[Any, ...]) -> None:
        """Record that a program starts, and refuse one that would replace the test's own process."""
        command = _command(arguments)
        self.add(span, PROGRAMS, {"command": command})
        if event == "os.exec" and os.getpid() == self._process:
            raise RuntimeError(f"the handler replaces its own process, which is the test's, by the program {command!r}")

    def started(self, thread: Thread) -> None:
        """Record a thread."""
        self._threads.append(thread)

    def _note_open_files(self) -> None:
        """Note the files that the handler's modules keep open: of a write to them no audit event tells."""
        for file in self._memory.open_files():
            with suppress(OSError, ValueError):  # a disk that is full, or a file that another thread closes
                file.flush()
            if (path := files.path_behind(file)) is not None:
                self._files.note(path)

    def _watched(self) -> object:
        value = self._watch() if self._watch is not None else None
        return list(value) if isinstance(value, list | tuple | set | frozenset) else value


@contextmanager
def record_call(table: str, row: Values | None) -> Iterator[None]:
    """Record a call, and make it without recording its parts; None: it is only a part."""
    span = _span.get()
    if span is None or _inside.get():
        yield
        return
    if row is not None and row.get("method") not in SAFE:
        span.recorder.add(span, table, row)
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def record_thread(thread: Thread) -> bool:
    """Record that the current context starts a thread; False if nothing is recorded here."""
    span = _span.get()
    if span is not None:
        span.recorder.started(thread)
    return span is not None


def record_forgotten(name: str) -> None:
    """Record that the current context has made a coroutine of this name, and never awaited it."""
    if (span := _span.get()) is not None:
        span.recorder.forgotten.append(name)


def record_peer(address: object) -> None:
    """Record that the current context speaks with this address."""
    span = _span.get()
    if span is None:
        return
    if isinstance(address, tuple) and len(address) >= 2:
        span.recorder.connected(span, f"{address[0]}:{address[1]}")
    elif isinstance(address, str | bytes) and address:
        name = os.fsdecode(address).replace("\0", "@")  # a name outside the file system begins with a zero
        if not name.startswith(files.NOT_FILES):  # such as /dev/log
            span.recorder.connected(span, name)


@cache
def _audit() -> None:
    """Begin to listen to Python's audit events, which has no end. It costs nothing while nothing is recorded."""
    sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    try:
        if event not in _EVENTS:
            return
        span = _span.get()
    except (LookupError, TypeError, AttributeError):  # the interpreter ends, and has taken the globals away
        return
    if span is None or (_inside.get() and event != "socket.connect"):
        return
    if event == "open" or event in files.PATHS:
        for path in files.written_paths(event, arguments):
            span.recorder.touched(span, path)
    elif event in _SOCKETS:
        record_peer(arguments[1])
    else:
        span.recorder.run(span, event, arguments)


_heard.__cantrace__ = True  # type: ignore[attr-defined]  # Python traces no audit hook without it: debuggers, coverage


_SOCKETS = ("socket.connect", "socket.sendto", "socket.sendmsg")
_PROGRAMS = ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec")
_EVENTS = frozenset(("open", *files.PATHS, *_SOCKETS, *_PROGRAMS))
"""Those of https://docs.python.org/3/library/audit_events.html that do something outside the process."""


def _command(arguments: tuple[Any, ...]) -> str:
    if len(arguments) >= 2 and isinstance(arguments[1], list | tuple):
        return " ".join(map(_readable, arguments[1]))
    return _readable(arguments[0]) if arguments else "a fork"


def _readable(value: object) -> str:
    return os.fsdecode(value) if isinstance(value, str | bytes | os.PathLike) else str(value)


def _once_each(rows: Sequence[Values]) -> Iterator[Values]:
    """Requests; those with one key, and PUT and DELETE of the same, once."""
    keys = set()
    for row in rows:
        key = (row["method"], row["url"], row["key"], None if row["key"] else row["body"])
        if row["key"] is None and row["method"] not in REPEATABLE:
            yield row
        elif key not in keys:
            keys.add(key)
            yield row


def _new(mark: object, value: object) -> Iterator[Values]:
    """The values that came since the mark."""
    if isinstance(value, list):
        before = len(mark) if isinstance(mark, list) else 0
        yield from ({"value": repr(each)} for each in value[before:])
    elif isinstance(value, int | float) and isinstance(mark, int | float):
        yield from ({"value": "one more"} for _ in range(round(value - mark)))
    elif value != mark:
        yield {"value": repr(value)}
