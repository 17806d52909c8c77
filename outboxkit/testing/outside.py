"""The effects of a handler outside of its session: recorded while they happen, and named by target and line.

Python's audit events tell of connections, files and programs. The methods that send on a socket tell what is sent. One
listener on the class `Engine` hears of statements on other connections. A profile function hears of threads that start,
of sends by methods that were bound before, and of `connect` of database modules (PEP 249), which are in C.
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
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self
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
KEY_HEADERS = ("idempotency-key", "x-idempotency-key", "webhook-id", "paypal-request-id", "ce-id")
"""Headers by which a receiver recognises a repetition."""
REPEATABLE = ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE")
"""Methods whose repetition changes nothing more (RFC 9110, section 9.2.2)."""
NOT_FILES = ("/dev/", "/proc/", "/sys/")
_PATHS = {"open": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.truncate": (0,), "os.mkdir": (0,),
          "os.rmdir": (0,), "os.link": (1,), "os.symlink": (1,)}  # fmt: skip
_PROGRAMS = ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec")
_SENDS = ("socket.connect", "socket.sendto", "socket.sendmsg")
_EVENTS = frozenset(("sqlite3.connect", "socket.bind", "socket.getaddrinfo", *_PATHS, *_PROGRAMS, *_SENDS))
"""Those of https://docs.python.org/3/library/audit_events.html that do something outside the process."""
_POOLS = ("concurrent.futures", "aiosqlite", "asyncio", "anyio", "sqlalchemy", "psycopg", "httpcore", "urllib3")
"""Modules whose threads wait for work, and do not go on by themselves."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EFFECTS, _SQL, _OWN = (
    f"{Path(str(module.__file__)).parent}{os.sep}" for module in (outboxkit.effects, sqlalchemy, outboxkit)
)
_LIBRARIES = (_OWN, "<", *{f"{sysconfig.get_path(each)}{os.sep}" for each in ("stdlib", "purelib", "platlib")})
_LONGEST = 65536
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

    Args:
        outside: patterns of targets that the test allows.

    Attributes:
        forgotten: the names of coroutines that were never awaited.
        bound: the sockets that it has bound to an address.
    """

    def __init__(self, code: CodeType | None, outside: Collection[str]) -> None:
        self.code, self._outside = code, outside
        self._keys: dict[tuple[str, str], set[str]] = {}
        self._hosts: dict[str, str] = {}
        self._names: dict[object, str] = {}
        self._databases: set[str] = set()
        self._paths: dict[str, str] = {}
        self.effects: dict[Deed, None] = {}
        self.forgotten: list[str] = []
        self.threads: list[threading.Thread] = []
        self.bound: list[socket.socket] = []
        self._own_peers: set[str] = set()
        self.acted = False
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
            (ThreadPoolExecutor, "submit", _submitting),
            (warnings, "_warn_unawaited_coroutine", _warning),
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

    def spoke(self, span: _Span, peer: str, sent: bytes, line: str | None) -> None:
        """Record that something is sent to a peer, or a connection opened; `line` None: an engine or a log does it."""
        if line is None:
            self._databases.add(peer)
        elif peer not in self._own_peers and (
            line or peer not in self._databases
        ):  # an engine may send the rest later, when the loop has time
            span.talks[peer] += sent[: _LONGEST - min(_LONGEST, len(span.talks[peer]))]
            span.lines[peer] = span.lines.get(peer) or line

    def peer(self, address: object, *, connects: bool = False) -> str | None:
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

    def is_own(self, address: object) -> bool:
        """Whether the handler connects to a socket that it has bound itself, for a pair of its own, as pika does."""
        if any(own.fileno() >= 0 and own.getsockname() == address for own in self.bound):
            self._own_peers.add(str(self.peer(address)))
        return str(self.peer(address)) in self._own_peers

    def looked_up(self, host: str, port: str) -> str:
        """Note the name under which the next connection to this port is recorded."""
        self._hosts[port] = host
        return f"{host}:{port}"

    def state(self) -> dict[str, object]:
        """The entries at the paths that handlers have written to: kinds, and contents."""
        return {path: content for path in self._paths if (content := _content(Path(path)))}

    def note(self, path: str, line: str = "") -> None:
        """Note a path that is written to, or is about to be."""
        self.acted = True
        self._paths.setdefault(path, line)

    def compare(self, before: dict[str, object]) -> None:
        """Record the files that are not as they were at the attempt before."""
        for path, content in self.state().items():
            if before.get(path) != content and not fits_any(path, self._outside):
                self.effects.setdefault(Deed(FILE, path, self._paths[path]))

    def running(self) -> list[threading.Thread]:
        """The threads of handlers that run."""
        return [thread for thread in self.threads if thread.is_alive()]

    def _judge(self, span: _Span) -> None:
        """Turn what was sent in a delivery into effects."""
        with_tls = any(peer.startswith("https://") for peer in span.talks)
        keys: dict[str, set[str]] = defaultdict(set)
        for peer, talk in span.talks.items():
            self.acted, line, sent = True, span.lines.get(peer, ""), bytes(talk)
            if with_tls and (not sent or sent.startswith(_TLS)):  # what was sent is known before its encryption
                continue
            if not _HEAD.match(sent):
                for kind, target in _spoken(peer, sent, span.message_id):
                    self.add(span, kind, target, line)
            for method, target, key in _requests(peer, sent):
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


