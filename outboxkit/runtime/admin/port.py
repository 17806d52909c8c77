"""A small HTTP server in a thread with an event loop of its own: it answers even if the worker's own loop hangs.

It answers one GET or HEAD on each connection and closes it. Connections, bytes and seconds are limited, so that no
client costs the worker more than a moment of its processor now and then.
"""

import asyncio
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address

from outboxkit.runtime import logs

MAX_CONNECTIONS = 64
"""With so many open connections, a further one ends the oldest that has sent no whole request yet."""
BACKLOG = 1024
MAX_HEAD_BYTES, MAX_IGNORED_BYTES = 8 * 1024, 64 * 1024
"""Bytes of a request's head, and bytes behind it that are read and ignored, so that the answer is not lost."""
REQUEST_SECONDS, ANSWER_SECONDS, SEND_SECONDS, CLOSE_SECONDS = 5.0, 15.0, 5.0, 1.0
"""Seconds in which a client has to send its request, a page to be made, a client to take it and to close."""
PAUSE_SECONDS = 0.001
"""The pause after each accepted connection, in which the worker has the processor."""
JOIN_SECONDS = 2.0

PLAIN = "text/plain; charset=utf-8"
_END = b"\r\n\r\n"
_REQUEST = re.compile(rb"([A-Z]{1,32}) (?:http://[^/?#\s]*)?(/[!-\"$->@-~]*)(?:\?[!-~]*)? HTTP/1\.[01]")
_NAMED = re.compile(rb"^(?:[A-Z]+ http://|host:[ \t]*)([^/?#\s]*)", re.IGNORECASE | re.MULTILINE)
"""The host that a request names, in its target or its header."""


@dataclass(frozen=True, slots=True)
class Page:
    """The answer to a request.

    Attributes:
        status: the HTTP status.
        body: its content.
        content_type: the content's MIME type.
    """

    status: HTTPStatus
    body: bytes
    content_type: str = PLAIN


def text_page(status: HTTPStatus, *lines: str) -> Page:
    """A page of these lines of text."""
    return Page(status, "".join(f"{line}\n" for line in lines).encode())


MakePage = Callable[[], Awaitable[Page]]


def is_own(named: str) -> bool:
    """Whether a host, perhaps with a port, is this machine by an address or as `localhost`, which no DNS can change."""
    host = re.sub(r":\d*$", "", named).strip("[]")
    with suppress(ValueError):
        return bool(ip_address(host))
    return host.lower() in ("", "localhost")


