"""The effects of a handler outside of its session: recorded while they happen, and named by target and line.

Python's audit events tell of connections, files and programs. The methods that send on a socket tell the bytes. One
listener on the class `Engine` hears of statements on other connections. A profile function hears of what has no audit
event: threads that start, sends by methods that were bound before, and `connect` of database modules (PEP 249).
"""

import linecache
import os
import re
import socket
import ssl
import sys
import sysconfig
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from email import message_from_bytes
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import sqlalchemy
from sqlalchemy import Connection, Engine, event

import outboxkit.effects
from outboxkit.testing.differences import fits_any

REQUEST = "it sends a request without a key that is the same at each attempt"
SPEAKS, MAIL = "it speaks with another service", "it sends a mail"
STATEMENT = "it changes a database by another session or connection"
FILE, PROGRAM = "a retry changes files again", "it starts a program"
AFTER = "it acts after the end of its transaction; a crash between the two loses that"
READING = ("SELECT", "SAVEPOINT", "RELEASE", "ROLLBACK", "SHOW", "PRAGMA", "BEGIN", "EXPLAIN")
_WRITING = re.compile(r"\b(INSERT|UPDATE|DELETE|MERGE)\b")
KEY_HEADERS = ("idempotency-key", "x-idempotency-key", "webhook-id", "paypal-request-id", "ce-id")
"""Headers by which a receiver recognises a repetition."""
REPEATABLE = ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE")
"""Methods whose repetition changes nothing more (RFC 9110, section 9.2.2)."""
NOT_FILES = ("/dev/", "/proc/", "/sys/")
_PATHS = {"open": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.truncate": (0,), "os.mkdir": (0,),
          "os.rmdir": (0,), "os.link": (1,), "os.symlink": (1,)}  # fmt: skip
_PROGRAMS = ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec")
_SENDS = ("socket.connect", "socket.sendto", "socket.sendmsg")
_EVENTS = {"sqlite3.connect", "socket.bind", "socket.getaddrinfo", *_PATHS, *_PROGRAMS, *_SENDS}
"""Those of https://docs.python.org/3/library/audit_events.html that do something outside the process."""
_POOLS = ("concurrent.futures", "aiosqlite", "asyncio", "anyio", "sqlalchemy", "psycopg", "httpcore", "urllib3")
"""Modules whose threads wait for work, and do not go on by themselves."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EFFECTS, _SQL, _OWN = (
    f"{Path(str(module.__file__)).parent}{os.sep}" for module in (outboxkit.effects, sqlalchemy, outboxkit)
)
_LIBRARIES = (_OWN, "<", *{f"{sysconfig.get_path(each)}{os.sep}" for each in ("stdlib", "purelib", "platlib")})
_UNAWAITED: CodeType = warnings._warn_unawaited_coroutine.__code__  # type: ignore[attr-defined] # noqa: SLF001
"""Python calls this function for a coroutine that goes away and was never awaited."""
_RAW: CodeType = Engine.raw_connection.__code__
"""What is executed on the driver's own connection is not heard, such as a COPY."""
_LONGEST = 65536
_TLS = re.compile(rb"[\x14-\x17]\x03|$")
"""The beginning of what is sent in a TLS connection, or nothing."""
_HEAD = re.compile(rb"([A-Z]{3,8}) (\S+) HTTP/1\.[01]\r\n((?:[^\r\n]+\r\n)*)\r\n")


class Deed(NamedTuple):
    """Something that a handler did outside of its session: its kind, its name for `outside`, and the line."""

    kind: str
    target: str
    line: str = ""


