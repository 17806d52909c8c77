"""The effects of a handler outside of its session: recorded while they happen, and named by target and line.

Python's audit events tell of connections, files and programs. The methods that send on a socket tell what is sent. One
listener on the class `Engine` hears of statements on other connections. A profile function hears of threads that start,
and of sends by methods that were bound before. It hears `connect` of database modules (PEP 249), which are in C.
"""

import hashlib
import linecache
import os
import re
import socket
import sys
import sysconfig
import threading
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self
from urllib.parse import urlsplit

import sqlalchemy
from sqlalchemy import Connection, Engine, event

import outboxkit.effects

REQUEST = "it sends a request without a key that is the same at each attempt"
SPEAKS, MAIL = "it speaks with another service", "it sends a mail"
STATEMENT = "it changes a database by another session or connection"
FILE, PROGRAM = "a retry changes files again", "it starts a program"
LEFT = "it leaves something behind that goes on after its transaction"
AFTER = "it acts after its commit; a crash between the two loses that"
READING = ("SELECT", "SAVEPOINT", "RELEASE", "ROLLBACK", "SHOW", "PRAGMA", "BEGIN", "EXPLAIN")
KEY_HEADERS = ("idempotency-key", "x-idempotency-key", "webhook-id", "paypal-request-id", "ce-id")
"""Headers by which a receiver recognises a repetition."""
REPEATABLE = ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE")
"""Methods whose repetition changes nothing more (RFC 9110, section 9.2.2)."""
NOT_FILES = ("/dev/", "/proc/", "/sys/")
_PATHS = {"os.rename": (0, 1), "os.remove": (0,), "os.truncate": (0,), "os.mkdir": (0,), "os.rmdir": (0,),
          "os.link": (1,), "os.symlink": (1,)}  # fmt: skip
_PROGRAMS = ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec")
_SENDS = ("socket.sendto", "socket.sendmsg")
_EVENTS = frozenset(("open", "sqlite3.connect", "socket.bind", "socket.connect", "socket.getaddrinfo"))
_EVENTS |= {*_PATHS, *_PROGRAMS, *_SENDS}
"""Those of https://docs.python.org/3/library/audit_events.html that do something outside the process."""
_POOLS = ("concurrent.futures", "aiosqlite", "asyncio", "anyio", "sqlalchemy", "psycopg", "httpcore", "urllib3")
"""Modules whose threads wait for work, and do not go on by themselves."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EFFECTS, _SQL = (f"{Path(str(module.__file__)).parent}{os.sep}" for module in (outboxkit.effects, sqlalchemy))
_TLS = (b"\x14\x03", b"\x15\x03", b"\x16\x03", b"\x17\x03")
_HEAD = re.compile(rb"([A-Z]{3,8}) (\S+) HTTP/1\.[01]\r\n((?:[^\r\n]+\r\n)*)\r\n")
_PUBLISH = re.compile(rb"\x00\x3c\x00\x28\x00\x00", re.DOTALL)
"""The beginning of basic.publish of AMQP 0-9-1."""


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that a handler did outside of its session: its kind, its name for `outside`, and `file:line`."""

    kind: str
    target: str
    line: str = ""

    def __str__(self) -> str:
        file, _, number = self.line.rpartition(":")
        source = linecache.getline(file, int(number)).strip() if file else ""
        return f"    {self.target}" + (f", at {Path(file).name}:{number}: {source}" if file else "")


