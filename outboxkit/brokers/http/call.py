"""Call: one HTTP request with its time limit, and the redaction of secrets in texts about it."""

import asyncio
import base64
import html
import re
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from typing import cast
from urllib.parse import unquote_to_bytes

import httpx

from outboxkit.brokers.http.order import Lost, Unreached
from outboxkit.brokers.http.verdict import HttpResponse
from outboxkit.errors.failures import text_of

HIDDEN = "***"
RUN = 8
"""Any so many consecutive characters of a secret are hidden, because an echo of it may be cut at either end."""
SHORTEST = 4
"""Parts of a URL that are shorter, such as `v1` or `7`, are hidden only as a piece of its path or query."""
ROUNDS = 3
"""The number of escapes that are undone: `&amp;#x2F;` is a slash, escaped twice."""
LONGEST = 8 * 1024
"""Bytes of a text that are examined. The rest is cut off."""
_TAIL = 12 * RUN
"""The last bytes of a cut text, which are cut off as well: a secret that begins there might not be recognized."""

_ESCAPE = re.compile(
    rb"%(?:25)*[0-9a-f]{2}|&#(?:[0-9]{1,8}|x[0-9a-f]{1,8});?|&[0-9a-z]{1,31};|\\u[0-9a-f]{4}|\\x[0-9a-f]{2}|\\.|\+",
    re.IGNORECASE,
)
_BLANKS = b"abfnrtv"


class Redaction:
    """A filter that hides secrets in texts, even if percent-encoded or escaped as in HTML, JSON or source code.

    It ignores case. A secret of fewer than `RUN` characters is hidden only as a whole word.

    Args:
        secrets: as they are sent.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        encoded = {secret.encode(errors="surrogatepass") for secret in secrets if secret}
        plain = {_unescape(each)[0] for each in encoded}
        decoded = {unquote_to_bytes(each) for each in encoded}  # a + in it is a plus sign, not a space
        long = [each for each in encoded | plain | decoded if len(each) >= SHORTEST]
        base64s = {part for each in long for part in _base64s(each)}
        base64s = {_unescape(each)[0] for each in base64s}  # like the texts, in which a + may stand for a space
        folded = {each.lower() for each in plain | base64s}
        self._words = [each for each in folded if len(each) < RUN]
        self._runs = {each[start : start + RUN] for each in folded for start in range(len(each) - RUN + 1)}

    def __call__(self, text: str) -> str:
        """The beginning of the text without the secrets."""
        text_bytes = text.encode(errors="replace")
        excerpt = text_bytes[:LONGEST]
        plain, origins = _unescape(excerpt)
        mask = bytearray(len(excerpt) + 1)  # 1 for each byte that is part of a secret
        for start, end in self._secrets_in(plain.lower()):
            mask[origins[start] : origins[end]] = b"\1" * (origins[end] - origins[start])
        end = len(excerpt) if excerpt == text_bytes else LONGEST - _TAIL
        pieces = re.finditer(rb"\x01+|\x00+", mask[:end])
        return "".join(
            HIDDEN if each[0][0] else excerpt[each.start() : each.end()].decode(errors="replace") for each in pieces
        )

    def _secrets_in(self, plain: bytes) -> Iterator[tuple[int, int]]:
        """The start and the end of each secret in an unescaped text."""
        for start in range(len(plain) - RUN + 1) if self._runs else ():
            if plain[start : start + RUN] in self._runs:
                yield start, start + RUN
        for word in self._words:
            start = plain.find(word)
            while start >= 0:
                end = start + len(word)
                if not plain[max(start - 1, 0) : start].isalnum() and not plain[end : end + 1].isalnum():
                    yield start, end
                start = plain.find(word, end)


def _base64s(secret: bytes) -> Iterator[bytes]:
    """The secret in both alphabets of base64, also as a part of a longer text: it may begin at each of three places."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            text = encode(bytes(before) + secret).rstrip(b"=")
            yield text if before == 0 else text[before + 1 :]


def parts_of(path: str, query: str) -> list[str]:
    """The secret parts of a URL: path and query, and every part of them that may be a secret by itself."""
    names_and_values = [text for pair in re.split("[&;]", query) for text in pair.partition("=")[::2]]
    parts = [path, query, f"{path}?{query}", *path.split("/"), *names_and_values]
    return [each for each in parts if len(each) >= SHORTEST]


def _unescape(text: bytes) -> tuple[bytes, list[int]]:
    """The text without escapes, and the original offset of each of its bytes, with one more for the end."""
    origins = list(range(len(text) + 1))
    for _ in range(ROUNDS):
        plain, sources, done = bytearray(), list[int](), 0
        for escape in _ESCAPE.finditer(text):
            meaning = _meaning(escape[0].lower())
            plain += text[done : escape.start()] + meaning
            sources += origins[done : escape.start()] + [origins[escape.start()]] * len(meaning)
            done = escape.end()
        text, origins = bytes(plain + text[done:]), sources + origins[done:]
    return text, origins


