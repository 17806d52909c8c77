"""One request, how far it came, and the error text of it without secrets."""

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
from outboxkit.brokers.http.verdict import Response

HIDDEN = "***"
RUN = 8
"""So many characters in a row of a secret are hidden wherever they are: an echo may be cut at either end."""
SHORTEST = 4
"""A shorter part of a URL, such as `v1` or `7`, is hidden within its path or query only."""
ROUNDS = 3
"""How often a character may be escaped: `&amp;#x2F;` is a slash, escaped twice."""
LONGEST = 8 * 1024
"""Bytes of a text that are looked at. What is behind them is dropped."""
_TAIL = 12 * RUN
"""A secret that begins so close to the end of these bytes may have been cut beyond recognition."""

_ESCAPE = re.compile(rb"%(?:25)*[0-9a-f]{2}|&#?[0-9a-z]{1,31};|\\u[0-9a-f]{4}|\\x[0-9a-f]{2}|\\.|\+", re.IGNORECASE)
_BLANKS = b"abfnrtv"


class Redaction:
    """Hides secrets in texts, also where they are percent-encoded or escaped as in HTML, JSON or source code.

    Case makes no difference. A secret of fewer than `RUN` characters is hidden where it is a word of its own.

    Args:
        secrets: as they are sent.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        sent = {secret.encode(errors="surrogatepass") for secret in secrets if secret}
        plain = {_unescaped(each)[0] for each in sent}
        decoded = {unquote_to_bytes(each) for each in sent}  # a + in it is a plus sign, not a space
        long = [each for each in sent | plain | decoded if len(each) >= SHORTEST]
        coded = {code(each).rstrip(b"=") for each in long for code in (base64.b64encode, base64.urlsafe_b64encode)}
        coded = {_unescaped(each)[0] for each in coded}  # as what is looked at will be: a + may stand for a space
        folded = {each.lower() for each in plain | coded}
        self._words = [each for each in folded if len(each) < RUN]
        self._runs = {each[at : at + RUN] for each in folded for at in range(len(each) - RUN + 1)}

    def __call__(self, text: str) -> str:
        """The beginning of the text without the secrets."""
        whole = text.encode(errors="replace")
        shown = whole[:LONGEST]
        plain, origins = _unescaped(shown)
        secret = bytearray(len(shown) + 1)  # 1 for each byte that is part of a secret
        for start, end in self._places(plain.lower()):
            secret[origins[start] : origins[end]] = b"\1" * (origins[end] - origins[start])
        end = len(shown) if shown == whole else LONGEST - _TAIL
        pieces = re.finditer(rb"\x01+|\x00+", secret[:end])
        return "".join(
            HIDDEN if each[0][0] else shown[each.start() : each.end()].decode(errors="replace") for each in pieces
        )

    def _places(self, plain: bytes) -> Iterator[tuple[int, int]]:
        """Where secrets are: begin and end."""
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


def parts_of(path: str, query: str) -> list[str]:
    """What is secret of a URL: path and query, and every part of them that may be a secret by itself."""
    named = [text for pair in re.split("[&;]", query) for text in pair.partition("=")[::2]]
    found = [path, query, f"{path}?{query}", *path.split("/"), *named]
    return [each for each in found if len(each) >= SHORTEST]


def _unescaped(text: bytes) -> tuple[bytes, list[int]]:
    """The text without escapes, and where each of its bytes comes from; one more for the end."""
    origins = list(range(len(text) + 1))
    for _ in range(ROUNDS):
        made, sources, done = bytearray(), list[int](), 0
        for found in _ESCAPE.finditer(text):
            meaning = _meaning(found[0].lower())
            made += text[done : found.start()] + meaning
            sources += origins[done : found.start()] + [origins[found.start()]] * len(meaning)
            done = found.end()
        text, origins = bytes(made + text[done:]), sources + origins[done:]
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
"""Bytes of an error's body that are read, so that the connection can be used again; fewer are shown."""
_GONE = (httpx.NetworkError, httpx.RemoteProtocolError)