class AdminPort:
    """Answers requests for pages on a listening socket, from `start` until `stop`.

    A socket that is open for this machine alone answers requests to an address or to `localhost`. A browser here could
    be led to it by a name of a stranger's, whose page then reads the answer (DNS rebinding).

    Args:
        listening: the socket; `stop` closes it.
        pages: the function that makes the page of each path. It runs in the event loop of this port's thread.
    """

    def __init__(self, listening: socket.socket, pages: Mapping[str, MakePage]) -> None:
        self._listening = listening
        self._pages = pages
        self._is_local = ip_address(listening.getsockname()[0]).is_loopback
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        self._reading: dict[asyncio.Task[None], None] = {}
        self._answering: dict[asyncio.Task[None], None] = {}
        self._thread = threading.Thread(target=self._run, name="outboxkit admin port", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._listening.settimeout(0)
        self._thread.start()

    def stop(self) -> None:
        """End every connection and close the socket. A thread that does not end is left behind: it is a daemon."""
        with suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._listening.close()
            self._loop.close()

    async def _serve(self) -> None:
        tasks = [asyncio.create_task(self._accept())]
        await self._ending.wait()
        tasks += [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._listening)
            except OSError:  # the client is gone again, or the process has no more file descriptors
                self._end_oldest()
                await asyncio.sleep(REQUEST_SECONDS / 10)
                continue
            if len(self._reading) + len(self._answering) >= MAX_CONNECTIONS:
                self._end_oldest()
            task = asyncio.create_task(self._converse(connection))
            self._reading[task] = None
            task.add_done_callback(partial(self._ended, connection))
            await asyncio.sleep(PAUSE_SECONDS)

    def _end_oldest(self) -> None:
        for task in self._reading or self._answering:
            task.cancel()
            return

    def _ended(self, connection: socket.socket, task: "asyncio.Task[None]") -> None:
        self._reading.pop(task, None)
        self._answering.pop(task, None)
        connection.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            logs.logger().error("the admin port failed at a request", exc_info=error)

    async def _converse(self, connection: socket.socket) -> None:
        """Read a request, answer it, and wait until the client closes: unread bytes would take the answer with them."""
        with suppress(OSError, TimeoutError):
            head = await self._read(connection)
            if head is None:
                return
            self._begin_to_answer()
            answer = await self._answer(head) if isinstance(head, bytes) else _written(head)
            async with asyncio.timeout(SEND_SECONDS):
                await self._loop.sock_sendall(connection, answer)
            connection.shutdown(socket.SHUT_WR)
            ignored = 0
            async with asyncio.timeout(CLOSE_SECONDS):
                while ignored < MAX_IGNORED_BYTES and (rest := await self._loop.sock_recv(connection, MAX_HEAD_BYTES)):
                    ignored += len(rest)

    def _begin_to_answer(self) -> None:
        task = asyncio.current_task()
        if task is not None and task in self._reading:
            del self._reading[task]
            self._answering[task] = None

    async def _read(self, connection: socket.socket) -> bytes | Page | None:
        """A request's head; or the page for one that cannot be read; None if the client has closed."""
        head = b""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                while _END not in head:
                    received = await self._loop.sock_recv(connection, MAX_HEAD_BYTES)
                    head += received
                    if not head:
                        return None
                    if not received or not head[:1].isalpha():
                        return text_page(HTTPStatus.BAD_REQUEST, "an HTTP/1.1 request is accepted")
                    if len(head) > MAX_HEAD_BYTES and head.find(_END, 0, MAX_HEAD_BYTES) < 0:
                        larger = f"a head of at most {MAX_HEAD_BYTES} bytes is accepted"
                        return text_page(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, larger)
        except TimeoutError:
            return text_page(HTTPStatus.REQUEST_TIMEOUT, f"no whole request came within {REQUEST_SECONDS:g} s")
        return head

    async def _answer(self, head: bytes) -> bytes:
        match = _REQUEST.fullmatch(head.partition(b"\r\n")[0])
        if match is None:
            return _written(text_page(HTTPStatus.BAD_REQUEST, "an HTTP/1.1 request is accepted"))
        method, path = (part.decode("ascii") for part in match.groups())
        make = self._pages.get(path)
        if self._is_local and not all(is_own(named.decode("latin-1")) for named in _NAMED.findall(head)):
            page = text_page(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this port is open for its own machine alone: localhost or an IP address is accepted as the Host",
            )
        elif make is None:
            page = text_page(HTTPStatus.NOT_FOUND, f"there are: {', '.join(self._pages)}")
        elif method not in ("GET", "HEAD"):
            page = text_page(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD are accepted")
        else:
            page = await _page_of(make)
        return _written(page, without_body=method == "HEAD")


async def _page_of(make: MakePage) -> Page:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await make()
    except TimeoutError:
        return text_page(HTTPStatus.SERVICE_UNAVAILABLE, f"the page was not made within {ANSWER_SECONDS:g} s")
    except Exception as error:  # noqa: BLE001 - a client hears of it, and the port goes on
        logs.logger().error("the admin port could not make a page", exc_info=error)
        return text_page(HTTPStatus.INTERNAL_SERVER_ERROR, "an error that nobody expected: the log has it")


def _written(page: Page, *, without_body: bool = False) -> bytes:
    """The bytes of an answer. RFC 9110 asks for the length of the body even if HEAD leaves it out."""
    lines = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}",
        f"Date: {formatdate(usegmt=True)}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        *(("Allow: GET, HEAD",) if page.status is HTTPStatus.METHOD_NOT_ALLOWED else ()),
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    )
    head = "\r\n".join(lines).encode("ascii") + _END
    return head if without_body else head + page.body