@dataclass(eq=False)
class _Span:
    """A stretch of a delivery that is recorded."""

    recorder: "Recorder"
    code: CodeType | None
    connection: Any
    message_id: str
    after_commit: bool = False
    talks: dict[str, bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    lines: dict[str, str] = field(default_factory=dict)


_span: ContextVar[_Span | None] = ContextVar("outboxkit_testing_span", default=None)
_exempt: ContextVar[bool] = ContextVar("outboxkit_testing_exempt", default=False)
"""Whether `effects.once` is at work."""


class Recorder:
    """Hears of what handlers do outside of their sessions. It is a context manager.

    Args:
        code: the handler's function.
        outside: patterns of targets that the test allows.

    Attributes:
        effects: those so far, in their order.
        forgotten: the names of coroutines that were never awaited.
        acted: whether it has done anything, allowed or not.
        threads: the threads that the handler has started.
    """

    def __init__(self, code: CodeType | None, outside: Collection[str]) -> None:
        self._code, self._outside = code, outside
        self._keys: dict[tuple[str, str], set[str]] = {}
        self._hosts: dict[str, str] = {}
        self._names: dict[object, str] = {}
        self._databases: set[str] = set()
        self._paths: dict[str, str] = {}
        self.effects: dict[Deed, None] = {}
        self.forgotten: list[str] = []
        self.threads: list[threading.Thread] = []
        self.own_peers: set[str] = set()
        self.bound: list[socket.socket] = []
        self.acted = False
        self.process = os.getpid()

    def __enter__(self) -> Self:
        _audit()
        self._stack = ExitStack()
        event.listen(Engine, "before_cursor_execute", _heard_statement)
        self._stack.callback(event.remove, Engine, "before_cursor_execute", _heard_statement)
        self._stack.callback(threading.setprofile, threading.getprofile())
        threading.setprofile(profile)
        for target, name, wrapper in ((socket.socket, "send", _sending), (socket.socket, "sendall", _sending),
                                      (ThreadPoolExecutor, "submit", _submitting),
                                      (warnings, "_warn_unawaited_coroutine", _warning)):  # fmt: skip
            if (original := getattr(target, name, None)) is not None:
                setattr(target, name, wrapper(original))
                self._stack.callback(setattr, target, name, original)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def recording(self, connection: Connection, message_id: str, *, after_commit: bool = False) -> Iterator[None]:
        """Record what this context does, and the tasks and threads that it starts."""
        span = _Span(self, self._code, connection.connection, message_id, after_commit)
        token = _span.set(span)
        try:
            yield
        finally:
            _span.reset(token)
            self._judge(span)

    def add(self, span: _Span, kind: str, target: str, line: str = "") -> None:
        """Record one effect, unless the test allows it."""
        self.acted = True
        if not any(fnmatchcase(target, pattern) for pattern in self._outside):
            self.effects.setdefault(Deed(AFTER if span.after_commit else kind, target, line))

    def spoke(self, span: _Span, peer: str, sent: bytes, line: str | None) -> None:
        """Record that something is sent to a peer, or a connection opened; `line` None: an engine or a log does it."""
        if line is None:
            self._databases.add(peer)
        elif peer not in self.own_peers and (
            line or peer not in self._databases
        ):  # an engine may send the rest later, when the loop has time
            span.talks[peer] += sent[: 65536 - min(65536, len(span.talks[peer]))]
            span.lines[peer] = span.lines.get(peer) or line

    def name(self, address: object, *, connects: bool = False) -> str | None:
        """The name of a peer, as it was looked up; None if it is not a service."""
        if isinstance(address, tuple) and len(address) >= 2:
            host, port = str(address[0]), str(address[1])
            if connects:
                self._names[address[:2]] = f"{self._hosts.pop(port, host)}:{port}"
            return self._names.get(address[:2], f"{host}:{port}")
        if isinstance(address, str | bytes) and address:
            name = os.fsdecode(address).replace("\0", "@")  # a name outside the file system begins with a zero
            return None if name.startswith(NOT_FILES) else name  # such as /dev/log
        return None

    def looked_up(self, host: str, port: str) -> str:
        """Note the name under which the next connection to this port is recorded."""
        self._hosts[port] = host
        return f"{host}:{port}"

    def state(self) -> dict[str, str]:
        """The entries at the paths that handlers have written to: kinds, and digests of contents."""
        return {path: shown for path in self._paths if (shown := _content(path))}

    def note(self, path: str, line: str = "") -> None:
        """Note a path that is written to, or is about to be."""
        self.acted = True
        self._paths.setdefault(path, line)

    def compare(self, before: dict[str, str]) -> None:
        """Record the files that are not as they were at the attempt before."""
        for path, shown in self.state().items():
            if before.get(path) != shown and not any(fnmatchcase(path, each) for each in self._outside):
                self.effects.setdefault(Deed(FILE, path, self._paths[path]))

    def running(self) -> list[threading.Thread]:
        """The threads of handlers that run."""
        return [thread for thread in self.threads if thread.is_alive()]

    def _judge(self, span: _Span) -> None:
        """Turn what was sent in a delivery into effects."""
        with_tls = any(peer.startswith("https://") for peer in span.talks)
        keys: dict[str, set[str]] = defaultdict(set)
        for peer, sent in span.talks.items():
            self.acted, line = True, span.lines.get(peer, "")
            if with_tls and (not sent or sent.startswith(_TLS)):  # what was sent is known before its encryption
                continue
            if not _HEAD.match(sent):
                for kind, target in _other(peer, bytes(sent), span.message_id):
                    self.add(span, kind, target, line)
            for method, target, key in _requests(peer, bytes(sent)):
                if key is not None and not span.after_commit:
                    keys[target].add(key)
                elif method not in REPEATABLE:
                    self.add(span, REQUEST, target, line)
        for target, now in keys.items():  # an attempt that failed early may have sent fewer
            before = self._keys.setdefault((span.message_id, target), now)
            if not (now <= before or before <= now):
                self.add(span, REQUEST, target)


def _requests(peer: str, sent: bytes) -> Iterator[tuple[str, str, str | None]]:
    """The requests of HTTP that were sent: methods, names without a secret of a query, and keys."""
    for method, path, lines in _HEAD.findall(sent) if _HEAD.match(sent) else ():
        pairs = (line.partition(":") for line in lines.decode("latin-1").split("\r\n"))
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        base = peer if peer.startswith("https://") else f"http://{headers.get('host', peer)}"
        key = next((headers[name] for name in KEY_HEADERS if headers.get(name)), None)
        yield method.decode(), f"{method.decode()} {base}{urlsplit(path.decode('latin-1')).path}", key


def _other(peer: str, sent: bytes, message_id: str) -> Iterator[tuple[str, str]]:
    """The bytes of another protocol: mails and messages by their addresses, all else by the peer.

    What has the message's id is taken for a call under a key.
    """
    if re.search(rb"^mail from:", sent, re.IGNORECASE | re.MULTILINE):
        to = ", ".join(each.decode("latin-1") for each in re.findall(rb"(?im)^rcpt to: *<?([^>\r\n]+)", sent))
        yield MAIL, f"to {to} by {peer}"
    elif message_id.encode() in sent:
        return
    elif start := _PUBLISH.search(sent):
        length = sent[start.end()]
        exchange, rest = sent[start.end() + 1 :][:length], sent[start.end() + 1 + length :]
        names = [each.decode("utf-8", "replace") for each in (exchange, rest[1 : 1 + rest[0]])]
        yield SPEAKS, f"{peer} (a message to exchange {names[0]!r}, routing key {names[1]!r})"
    else:
        yield SPEAKS, peer


def _content(path: str) -> str:
    with suppress(OSError):
        place = Path(path)
        if place.is_symlink():
            return f"a link to {place.readlink()}"
        if place.is_dir():
            return "a folder"
        if place.is_file():
            with place.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
    return ""


def is_application(file: str) -> bool:
    """Whether a source file is one of the application or its tests, and of no library."""
    return bool(file) and not file.startswith((*_LIBRARIES, "<"))


_LIBRARIES = tuple(
    {f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {f"{Path(outboxkit.__file__).parent}{os.sep}"}
)


def _line(span: _Span, frame: FrameType | None, *, by_engine: bool = False) -> str | None:
    """The application's line that leads here, if there is one; None if it is a log's or an engine's own doing."""
    while frame is not None:
        code, module = frame.f_code, str(frame.f_globals.get("__name__")).partition(".")[0]
        if module == "logging" or (module == "sqlalchemy" and not by_engine):
            return None
        if code is span.code or is_application(code.co_filename):
            return f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _current() -> _Span | None:
    return None if _exempt.get() else _span.get()


def _sent(peer: socket.socket | str, sent: bytes = b"") -> None:
    """Hear that something is sent by the current context to a socket, or to a peer of this name."""
    if (span := _current()) is None:
        return
    with suppress(OSError):
        name = peer if isinstance(peer, str) else span.recorder.name(peer.getpeername())
        if name is not None:
            span.recorder.spoke(span, name, sent, _line(span, sys._getframe(2)))  # noqa: SLF001


def _sending(original: Any) -> Any:
    def send(self: socket.socket, data: Any, *arguments: Any) -> Any:
        if _span.get() is not None:
            _sent(self, bytes(data))
        return original(self, data, *arguments)

    return send


def _submitting(original: Any) -> Any:
    """A function that is handed to a pool belongs to the context that hands it over."""

    def submit(self: Any, function: Any, /, *arguments: Any, **options: Any) -> Any:
        if _span.get() is None:
            return original(self, function, *arguments, **options)
        return original(self, _context().run, _profiled, function, *arguments, **options)

    return submit


def _profiled(function: Any, *arguments: Any, **options: Any) -> Any:
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        return function(*arguments, **options)
    finally:
        sys.setprofile(before)


def _context() -> Any:
    """A copy of this context. What an engine or a log starts for itself is not recorded in it."""
    context, span = copy_context(), _current()
    if span is not None and _line(span, sys._getframe(2)) is None:  # noqa: SLF001
        context.run(_span.set, None)
    return context


def _warning(original: Any) -> Any:
    """Python calls this function for a coroutine that goes away and was never awaited."""

    def warn(coroutine: Any) -> None:
        if (span := _span.get()) is not None:
            span.recorder.forgotten.append(coroutine.__qualname__)
        original(coroutine)

    return warn


def _heard_statement(connection: Connection, _: Any, statement: str, *__: Any) -> None:
    span, text = _current(), statement.lstrip(" (\n").upper()
    if span is None or connection.connection is span.connection or text.startswith(READING):
        return
    if text.startswith("WITH") and not re.search(r"\b(INSERT|UPDATE|DELETE|MERGE)\b", text):
        return
    target = f"{connection.engine.url.database}: {' '.join(statement.split()[:3])}"
    span.recorder.add(span, STATEMENT, target, _line(span, sys._getframe(1), by_engine=True) or "")  # noqa: SLF001


def profile(frame: FrameType, kind: str, argument: Any) -> None:
    """Hear of calls: for `sys.setprofile`, in each thread in which handlers run."""
    code = frame.f_code
    if kind == "c_return":
        return
    if kind == "c_call":
        if getattr(argument, "__name__", "") in ("send", "sendall") and code.co_filename != __file__:
            sender = argument.__self__
            if isinstance(sender, socket.socket):
                _sent(sender)
    elif kind == "call":
        if code.co_filename.startswith(_EFFECTS):
            _exempt.set(True)
            if (span := _span.get()) is not None:
                span.recorder.acted = True
        elif code.co_name in ("write", "send", "sendall", "connect", "start") and _current() is not None:
            _heard_call(frame, str(frame.f_globals.get("__name__")))
    elif kind == "return" and code.co_filename.startswith(_EFFECTS):
        caller = frame.f_back
        if caller is not None and not caller.f_code.co_filename.startswith((_EFFECTS, _SQL)):
            _exempt.set(False)


def _heard_call(frame: FrameType, module: str) -> None:
    span, caller = _current(), frame.f_back
    if span is None or caller is None:
        return
    if module == "threading" and frame.f_code.co_name == "start":
        _heard_thread(span.recorder, frame.f_locals.get("self"))
    elif module == "ssl" and frame.f_code.co_name != "connect" and caller.f_globals.get("__name__") != "ssl":
        sender, data = frame.f_locals.get("self"), frame.f_locals.get("data")
        if isinstance(data, bytes | bytearray | memoryview):
            peer = f"https://{getattr(sender, 'server_hostname', None) or 'a server'}"
            span.recorder.spoke(span, peer, bytes(data), _line(span, caller))
    elif frame.f_code.co_name == "connect" and hasattr(sys.modules.get(module.partition(".")[0]), "paramstyle"):
        line = _line(span, caller)
        if line is not None:
            span.recorder.add(span, STATEMENT, f"{module.partition('.')[0]}.connect", line)


@cache
def _audit() -> None:
    """Begin to listen to Python's audit events, which has no end. It costs nothing while nothing is recorded."""
    sys.addaudithook(_heard)


def _heard(name: str, arguments: tuple[Any, ...]) -> None:
    try:
        span = _current() if name in _EVENTS else None
    except (LookupError, TypeError, AttributeError):  # the interpreter ends, and has taken the globals away
        return
    if span is None:
        return
    recorder, line = span.recorder, _line(span, sys._getframe(1))  # noqa: SLF001
    if name == "socket.bind":
        recorder.bound.append(arguments[0])
    elif name in ("socket.connect", *_SENDS):
        address = arguments[1] or arguments[0].getpeername()
        if isinstance(address, tuple) and any(
            own.fileno() >= 0 and own.getsockname() == address for own in recorder.bound
        ):  # a pair of its own
            recorder.own_peers.add(f"{address[0]}:{address[1]}")
        if (peer := recorder.name(address, connects=name == "socket.connect")) is not None:
            recorder.spoke(span, peer, b"", line)
    elif name == "socket.getaddrinfo":
        if arguments[0] and arguments[1]:
            recorder.spoke(span, recorder.looked_up(*map(_readable, arguments[:2])), b"", line)
    elif line is None:
        return
    elif name in _PROGRAMS:
        _heard_program(span, name, arguments, line)
    elif name == "sqlite3.connect":
        if _readable(arguments[0]) not in ("", ":memory:"):
            recorder.add(span, STATEMENT, f"sqlite3.connect {_readable(arguments[0])}", line)
    else:
        for path in _written(name, arguments):
            recorder.note(path, line)
            if span.after_commit:
                recorder.add(span, FILE, path, line)


_heard.__cantrace__ = True  # type: ignore[attr-defined]  # Python traces no audit hook without it: debuggers, coverage


def _heard_thread(recorder: Recorder, thread: Any) -> None:
    """A thread belongs to the context that starts it; not one of a pool, whose functions come with a context."""
    target = getattr(thread, "_target", None) or getattr(type(thread), "run", None)
    if isinstance(thread, threading.Thread) and not (getattr(target, "__module__", None) or "").startswith(_POOLS):
        recorder.threads.append(thread)
        thread.run = partial(_context().run, thread.run)  # type: ignore[method-assign]


def _heard_program(span: _Span, name: str, arguments: tuple[Any, ...], line: str) -> None:
    """Record a program, and refuse one that would replace the test's own process."""
    words = arguments[1] if len(arguments) > 1 and isinstance(arguments[1], list | tuple) else arguments[:1]
    command = " ".join(map(_readable, words)) or "a fork"
    span.recorder.add(span, PROGRAM, command, line)
    if name == "os.exec" and os.getpid() == span.recorder.process:
        raise RuntimeError(f"the handler replaces its own process, which is the test's, by the program {command!r}")


def _readable(value: object) -> str:
    return os.fsdecode(value) if isinstance(value, str | bytes | os.PathLike) else str(value)


def _written(name: str, arguments: tuple[Any, ...]) -> Iterator[str]:
    """The absolute paths that are about to change; not those of the system and of compiled modules."""
    if name == "open":
        path, mode, flags = arguments
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else flags & _WRITES
        places: Collection[Any] = (path,) if writes else ()
    else:
        places = [arguments[index] for index in _PATHS[name]]
    for place in places:
        with suppress(OSError):
            relative = f"/proc/self/fd/{place}" if isinstance(place, int) else _readable(place)
            path = str(Path(relative).readlink() if isinstance(place, int) else Path.cwd() / relative)
            if not path.startswith(NOT_FILES) and "__pycache__" not in path:
                yield str(Path(path).resolve()) if name == "open" else path  # a link's target is what changes