@dataclass(eq=False)
class _Span:
    """A stretch of a delivery that is recorded: what is sent to each peer, and the line that sends it."""

    recorder: "Recorder"
    connection: Any
    message_id: str
    after_commit: bool
    talks: dict[str, bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    lines: dict[str, str] = field(default_factory=dict)


_span: ContextVar[_Span | None] = ContextVar("outboxkit_testing_span", default=None)
_exempt: ContextVar[bool] = ContextVar("outboxkit_testing_exempt", default=False)
"""Whether `effects.once` is at work."""


class Recorder:
    """Hears of what handlers do outside of their sessions. It is a context manager.

    Attributes:
        effects: what was done that the test does not allow, in its order.
        acted: whether anything was done, also what is allowed.
        forgotten: the names of coroutines that were never awaited.
        begun: the threads and functions in pools that handlers have started, and whether each runs.
        bound: the sockets that they have bound to an address.
        hosts: the names that were looked up and not yet connected to, by their ports.
        process: the one in which the tests run.
    """

    def __init__(self, code: CodeType, outside: Collection[str]) -> None:
        self.code, self._outside = code, outside
        self.effects: dict[Deed, None] = {}
        self.acted = False
        self.forgotten: list[str] = []
        self.begun: list[tuple[str, Callable[[], bool]]] = []
        self.bound: list[socket.socket] = []
        self.hosts: dict[str, str] = {}
        self._names: dict[object, str] = {}
        self._own_pairs: set[str] = set()
        self._engine_peers: set[str] = set()
        self._keys: dict[tuple[str, str], set[str]] = {}
        self._paths: dict[str, str] = {}
        self.process = os.getpid()

    def __enter__(self) -> Self:
        _audit()
        self._stack = ExitStack()
        event.listen(Engine, "before_cursor_execute", _heard_statement)
        self._stack.callback(event.remove, Engine, "before_cursor_execute", _heard_statement)
        self._stack.callback(threading.setprofile, threading.getprofile())
        threading.setprofile(profile)
        for target, name, wrapper in (
            *((socket.socket, name, _sending) for name in ("send", "sendall")),
            *((ssl.SSLSocket, name, _sending) for name in ("send", "write")),
            (ssl.SSLObject, "write", _sending),
            (ThreadPoolExecutor, "submit", _handing),
        ):
            original = getattr(target, name)
            setattr(target, name, wrapper(original))
            self._stack.callback(setattr, target, name, original)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def recording(self, connection: Connection, message_id: str, *, after_commit: bool = False) -> Iterator[None]:
        """Record what this context does, and the tasks and threads that it starts."""
        span = _Span(self, connection.connection, message_id, after_commit)
        token = _span.set(span)
        try:
            yield
        finally:
            _span.reset(token)
            self._judge(span)

    def add(self, span: _Span, kind: str, target: str, line: str = "") -> None:
        """Record one effect, unless the test allows it."""
        self.acted = True
        if not fits_any(target, self._outside):
            self.effects.setdefault(Deed(AFTER if span.after_commit else kind, target, line))

    def spoke(self, span: _Span, address: Any, sent: bytes, line: str | None) -> None:
        """Record that something is sent to an address, or a connection opened; `line` None: an engine or a log does."""
        peer = self._peer(address)
        if any(own.fileno() >= 0 and own.getsockname() == address for own in self.bound):
            self._own_pairs.add(peer)  # it connects to itself, as pika does
        if not peer or peer in self._own_pairs:
            return
        if line is None:
            self._engine_peers.add(peer)
        elif line or peer not in self._engine_peers:  # an engine may send the rest later, when the loop has time
            span.lines[peer] = span.lines.get(peer) or line
            span.talks[peer] += sent[: max(0, _LONGEST - len(span.talks[peer]))]

    def _peer(self, address: Any) -> str:
        """The name of a peer: that of a host as it was looked up."""
        if not isinstance(address, tuple):
            return _readable(address).replace("\0", "@")  # a name outside the file system begins with a zero
        if (key := address[:2]) not in self._names:
            host, port = str(key[0]), str(key[-1])
            self._names[key] = f"{self.hosts.pop(port, host)}:{port}"
        return self._names[key]

    def note(self, path: str, line: str = "") -> None:
        """Note a path that is written to, or is about to be."""
        self.acted = True
        self._paths.setdefault(path, line)

    def files(self) -> dict[str, object]:
        """The contents at the paths that handlers have written to."""
        return {path: _content(Path(path)) for path in self._paths}

    def compare(self, before: dict[str, object]) -> None:
        """Record the files that are not as they were at the attempt before."""
        for path, content in self.files().items():
            if before.get(path) != content and not fits_any(path, self._outside):
                self.effects.setdefault(Deed(FILE, path, self._paths[path]))

    def left(self) -> list[str]:
        """What handlers have begun in threads and not waited for."""
        return [name for name, runs in self.begun if runs()]

    def _judge(self, span: _Span) -> None:
        """Turn what was sent in a delivery into effects."""
        with_tls = any(peer.startswith("https://") for peer in span.talks)
        keys: dict[str, set[str]] = defaultdict(set)
        for peer, talk in span.talks.items():
            self.acted, sent = True, bytes(talk)
            if with_tls and _TLS.match(sent):  # what was sent is known before its encryption
                continue
            for kind, target, key in _spoken(peer, sent, span.message_id):
                if key is None or span.after_commit:
                    self.add(span, kind, target, span.lines[peer])
                else:
                    keys[target].add(key)
        for target, now in keys.items():  # an attempt that failed early may have sent fewer
            before = self._keys.setdefault((span.message_id, target), now)
            if not (now <= before or before <= now):
                self.add(span, REQUEST, target)


def _spoken(peer: str, sent: bytes, message_id: str) -> Iterator[tuple[str, str, str | None]]:
    """What was sent to a peer, unless it may be repeated: kinds, names without a secret of a query, and keys.

    What has the message's id is taken for a call under a key.
    """
    own = message_id if message_id.encode() in sent else None
    if _HEAD.match(sent):
        for method, path, lines in _HEAD.findall(sent):
            if method.decode() not in REPEATABLE:
                headers = message_from_bytes(lines)
                base = peer if peer.startswith("https://") else f"http://{headers.get('host', peer)}"
                key = next((str(headers[name]) for name in KEY_HEADERS if headers[name]), own)
                yield REQUEST, f"{method.decode()} {base}{urlsplit(path.decode('latin-1')).path}", key
    elif re.search(rb"^mail from:", sent, re.IGNORECASE | re.MULTILINE):
        to = ", ".join(each.decode("latin-1") for each in re.findall(rb"(?im)^rcpt to: *<?([^>\r\n]+)", sent))
        yield MAIL, f"to {to} by {peer}", None
    elif own is None:
        yield SPEAKS, peer, None


def _content(place: Path) -> object:
    with suppress(OSError):
        if place.is_symlink():
            return place.readlink()
        return "a folder" if place.is_dir() else place.read_bytes()
    return None


def is_application(file: str | None) -> bool:
    """Whether a source file is one of the application or its tests, and of no library."""
    return bool(file) and not str(file).startswith(_LIBRARIES)


def source_line(frame: FrameType) -> str:
    """The line of a source file at which a frame is, and its place."""
    file, number = frame.f_code.co_filename, frame.f_lineno
    return f"{Path(file).name}:{number}: {linecache.getline(file, number).strip()}"


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of a stack, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _line(span: _Span, innermost: FrameType | None, *, by_engine: bool = False) -> str | None:
    """The application's line that leads here, if there is one; None if it is a log's or an engine's own doing."""
    for frame in frames(innermost):
        code, module = frame.f_code, str(frame.f_globals.get("__name__")).partition(".")[0]
        if module == "logging" or (module == "sqlalchemy" and not by_engine):
            return None
        if code is span.recorder.code or is_application(code.co_filename):
            return source_line(frame)
    return ""


def _current() -> _Span | None:
    return None if _exempt.get() else _span.get()


def _sent(to: Any, sent: Any = b"") -> None:
    """Hear that something is sent by the current context. What is encrypted has the server's name for its peer."""
    if (span := _current()) is not None:
        with suppress(OSError):
            is_tls = isinstance(to, ssl.SSLSocket | ssl.SSLObject)
            address = f"https://{to.server_hostname or 'a server'}" if is_tls else to.getpeername()
            span.recorder.spoke(span, address, bytes(sent), _line(span, sys._getframe(2)))  # noqa: SLF001


def _sending(original: Callable[..., Any]) -> Callable[..., Any]:
    def send(self: Any, data: Any, *arguments: Any) -> Any:
        _sent(self, data)
        return original(self, data, *arguments)

    return send


def _handing(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is handed to a pool belongs to the context that hands it over, unless an engine or a log does."""

    def submit(self: Any, function: Any, /, *arguments: Any, **options: Any) -> Any:
        span, context = _current(), copy_context()
        line = _line(span, sys._getframe(1)) if span is not None else ""  # noqa: SLF001
        if line is None:
            context.run(_span.set, None)
        future = original(self, context.run, function, *arguments, **options)
        if span is not None and line:
            name = getattr(function, "__qualname__", type(function).__qualname__)
            span.recorder.begun.append((f"the function {name} of a pool", lambda: not future.done()))
        return future

    return submit


def only_reads(statement: str) -> bool:
    """Whether a statement changes no row. It may lock some."""
    text = statement.lstrip(" (\n").upper()
    return text.startswith(READING) or (text.startswith("WITH") and not _WRITING.search(text))


def _heard_statement(connection: Connection, _: Any, statement: str, *__: Any) -> None:
    span = _current()
    if span is not None and connection.connection is not span.connection and not only_reads(statement):
        target = f"{connection.engine.url.database}: {' '.join(statement.split()[:3])}"
        span.recorder.add(span, STATEMENT, target, _line(span, sys._getframe(1), by_engine=True) or "")  # noqa: SLF001


def profile(frame: FrameType, kind: str, argument: Any) -> None:
    """Hear of calls: for `sys.setprofile`, in each thread in which handlers run."""
    code = frame.f_code
    if kind == "c_call":
        sender = getattr(argument, "__self__", None)
        is_send = isinstance(sender, socket.socket) and argument.__name__ in ("send", "sendall")
        if is_send and code.co_filename != __file__:
            _sent(sender)
    elif kind == "call":
        if code.co_filename.startswith(_EFFECTS):
            _exempt.set(True)
            if (span := _span.get()) is not None:
                span.recorder.acted = True
        elif code is _UNAWAITED:
            if (span := _span.get()) is not None:
                span.recorder.forgotten.append(frame.f_locals["coro"].__qualname__)
        elif code.co_name == "start" and frame.f_globals.get("__name__") == "threading":
            if (span := _current()) is not None and _line(span, frame) is not None:
                _heard_thread(span.recorder, frame.f_locals["self"])
        elif code is _RAW and (span := _current()) is not None and (line := _line(span, frame.f_back)):
            span.recorder.add(span, STATEMENT, f"{frame.f_locals['self'].url.database}: raw_connection", line)
        elif code.co_name == "connect" and (span := _current()) is not None:
            module = str(frame.f_globals.get("__name__")).partition(".")[0]
            if hasattr(sys.modules.get(module), "paramstyle") and (line := _line(span, frame.f_back)) is not None:
                span.recorder.add(span, STATEMENT, f"{module}.connect", line)
    elif kind == "return" and code.co_filename.startswith(_EFFECTS):
        caller = frame.f_back
        if caller is not None and not caller.f_code.co_filename.startswith((_EFFECTS, _SQL)):
            _exempt.set(False)


@cache
def _audit() -> None:
    """Begin to listen to Python's audit events, which has no end. It costs nothing while nothing is recorded."""
    sys.addaudithook(_heard)


def _heard(name: str, arguments: tuple[Any, ...]) -> None:
    try:
        span = _current() if name in _EVENTS and (name != "open" or _writes(*arguments[1:])) else None
    except (LookupError, TypeError, AttributeError):  # the interpreter ends, and has taken the globals away
        return
    if span is None:
        return
    recorder, line = span.recorder, _line(span, sys._getframe(1))  # noqa: SLF001
    if name == "socket.bind":
        recorder.bound.append(arguments[0])
    elif name == "socket.getaddrinfo":
        if arguments[0] and arguments[1]:
            host, port = map(_readable, arguments[:2])
            recorder.hosts[port] = host
            recorder.spoke(span, f"{host}:{port}", b"", line)
    elif name in _SENDS:
        with suppress(OSError):
            recorder.spoke(span, arguments[1] or arguments[0].getpeername(), b"", line)
    elif line is None:
        return
    elif name in _PROGRAMS:
        words = arguments[1] if len(arguments) > 1 and isinstance(arguments[1], list | tuple) else arguments[:1]
        command = " ".join(map(_readable, words)) or "a fork"
        recorder.add(span, PROGRAM, command, line)
        if name == "os.exec" and os.getpid() == recorder.process:
            raise RuntimeError(f"the handler replaces its own process, which is the test's, by the program {command!r}")
    elif name == "sqlite3.connect":
        if _readable(arguments[0]) not in ("", ":memory:") and "mode=ro" not in _readable(arguments[0]):
            recorder.add(span, STATEMENT, f"sqlite3.connect {_readable(arguments[0])}", line)
    else:
        for path in _written(name, arguments):
            recorder.note(path, line)
            if span.after_commit:
                recorder.add(span, FILE, path, line)


_heard.__cantrace__ = True  # type: ignore[attr-defined]  # Python traces no audit hook without it: debuggers, coverage


def _heard_thread(recorder: Recorder, thread: threading.Thread) -> None:
    """A thread belongs to the context that starts it; not one of a pool, whose functions come with a context."""
    target = getattr(thread, "_target", None) or type(thread)
    if not str(target.__module__).startswith(_POOLS):
        recorder.begun.append((f"the thread {thread.name}", thread.is_alive))
        thread.run = partial(copy_context().run, thread.run)  # type: ignore[method-assign]


def _readable(value: object) -> str:
    return os.fsdecode(value) if isinstance(value, str | bytes | os.PathLike) else str(value)


def _writes(mode: str | None, flags: int) -> bool:
    return any(letter in mode for letter in "wax+") if mode is not None else bool(flags & _WRITES)


def _written(name: str, arguments: tuple[Any, ...]) -> Iterator[str]:
    """The absolute paths that are about to change; not those of the system and of compiled modules."""
    for place in (arguments[index] for index in _PATHS[name]):
        path = os.path.realpath(_readable(place))
        if not isinstance(place, int) and not path.startswith(NOT_FILES) and "__pycache__" not in path:
            yield path