def _meaning(escape: bytes) -> bytes:
    match escape[:1], escape[1:2]:
        case b"&", _:
            return html.unescape(escape.decode()).encode(errors="surrogatepass")
        case b"+", _:
            return b" "
        case (b"%", _) | (b"\\", b"x") if len(escape) > 2:
            return bytes.fromhex(escape[-2:].decode())
        case b"\\", b"u" if len(escape) > 2:
            return chr(int(escape[2:], 16)).encode(errors="surrogatepass")
        case _, other:
            return b" " if other in _BLANKS else other


READ_OF_ERRORS = 64 * 1024
"""Bytes of an error response's body that are read, so that the connection can be reused. Fewer are shown."""
_GONE = (httpx.NetworkError, httpx.RemoteProtocolError)


class Progress:
    """The progress of a request, as the connection pool reports it.

    Attributes:
        is_new_connection: a connection is opened for the request.
        has_left: the first bytes of the request may have been sent.
    """

    def __init__(self) -> None:
        self.is_new_connection = False
        self.has_left = False

    async def trace(self, event: str, _: object) -> None:
        """Receive one event of httpcore's `trace` extension."""
        if event == "connection.connect_tcp.started":
            self.is_new_connection = True
        elif event == "http11.send_request_headers.started":
            self.has_left = True


class Call:
    """The request of one message and its response.

    Args:
        transport: the connection pool.
        request: the request to send.
        seconds: the limit for everything, from looking up the host to the end of the response.
        limit: bytes of a 2xx response's body.
    """

    def __init__(
        self, transport: httpx.AsyncBaseTransport, request: httpx.Request, *, seconds: float, limit: int
    ) -> None:
        self._transport = transport
        self._request = request
        self._seconds = seconds
        self._limit = limit
        self._progress = Progress()
        self._response: httpx.Response | None = None
        self._body = bytearray()
        self._is_cut = False
        # Opening takes two steps, TCP and TLS. httpx must end each by itself: if cancelled, it leaks a socket.
        request.extensions = {"timeout": httpx.Timeout(seconds, connect=seconds / 2).as_dict()}
        self._trace()

    async def outcome(self) -> HttpResponse | Lost | Unreached:
        """Send the request and read the response, to its end or to the limit.

        Raises:
            httpx.LocalProtocolError: the request cannot be written.
        """
        trouble, may_be_the_messages_fault = None, False
        try:
            async with asyncio.timeout(self._seconds):
                await self._read(await self._send())
        except (TimeoutError, httpx.TimeoutException):
            trouble = f"time was up after {self._seconds / (1 if self._progress.has_left else 2):g} s"
        except httpx.LocalProtocolError:
            raise
        except (Exception, BaseExceptionGroup, asyncio.CancelledError) as error:
            if must_propagate(error):
                raise
            trouble = self._trouble(error)
            may_be_the_messages_fault = not isinstance(error, httpx.TransportError | OSError)
        finally:
            await self._close()
        if self._response is not None:
            headers = {name.lower(): value for name, value in self._response.headers.items()}
            return HttpResponse(self._response.status_code, headers, bytes(self._body), self._is_cut, trouble)
        if self._progress.has_left or may_be_the_messages_fault:
            return Lost(f"no answer came: {trouble}")
        return Unreached(trouble or "there is no connection")

    def _trouble(self, error: BaseException) -> str:
        if not isinstance(error, httpx.TransportError | OSError):
            return f"the client failed ({type(error).__name__}: {reason_of(error)})"
        return f"the connection was lost ({reason_of(error)})" if self._progress.has_left else reason_of(error)

    async def _close(self) -> None:
        if self._response is not None:
            try:
                await self._response.aclose()
            except (Exception, BaseExceptionGroup, asyncio.CancelledError) as error:
                if must_propagate(error):
                    raise

    async def _send(self) -> httpx.Response:
        """Send the request. Send it again if a kept-alive connection turns out to be closed.

        The server may close it just when the request is sent, which looks the same as after a request that it handled.
        The second request is harmless either way, because it has the same idempotency key.
        """
        try:
            self._response = await self._transport.handle_async_request(self._request)
        except _GONE:
            if self._progress.is_new_connection or not self._progress.has_left:
                raise
            self._progress = Progress()
            self._trace()
            self._response = await self._transport.handle_async_request(self._request)
        return self._response

    async def _read(self, response: httpx.Response) -> None:
        limit = self._limit if response.is_success else READ_OF_ERRORS
        parts = cast("AsyncGenerator[bytes, None]", response.aiter_raw())
        async with aclosing(parts):
            async for part in parts:
                self._body += part
                if len(self._body) > limit:
                    del self._body[limit:]
                    self._is_cut = True
                    return

    def _trace(self) -> None:
        self._request.extensions["trace"] = self._progress.trace


def must_propagate(error: BaseException) -> bool:
    """Whether the error cancels this task or ends the process. The client library may also cancel itself."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup((KeyboardInterrupt, SystemExit)) is not None
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def reason_of(error: BaseException) -> str:
    """One line about an error of httpx: that of the operating system if there is one below it."""
    deepest, below, seen = error, _below(error), {id(error)}
    while below is not None and id(below) not in seen:
        seen.add(id(below))
        if isinstance(below, OSError):
            deepest = below
        below = _below(below)
    text = " ".join(text_of(deepest).split())
    return text or type(deepest).__name__


def _below(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0]
    return error.__cause__ or error.__context__
