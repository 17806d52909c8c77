"""Call: one HTTP request with its time limit, and the reason for which it failed."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

import httpx

from outboxkit.brokers.http.order import Lost, Unreached
from outboxkit.brokers.http.verdict import HttpResponse
from outboxkit.errors.failures import printable, text_of
from outboxkit.runtime.outage import is_cancelled

READ_OF_ERRORS = 64 * 1024
"""Bytes of an error response's body that are read, so that the connection can be reused."""
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
        self._was_sent = False
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
        return Unreached(trouble or "there is no connection", self._was_sent)

    def _trouble(self, error: BaseException) -> str:
        if not isinstance(error, httpx.TransportError | OSError):
            return f"the client failed: {type(error).__name__}"
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
            self._progress, self._was_sent = Progress(), True
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
    return isinstance(error, asyncio.CancelledError) and is_cancelled()


def reason_of(error: BaseException) -> str:
    """One line about an error of httpx: that of the operating system if there is one below it.

    What the destination has sent is left out: h11 repeats it behind a colon, and it may echo a secret of the request.
    """
    deepest, below, seen = error, _below(error), {id(error)}
    while below is not None and id(below) not in seen:
        seen.add(id(below))
        if isinstance(below, OSError):
            deepest = below
        below = _below(below)
    text = " ".join(text_of(deepest).split())
    if isinstance(deepest, httpx.ProtocolError):
        text = text.partition(":")[0]
    return printable(text) or type(deepest).__name__


def _below(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0]
    return error.__cause__ or error.__context__
