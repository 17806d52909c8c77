"""The outside world of handlers: an HTTP server and a mail server, each in a thread."""

import http.server
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Web(http.server.BaseHTTPRequestHandler):
    """Answers every request with 200."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    do_POST = do_PUT = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Mail(socketserver.StreamRequestHandler):
    """Takes every mail."""

    def handle(self) -> None:
        self.wfile.write(b"220 ready\r\n")
        is_text = False
        for line in self.rfile:
            command = line.strip().upper()
            if is_text and command != b".":
                continue
            is_text = command == b"DATA"
            self.wfile.write({b"DATA": b"354 go on\r\n", b"QUIT": b"221 bye\r\n"}.get(command, b"250 ok\r\n"))
            if command == b"QUIT":
                return


class MailServer(socketserver.ThreadingTCPServer):
    daemon_threads = True


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[int]:
    """The port of a server that runs in a thread."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def web() -> Iterator[int]:
    """The port of an HTTP server."""
    with serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web)) as port:
        yield port


@contextmanager
def mail() -> Iterator[int]:
    """The port of a mail server."""
    with serving(MailServer(("127.0.0.1", 0), Mail)) as port:
        yield port
