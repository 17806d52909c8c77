"""The HTTP server of the admin port, in threads: it answers even if the worker's event loop hangs."""

import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from outboxkit.runtime import logs

MAX_CONNECTIONS = 64
"""With so many open connections, a further one ends the oldest."""
BACKLOG = 1024
REQUEST_SECONDS = 5.0
"""The time that a client has for each piece of its request, and to take each piece of the answer."""
STOP_SECONDS = 0.2
"""The time after which the accepting thread sees that it should end."""

PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """The answer to a request."""

    status: HTTPStatus
    body: bytes
    content_type: str = PLAIN


def text_page(status: HTTPStatus, *lines: str) -> Page:
    """A page of these lines of text."""
    return Page(status, "".join(f"{line}\n" for line in lines).encode())


def verdict(state: str, *lines: str, failed: bool) -> Page:
    """A page of a state and its reasons: 200, or 503 if it has failed."""
    if failed:
        return text_page(HTTPStatus.SERVICE_UNAVAILABLE, f"not {state}", *lines)
    return text_page(HTTPStatus.OK, state, *lines)


MakePage = Callable[[], Page]


class AdminPort(ThreadingHTTPServer):
    """Answers requests for pages on a listening socket, from `start` until `stop`, which closes it.

    The page of each path is made in the request's thread.
    """

    daemon_threads = True

    def __init__(self, listening: socket.socket, pages: Mapping[str, MakePage]) -> None:
        super().__init__(listening.getsockname()[:2], _Request, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.pages = pages
        self._open: OrderedDict[Any, None] = OrderedDict()
        self._thread = threading.Thread(
            target=self.serve_forever, args=(STOP_SECONDS,), name="outboxkit admin port", daemon=True
        )

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Accept no more, end every connection and close the socket."""
        self.shutdown()
        self.server_close()
        while self._open:
            self._end_oldest()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Have a thread answer this connection. Of too many the oldest is ended."""
        if len(self._open) >= MAX_CONNECTIONS:
            self._end_oldest()
        self._open[request] = None
        super().process_request(request, client_address)

    def get_request(self) -> Any:
        """Accept a connection."""
        try:
            return super().get_request()
        except OSError:  # the client is gone again, or the process has no more file descriptors
            self._end_oldest()
            time.sleep(STOP_SECONDS)
            raise

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class gives them
        """Log an error that ended a request, unless the client has gone away."""
        if not isinstance(error := sys.exception(), OSError):
            logs.logger().error("the admin port failed at a request", exc_info=error)

    def _end_oldest(self) -> None:
        with suppress(KeyError, OSError):
            connection, _ = self._open.popitem(last=False)
            connection.shutdown(socket.SHUT_RDWR)


class _Request(BaseHTTPRequestHandler):
    """One request on a connection, which is closed after its answer."""

    server: AdminPort
    timeout = REQUEST_SECONDS
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "outboxkit", ""

    def do_GET(self) -> None:
        """Send a page."""
        page = self._page()
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    do_HEAD = do_GET  # noqa: N815

    def _page(self) -> Page:
        make = self.server.pages.get(self.path.partition("?")[0])
        if make is None:
            return text_page(HTTPStatus.NOT_FOUND, f"there are: {', '.join(self.server.pages)}")
        try:
            return make()
        except Exception as error:  # noqa: BLE001 - a client hears of it, and the port goes on
            logs.logger().error("the admin port could not make a page", exc_info=error)
            return text_page(HTTPStatus.INTERNAL_SERVER_ERROR, "an error that nobody expected: the log has it")

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Log nothing: a probe asks every few seconds."""
