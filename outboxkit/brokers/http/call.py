"""One request, and how far it came."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

import httpx

from outboxkit.brokers.http.lanes import Lost, Unreached
from outboxkit.brokers.http.verdict import Response

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
