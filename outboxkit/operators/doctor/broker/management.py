"""Management of RabbitMQ: its plugin's HTTP API, which is only read."""

import asyncio
import base64
import http.client
import ssl
from typing import Any, NamedTuple
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


class ApiAnswer(NamedTuple):
    """An answer of the API: its status, and the decoded JSON; None if there is none."""

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
    """

    def __init__(
        self, url: str, user: tuple[str, str], *, timeout: float, verify: bool = True, cafile: str | None = None
    ) -> None:
        self._parts, self.address, self._timeout = urlsplit(url), urls.shown(url), timeout
        parts = self._parts
        name, password = user if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
        self.user, self._secret = name, base64.b64encode(f"{name}:{password}".encode()).decode()
        self._verify, self._cafile = verify, cafile

    async def get(self, *path: str) -> ApiAnswer:
        """The answer to a GET of these parts of a path behind `/api`.

        Raises:
            BrokerUnavailable: nothing answers there in time, or something that is not this API.
        """
        target = f"{self._parts.path.rstrip('/')}/api/{'/'.join(quote(part, safe='') for part in path)}"
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.to_thread(self._exchange, target)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = printable(str(error) or type(error).__name__)
            raise BrokerUnavailable(f"the management API at {self.address} does not answer: {reason}") from error

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "http":
            return http.client.HTTPConnection(host, port or PORT, timeout=self._timeout)
        context = ssl.create_default_context(cafile=self._cafile)
        if not self._verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection(host, port or TLS_PORT, timeout=self._timeout, context=context)

    def _exchange(self, target: str) -> ApiAnswer:
        """Send the request and read the answer. It follows no redirect: the password is for this host."""
        connection = self._connection()
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
        try:
            return ApiAnswer(response.status, msgspec.json.decode(body))
        except msgspec.DecodeError:
            return ApiAnswer(response.status, None)
