"""Management of RabbitMQ: its plugin's HTTP API, which is only read."""

import asyncio
import base64
import http.client
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec

from outboxkit.errors import BrokerUnavailable
from outboxkit.errors.failures import printable
from outboxkit.runtime import urls

PORT, TLS_PORT = 15672, 15671
"""The ports on which the plugin listens if nobody says otherwise."""
LARGEST = 8 * 1024 * 1024
"""The maximum bytes of an answer that is read."""
UNAUTHORIZED = (401, 403)


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """An answer of the API.

    Attributes:
        status: the HTTP status.
        content: the decoded JSON; None if there is none.
    """

    status: int
    content: Any


class Management:
    """The HTTP API of RabbitMQ's management plugin, on one node.

    Args:
        url: `http://` or `https://`, with a path if the plugin has a prefix.
        user: its name and its password, unless the URL has them.
        timeout: seconds for each answer.
        verify: whether the certificate of an `https://` URL is verified.
        cafile: the certificates to trust; None means those of the system.

    Attributes:
        address: the URL without user and password.
        user: the name of the user.
        is_plain: whether the password travels unencrypted.
        host: the name of the host.
    """

    def __init__(
        self,
        url: str,
        user: tuple[str, str],
        *,
        timeout: float,
        verify: bool = True,
        cafile: str | None = None,
    ) -> None:
        parts = urlsplit(url)
        self.host, self.is_plain, self.address = parts.hostname or "", parts.scheme == "http", urls.shown(url)
        self._port = parts.port or (PORT if self.is_plain else TLS_PORT)
        self._prefix, self._timeout = parts.path.rstrip("/"), timeout
        name, password = user if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
        self.user = name
        self._secret = base64.b64encode(f"{name}:{password}".encode()).decode()
        self._verify, self._cafile = verify, cafile

    async def get(self, *path: str) -> ApiAnswer:
        """The answer to a GET of these parts of a path behind `/api`.

        Raises:
            BrokerUnavailable: nothing answers there in time, or something that is not this API.
        """
        target = f"{self._prefix}/api/{'/'.join(quote(part, safe='') for part in path)}"
        try:
            connection = self._connection()
            asking = asyncio.create_task(asyncio.to_thread(self._exchange, connection, target))
            asking.add_done_callback(_retrieve)
            try:
                await asyncio.wait((asking,), timeout=self._timeout)
            finally:  # also if it was cancelled
                _interrupt(connection)
            if not asking.done():
                raise TimeoutError("no answer in time")
            return asking.result()
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = printable(str(error) or type(error).__name__)
            raise BrokerUnavailable(f"the management API at {self.address} does not answer: {reason}") from error

    def _connection(self) -> http.client.HTTPConnection:
        if self.is_plain:
            return http.client.HTTPConnection(self.host, self._port, timeout=self._timeout)
        context = ssl.create_default_context(cafile=self._cafile)
        if not self._verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection(self.host, self._port, timeout=self._timeout, context=context)

    def _exchange(self, connection: http.client.HTTPConnection, target: str) -> ApiAnswer:
        """Send the request and read the answer. It follows no redirect: the password is for this host."""
        try:
            headers = {"Authorization": f"Basic {self._secret}", "Accept": "application/json"}
            connection.request("GET", target, headers=headers)
            response = connection.getresponse()
            body = response.read(LARGEST + 1)
        finally:
            connection.close()
        if len(body) > LARGEST:
            raise ValueError(f"the answer is larger than {LARGEST} bytes")
        if response.length:
            raise ValueError("the answer was cut off")
        return ApiAnswer(response.status, _decoded(body))


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None


def _retrieve(task: "asyncio.Task[ApiAnswer]") -> None:
    """Mark the error of a question as seen, in case nobody waits for its answer any more."""
    if not task.cancelled():
        task.exception()


def _interrupt(connection: http.client.HTTPConnection) -> None:
    """Wake the thread that waits for this connection."""
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)