class Course:
    """How far a request came, as the connection pool tells while it happens."""

    def __init__(self) -> None:
        self.is_anew = False
        self.has_left = False

    async def note(self, event: str, _: object) -> None:
        """Hear of one event: httpcore's `trace` extension."""
        if event == "connection.connect_tcp.started":
            self.is_anew = True
        elif event == "http11.send_request_headers.started":
            self.has_left = True


class Call:
    """One message's request.

    Args:
        transport: has the connections.
        request: what is sent.
        seconds: for everything, from looking up the host to the end of the answer.
        limit: bytes of a 2xx answer.
    """

    def __init__(
        self, transport: httpx.AsyncBaseTransport, request: httpx.Request, *, seconds: float, limit: int
    ) -> None:
        self._transport = transport
        self._request = request
        self._seconds = seconds
        self._limit = limit
        self._course = Course()
        self._response: httpx.Response | None = None
        self._body = bytearray()
        self._is_cut = False
        # Opening is two steps, TCP and TLS. httpx must end each by itself: cancelled from outside it leaves a socket.
        request.extensions = {"timeout": httpx.Timeout(seconds, connect=seconds / 2).as_dict()}
        self._trace()

    async def outcome(self) -> Response | Lost | Unreached:
        """Send it, and hear the response to its end or to the limit.

        Raises:
            httpx.LocalProtocolError: it cannot be written.
        """
        trouble, may_be_the_messages = None, False
        try:
            async with asyncio.timeout(self._seconds):
                await self._read(await self._send())
        except (TimeoutError, httpx.TimeoutException):
            trouble = f"time was up after {self._seconds / (1 if self._course.has_left else 2):g} s"
        except httpx.LocalProtocolError:
            raise
        except (Exception, BaseExceptionGroup, asyncio.CancelledError) as error:
            if is_for_us(error):
                raise
            trouble = self._trouble(error)
            may_be_the_messages = not isinstance(error, httpx.TransportError | OSError)
        finally:
            await self._close()
        if self._response is not None:
            headers = {name.lower(): value for name, value in self._response.headers.items()}
            return Response(self._response.status_code, headers, bytes(self._body), self._is_cut, trouble)
        if self._course.has_left or may_be_the_messages:
            return Lost(f"no answer came: {trouble}")
        return Unreached(trouble or "there is no connection")

    def _trouble(self, error: BaseException) -> str:
        if not isinstance(error, httpx.TransportError | OSError):
            return f"the client failed ({type(error).__name__}: {reason_of(error)})"
        return f"the connection was lost ({reason_of(error)})" if self._course.has_left else reason_of(error)

    async def _close(self) -> None:
        if self._response is not None:
            try:
                await self._response.aclose()
            except (Exception, BaseExceptionGroup, asyncio.CancelledError) as error:
                if is_for_us(error):
                    raise

    async def _send(self) -> httpx.Response:
        """Send, and once more where a connection that was kept open turns out to have ended meanwhile.

        The server may close it at the moment at which the request leaves. Nothing tells that from a request that was
        handled, so this is a repeated one: harmless, for it has the same idempotency key.
        """
        try:
            self._response = await self._transport.handle_async_request(self._request)
        except _GONE:
            if self._course.is_anew or not self._course.has_left:
                raise
            self._course = Course()
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
        self._request.extensions["trace"] = self._course.note


def is_for_us(error: BaseException) -> bool:
    """Whether somebody cancels this task or ends the process. A client library may also be cancelled by itself."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup((KeyboardInterrupt, SystemExit)) is not None
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def reason_of(error: BaseException) -> str:
    """What the operating system has said, if an error of httpx comes from that; else the error, in a few words."""
    found, below, seen = error, _below(error), {id(error)}
    while below is not None and id(below) not in seen:
        seen.add(id(below))
        if isinstance(below, OSError):
            found = below
        below = _below(below)
    try:
        text = " ".join(str(found).split())
    except Exception:  # noqa: BLE001 - an exception may fail at its own text
        text = ""
    return text or type(found).__name__


def _below(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0]
    return error.__cause__ or error.__context__
