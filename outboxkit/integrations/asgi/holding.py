"""The application's answer, held back until it is whole."""

import asyncio
from collections.abc import Awaitable, Callable

from outboxkit.errors import ConfigurationError
from outboxkit.idempotency import Response
from outboxkit.integrations.asgi.messages import Message

_STREAM = b"text/event-stream"


class Exchange:
    """What the application sees of one request: the body that was read, and somebody who takes its whole answer.

    Args:
        body: of the request.
        limit: bytes of an answer's body.
        answered: called once, with the whole answer.
    """

    def __init__(self, body: bytes, limit: int, answered: Callable[[Response], Awaitable[None]]) -> None:
        self.refusal: ConfigurationError | None = None
        self._body: bytes | None = body
        self._limit = limit
        self._answered = answered
        self._start: Message | None = None
        self._held = bytearray()
        self._over = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether the application has answered."""
        return self._over.is_set()

    async def receive(self) -> Message:
        """The whole body; after that nothing until the answer is there, for a client that left does not end a run."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take a piece of the answer.

        Raises:
            ConfigurationError: the answer is a stream, or too large to be remembered.
        """
        if self.refusal is not None:
            raise self.refusal
        if self.is_over:
            return
        if message["type"] == "http.response.start":
            self._start = message
            self._held.clear()
            if any(name.lower() == b"content-type" and value.startswith(_STREAM) for name, value in _headers(message)):
                self._refuse("the answer is a stream of events, which cannot be remembered. Answer with the content as "
                             "a whole, or keep the path away from IdempotencyMiddleware by its `when`")  # fmt: skip
        elif message["type"] == "http.response.body":
            self._held += message.get("body", b"")
            if len(self._held) > self._limit:
                self._refuse(f"the answer has more than {self._limit} bytes, as many as max_response allows: raise it, "
                             "or answer with a link to the content")  # fmt: skip
            if not message.get("more_body", False):
                await self._end()

    async def _end(self) -> None:
        if self._start is None:
            raise RuntimeError("the application sent a body before http.response.start")
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in _headers(self._start))
        self._over.set()
        await self._answered(Response(self._start["status"], headers, bytes(self._held)))

    def _refuse(self, why: str) -> None:
        self.refusal = ConfigurationError(why)
        raise self.refusal


def _headers(start: Message) -> list[tuple[bytes, bytes]]:
    return [(bytes(name), bytes(value)) for name, value in start.get("headers", ())]
