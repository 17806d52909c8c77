"""The methods that send requests and mails, and start threads: patched while a trial records."""

import http.client
import smtplib
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import copy_context
from email import message_from_bytes, message_from_string
from functools import partial, wraps
from importlib import import_module
from typing import Any

Answer = Callable[..., Any]
Answers = Mapping[str, Answer]
"""Functions by `httpx`, `requests` and `mail` that answer instead of the outside world."""
ANSWERED = ("httpx", "requests", "mail")
Record = Callable[[str, Any], AbstractContextManager[None]]
REQUESTS, MAILS = "requests sent", "mails sent"
KEY_HEADERS = ("idempotency-key", "x-idempotency-key", "webhook-id", "paypal-request-id", "ce-id")
"""Headers by which a receiver recognises a repetition."""
_OWN_POOLS = ("concurrent.futures", "aiosqlite", "asyncio", "anyio", "sqlalchemy", "psycopg", "httpcore", "urllib3")
"""Modules whose threads wait for work, and do not go on by themselves."""


@contextmanager
def patched(
    record: Record,
    record_thread: Callable[[threading.Thread], bool],
    record_peer: Callable[[object], None],
    record_forgotten: Callable[[str], None],
    answers: Answers,
) -> Iterator[None]:
    """Patch the methods, so that they tell these functions. Libraries that are not installed are left out."""
    with ExitStack() as stack:

        def patch(target: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
            original = getattr(target, name)
            setattr(target, name, wraps(original)(wrapper(original)))
            stack.callback(setattr, target, name, original)

        _patch_requests(patch, record, answers)
        _patch_mails(patch, record, answers.get("mail"))
        _patch_threads(patch, record_thread)
        _patch_sockets(patch, record_peer)
        _patch_coroutines(patch, record_forgotten)
        yield


Patch = Callable[[Any, str, Callable[[Any], Any]], None]


def _patch_requests(patch: Patch, record: Record, answers: Answers) -> None:
    patch(http.client.HTTPConnection, "request", partial(_of_connection, record))
    with suppress(ImportError):
        httpx = import_module("httpx")
        patch(httpx.Client, "send", partial(_of_client, record, answers.get("httpx")))
        patch(httpx.AsyncClient, "send", partial(_of_async_client, record, answers.get("httpx")))
    with suppress(ImportError):
        patch(import_module("requests").Session, "send", partial(_of_client, record, answers.get("requests")))
    with suppress(ImportError):
        patch(import_module("urllib3").connectionpool.HTTPConnectionPool, "urlopen", partial(_of_connection, record))
    if "aiohttp" in sys.modules:
        patch(sys.modules["aiohttp"].ClientSession, "_request", partial(_of_aiohttp, record))


def _of_client(record: Record, answer: Answer | None, original: Any) -> Any:
    def send(self: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        with record(REQUESTS, _request(request.method, request.url, request.headers, _body(request))):
            return answer(request) if answer else original(self, request, *arguments, **options)

    return send


def _of_async_client(record: Record, answer: Answer | None, original: Any) -> Any:
    async def send(self: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        with record(REQUESTS, _request(request.method, request.url, request.headers, _body(request))):
            return answer(request) if answer else await original(self, request, *arguments, **options)

    return send


def _of_connection(record: Record, original: Any) -> Any:
    def request(self: Any, method: str, url: str, body: Any = None, headers: Any = None, **options: Any) -> Any:
        place = f"{getattr(self, 'scheme', 'http')}://{self.host}:{self.port}{url}"
        with record(REQUESTS, _request(method, place, headers or {}, body)):
            return original(self, method, url, body, headers or {}, **options)

    return request


def _of_aiohttp(record: Record, original: Any) -> Any:
    async def request(self: Any, method: str, url: Any, **options: Any) -> Any:
        body = options.get("json") or options.get("data")
        with record(REQUESTS, _request(method, url, options.get("headers") or {}, body)):
            return await original(self, method, url, **options)

    return request


def _request(method: str, url: object, headers: Any, body: object) -> dict[str, object]:
    lower = {str(name).lower(): value for name, value in dict(headers).items()}
    key = next((str(lower[name]) for name in KEY_HEADERS if lower.get(name)), None)
    return {"method": str(method).upper(), "url": str(url), "key": key, "body": _text(body)}


def _body(request: Any) -> object:
    try:
        return request.content if hasattr(request, "content") else request.body
    except Exception:  # noqa: BLE001 - a stream that is not read
        return None


def _text(body: object) -> str | None:
    if body is None or body in (b"", ""):
        return None
    return (body.decode(errors="backslashreplace") if isinstance(body, bytes) else str(body))[:1000]


def _patch_mails(patch: Patch, record: Record, answer: Answer | None) -> None:
    def sending(original: Any) -> Any:
        def sendmail(self: Any, from_addr: str, to_addrs: Any, msg: Any, *arguments: Any, **options: Any) -> Any:
            to = [to_addrs] if isinstance(to_addrs, str) else list(to_addrs)
            parsed = message_from_string(msg) if isinstance(msg, str) else message_from_bytes(bytes(msg))
            with record(MAILS, {"to": ", ".join(to), "subject": parsed["Subject"]}):
                if answer:
                    return answer(from_addr, to, msg) or {}
                return original(self, from_addr, to_addrs, msg, *arguments, **options)

        return sendmail

    def part(original: Any) -> Any:
        def speak(self: Any, *arguments: Any, **options: Any) -> Any:
            with record(MAILS, None):
                return original(self, *arguments, **options)

        return speak

    def silent(_: Any) -> Any:
        return lambda self, *arguments, **options: (220, b"the test answers")  # noqa: ARG005

    patch(smtplib.SMTP, "sendmail", sending)
    for name in ("connect", "ehlo", "helo", "starttls", "login", "noop", "quit") if answer else ():
        patch(smtplib.SMTP, name, silent)
    for name in ("send",) if answer else ("connect", "send"):
        patch(smtplib.SMTP, name, part)


def _patch_threads(patch: Patch, record_thread: Callable[[threading.Thread], bool]) -> None:
    """A thread, and a function that is handed to a pool, belong to the context that starts them."""

    def starting(original: Any) -> Any:
        def start(self: threading.Thread) -> None:
            target = getattr(self, "_target", None) or type(self).run
            is_pool = (getattr(target, "__module__", None) or "").startswith(_OWN_POOLS)
            if not is_pool and record_thread(self):
                self.run = partial(copy_context().run, self.run)  # type: ignore[method-assign]
            original(self)

        return start

    def submitting(original: Any) -> Any:
        def submit(self: Any, function: Any, /, *arguments: Any, **options: Any) -> Any:
            return original(self, copy_context().run, function, *arguments, **options)

        return submit

    patch(threading.Thread, "start", starting)
    patch(ThreadPoolExecutor, "submit", submitting)


def _patch_sockets(patch: Patch, record_peer: Callable[[object], None]) -> None:
    """A connection that is kept is used again without being opened."""

    def sending(original: Any) -> Any:
        def send(self: socket.socket, *arguments: Any) -> Any:
            with suppress(OSError):
                if self.family in (socket.AF_INET, socket.AF_INET6, getattr(socket, "AF_UNIX", None)):
                    record_peer(self.getpeername())
            return original(self, *arguments)

        return send

    for name in ("send", "sendall"):
        patch(socket.socket, name, sending)


def _patch_coroutines(patch: Patch, record_forgotten: Callable[[str], None]) -> None:
    """Python calls this function for a coroutine that goes away and was never awaited."""

    def warning(original: Any) -> Any:
        def warn(coroutine: Any) -> None:
            record_forgotten(coroutine.__qualname__)
            original(coroutine)

        return warn

    if hasattr(warnings, "_warn_unawaited_coroutine"):
        patch(warnings, "_warn_unawaited_coroutine", warning)