def _spoken(peer: str, sent: bytes, message_id: str) -> Iterator[tuple[str, str]]:
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


def _content(place: Path) -> object:
    with suppress(OSError):
        if place.is_symlink():
            return place.readlink()
        return "a folder" if place.is_dir() else place.read_bytes() or "empty"
    return None


def is_application(file: str) -> bool:
    """Whether a source file is one of the application or its tests, and of no library."""
    return bool(file) and not file.startswith(_LIBRARIES)


def _line(span: _Span, frame: FrameType | None, *, by_engine: bool = False) -> str | None:
    """The application's line that leads here, if there is one; None if it is a log's or an engine's own doing."""
    while frame is not None:
        code, module = frame.f_code, str(frame.f_globals.get("__name__")).partition(".")[0]
        if module == "logging" or (module == "sqlalchemy" and not by_engine):
            return None
        if code is span.recorder.code or is_application(code.co_filename):
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
        name = peer if isinstance(peer, str) else span.recorder.peer(peer.getpeername())
        if name is not None:
            span.recorder.spoke(span, name, sent, _line(span, sys._getframe(2)))  # noqa: SLF001


def _sending(original: Any) -> Any:
    """What is encrypted has the name of the server that its certificate is for."""

    def send(self: Any, data: Any, *arguments: Any) -> Any:
        if _span.get() is not None:
            is_tls = isinstance(self, ssl.SSLSocket | ssl.SSLObject)
            _sent(f"https://{self.server_hostname or 'a server'}" if is_tls else self, bytes(data))
        return original(self, data, *arguments)

    return send


def _submitting(original: Any) -> Any:
    """A function that is handed to a pool belongs to the context that hands it over."""

    def submit(self: Any, function: Any, /, *arguments: Any, **options: Any) -> Any:
        if _span.get() is None:
            return original(self, function, *arguments, **options)
        return original(self, _context().run, function, *arguments, **options)

    return submit


def _context() -> Context:
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
    if kind == "c_call":
        sender = getattr(argument, "__self__", None)
        if (
            isinstance(sender, socket.socket)
            and argument.__name__ in ("send", "sendall")
            and code.co_filename != __file__
        ):
            _sent(sender)
    elif kind == "call":
        if code.co_filename.startswith(_EFFECTS):
            _exempt.set(True)
            if (span := _span.get()) is not None:
                span.recorder.acted = True
        elif code.co_name == "start" and frame.f_globals.get("__name__") == "threading":
            if (span := _current()) is not None:
                _heard_thread(span.recorder, frame.f_locals.get("self"))
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
        span = _current() if name in _EVENTS else None
    except (LookupError, TypeError, AttributeError):  # the interpreter ends, and has taken the globals away
        return
    if span is None:
        return
    recorder, line = span.recorder, _line(span, sys._getframe(1))  # noqa: SLF001
    if name == "socket.bind":
        recorder.bound.append(arguments[0])
    elif name in _SENDS:
        with suppress(OSError):
            address = arguments[1] or arguments[0].getpeername()
            if recorder.is_own(address):
                return
            if (peer := recorder.peer(address, connects=name == "socket.connect")) is not None:
                recorder.spoke(span, peer, b"", line)
    elif name == "socket.getaddrinfo":
        if arguments[0] and arguments[1]:
            recorder.spoke(span, recorder.looked_up(*map(_readable, arguments[:2])), b"", line)
    elif line is None:
        return
    elif name in _PROGRAMS:
        words = arguments[1] if len(arguments) > 1 and isinstance(arguments[1], list | tuple) else arguments[:1]
        command = " ".join(map(_readable, words)) or "a fork"
        recorder.add(span, PROGRAM, command, line)
        if name == "os.exec" and os.getpid() == recorder.process:
            raise RuntimeError(f"the handler replaces its own process, which is the test's, by the program {command!r}")
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


def _readable(value: object) -> str:
    return os.fsdecode(value) if isinstance(value, str | bytes | os.PathLike) else str(value)


def _written(name: str, arguments: tuple[Any, ...]) -> Iterator[str]:
    """The absolute paths that are about to change; not those of the system and of compiled modules."""
    if name == "open":
        _, mode, flags = arguments
        if not (any(letter in mode for letter in "wax+") if isinstance(mode, str) else flags & _WRITES):
            return
    for place in (arguments[index] for index in _PATHS[name]):
        with suppress(OSError):
            relative = Path(f"/proc/self/fd/{place}").readlink() if isinstance(place, int) else _readable(place)
            path = str(Path.cwd() / relative)
            if not path.startswith(NOT_FILES) and "__pycache__" not in path:
                yield str(Path(path).resolve()) if name == "open" else path  # a link's target is what changes
