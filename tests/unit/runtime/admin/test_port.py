"""The HTTP server of the admin port on a real socket: requests, and what strangers send in their place."""

import resource
import socket
import struct
import threading
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from structlog.testing import capture_logs

from outboxkit.runtime.admin import port as module
from outboxkit.runtime.admin.port import MAX_CONNECTIONS, AdminPort, Page, text_page
from outboxkit.runtime.urls import ListenAddress
from tests.support.admin_client import connect, get, read, send
from tests.support.night import by_night

REQUEST = b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = b"x" * 32 * 1024 * 1024
"""More than the buffers of two sockets hold."""
CONNECTIONS = by_night(1000, else_=200)
END = threading.Event()


def hello() -> Page:
    return text_page(HTTPStatus.OK, "hello")


def large() -> Page:
    return Page(HTTPStatus.OK, LARGE, "application/octet-stream")


def never() -> Page:
    END.wait()
    return hello()


def broken() -> Page:
    raise ValueError("SECRET")


@pytest.fixture
def port() -> Iterator[AdminPort]:
    listening = socket.create_server(("127.0.0.1", 0), backlog=module.BACKLOG)
    made = AdminPort(listening, {"/hello": hello, "/large": large, "/never": never, "/broken": broken})
    made.start()
    END.clear()
    yield made
    END.set()
    made.stop()
    assert not made._thread.is_alive()


@pytest.fixture
def address(port: AdminPort) -> ListenAddress:
    return ListenAddress(*port.server_address)


def test_a_page_is_given_and_the_connection_closed(address: ListenAddress):
    answer = get(address, "/hello")
    assert (answer.status, answer.body) == (200, b"hello\n")
    assert answer.headers["Content-Length"] == "6"
    assert answer.headers["Connection"] == "close"
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["Date"].endswith(" GMT")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
def test_another_method_is_refused(address: ListenAddress, method: str):
    answer = get(address, "/hello", method=method)
    assert answer.status == 501


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\r\n\r\n",
        b"hello there\r\n\r\n",
        b"GET hello HTTP/1.1\r\n\r\n",
        b"GET /hel lo HTTP/1.1\r\n\r\n",
        b"GET /h\xe9llo HTTP/1.1\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        bytes(range(256)) * 8,
    ],
    ids=lambda sent: repr(sent[:20]),
)
def test_garbage_harms_nobody(address: ListenAddress, request_: bytes):
    assert b"hello\n" not in half_closed(address, request_)
    assert get(address, "/hello").status == 200


def test_clients_that_go_away_harm_nobody(address: ListenAddress):
    with capture_logs() as said:
        for sent in (b"", b"GET", REQUEST):
            with connect(address) as client:
                client.sendall(sent)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        half_closed(address, b"GET /he")
        assert half_closed(address, b"") == b""
        assert get(address, "/hello").status == 200
    assert said == []


def half_closed(address: ListenAddress, sent: bytes) -> bytes:
    with connect(address) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        return read(client)


def test_a_client_that_sends_no_whole_request_is_let_go(address: ListenAddress, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module._Request, "timeout", 0.05)
    assert send(address, REQUEST[:-1]) == b""


def test_silent_connections_keep_nobody_out(address: ListenAddress):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    silent = [connect(address) for _ in range(CONNECTIONS)]
    try:
        assert get(address, "/hello").status == 200
        ended = [client for client in silent if _has_ended(client)]
        assert len(ended) >= CONNECTIONS - MAX_CONNECTIONS
    finally:
        for client in silent:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _has_ended(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_a_page_that_hangs_holds_up_no_other(address: ListenAddress):
    with connect(address) as hanging:
        hanging.sendall(b"GET /never HTTP/1.1\r\n\r\n")
        assert get(address, "/hello").status == 200


def test_requests_that_hang_make_room_for_others(address: ListenAddress):
    hanging = [connect(address) for _ in range(MAX_CONNECTIONS + 10)]
    try:
        for client in hanging:
            client.sendall(b"GET /never HTTP/1.1\r\n\r\n")
        assert get(address, "/hello").status == 200
    finally:
        for client in hanging:
            client.close()


def test_an_error_of_a_page_is_in_the_log_alone(address: ListenAddress):
    with capture_logs() as said:
        answer = get(address, "/broken")
    assert (answer.status, answer.lines) == (500, ["an error that nobody expected: the log has it"])
    assert [(line["event"], line["log_level"]) for line in said] == [("the admin port could not make a page", "error")]


def test_a_stop_ends_every_connection(port: AdminPort, address: ListenAddress):
    with connect(address) as silent, connect(address) as hanging:
        hanging.sendall(b"GET /never HTTP/1.1\r\n\r\n")
        assert get(address, "/hello").status == 200
        port.stop()
        assert (read(silent), read(hanging)) == (b"", b"")
    with pytest.raises(ConnectionRefusedError):
        connect(address)
    port.stop()  # again, it does nothing
