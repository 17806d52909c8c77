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
from tests.support.admin_client import connect, get, parsed, read, send
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


def test_head_gets_the_same_head_alone(address: ListenAddress):
    given, alone = get(address, "/hello"), get(address, "/hello", method="HEAD")
    assert (alone.status, alone.body) == (200, b"")
    assert alone.headers | {"Date": ""} == given.headers | {"Date": ""}


@pytest.mark.parametrize(
    "target", ["/hello?a=b", "http://127.0.0.1:9464/hello", "/hello?", "/hello?x=/other"], ids=lambda target: target
)
def test_a_query_and_a_host_in_the_target_change_nothing(address: ListenAddress, target: str):
    assert get(address, target).status == 200


@pytest.mark.parametrize("host", ["localhost:9464", "127.0.0.1", "[::1]:9464", "10.0.0.7:80", ""])
def test_an_address_is_answered(address: ListenAddress, host: str):
    assert get(address, "/hello", host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9464", "127.0.0.1.evil.example", "localhost.evil"])
def test_a_page_that_came_under_another_name_reads_nothing(address: ListenAddress, host: str):
    """A browser on this machine can be led here by a stranger's name (DNS rebinding)."""
    for answer in (get(address, "/hello", host=host), get(address, f"http://{host}/hello")):
        assert (answer.status, b"hello" in answer.body) == (421, False)


def test_a_port_that_is_open_to_others_answers_under_every_name():
    made = AdminPort(socket.create_server(("0.0.0.0", 0)), {"/hello": hello})
    made.start()
    address = ListenAddress("127.0.0.1", made.server_address[1])
    assert get(address, "/hello", host="relay.shop.svc:9464").status == 200
    made.stop()


def test_an_old_client_is_answered(address: ListenAddress):
    assert parsed(send(address, b"GET /hello HTTP/1.0\r\n\r\n")).status == 200


@pytest.mark.parametrize("path", ["/", "/hello/", "/Hello", "/hell%6F", "/..%2fhello"])
def test_an_unknown_path_is_told_what_there_is(address: ListenAddress, path: str):
    answer = get(address, path)
    assert (answer.status, answer.lines) == (404, ["there are: /hello, /large, /never, /broken"])


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


def test_a_request_may_come_in_pieces(address: ListenAddress):
    with connect(address) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in REQUEST:
            client.sendall(bytes([byte]))
        assert parsed(read(client)).body == b"hello\n"


def test_of_requests_in_a_row_the_first_one_is_answered(address: ListenAddress):
    answer = send(address, REQUEST * 20)
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert parsed(answer).body == b"hello\n"


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


def test_one_that_takes_its_answer_gets_all_of_a_large_page(address: ListenAddress):
    assert get(address, "/large").body == LARGE


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
