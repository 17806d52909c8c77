"""The Flask integration behind a real server: a body that is too long is not read."""

import socket

import httpx
import pytest

from tests.integration.http.flask_shop import serving


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("framing", "sent"),
    [
        ("Content-Length: 1073741824", b""),
        ("Transfer-Encoding: chunked", (b"10000\r\n" + b"x" * 65_536 + b"\r\n") * 17),
    ],
)
def test_a_body_beyond_the_limit_is_not_read(database_url: str, framing: str, sent: bytes):
    """The rest of it never comes, and the answer does."""
    lines = ["POST /orders HTTP/1.1", "Host: x", framing, "Idempotency-Key: k", "", ""]
    with serving(database_url) as (shop, url):
        server = httpx.URL(url)
        with socket.create_connection((server.host, server.port), 30) as raw:
            raw.sendall("\r\n".join(lines).encode() + sent)
            answer = raw.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"\r\nContent-Type: application/problem+json\r\n" in answer
        assert shop.calls == 0
