"""One run of a request in steps: the application's answer is buffered until it is whole."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote

from sqlalchemy.orm import Session

from outboxkit import idempotency, problems
from outboxkit.errors import ConfigurationError, LeaseLost
from outboxkit.idempotency import Fresh, Outcome, Response, Steps
from outboxkit.integrations import protocol
from outboxkit.integrations.asgi.current import Unkept, being
from outboxkit.problems import Problem, in_progress
from outboxkit.sqlalchemy_asyncio import AsyncSession, async_sessionmaker

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_BODILESS = frozenset((204, 304))


def header_lines(scope: Scope, name: str) -> list[str]:
    """Every line of a header, by its name in lower case."""
    return [value.decode("latin-1") for field, value in scope["headers"] if field.lower() == name.encode()]


def incoming(scope: Scope, body: bytes) -> protocol.IncomingRequest:
    """The parts of a request for its fingerprint. The path is the one that was sent, because routes are not known."""
    path = scope.get("raw_path") or quote(scope["path"]).encode()
    return protocol.IncomingRequest(
        method=scope["method"],
        template=path.decode("latin-1"),
        values={},
        query=parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True, encoding="latin-1"),
        keys=header_lines(scope, protocol.KEY.lower()),
        content_type=next(iter(header_lines(scope, "content-type")), None),
        body=body,
    )


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes | None:
    """The body; None: the client left before its end.

    Raises:
        Problem: 413, it has more than `limit` bytes.
    """
    if protocol.is_longer(next(iter(header_lines(scope, "content-length")), None), limit):
        raise protocol.refused(problems.body_too_large(limit))
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > limit:
            raise protocol.refused(problems.body_too_large(limit))
        if not message.get("more_body", False):
            return bytes(body)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was read before, and then the server's messages."""
    is_read = False

    async def again() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def answer(send: Send, response: Response) -> None:
    """Send a whole answer."""
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    if response.status not in _BODILESS and all(name != b"content-length" for name, _ in headers):
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


def problem_response(problem: Problem) -> Response:
    """A problem document."""
    return Response(problem.status, (("content-type", problems.MEDIA_TYPE), *problem.headers), problem.body())


_STREAM = b"text/event-stream"


class ResponseBuffer:
    """The application's side of one request: it gives the body that was read, and buffers the answer until it is whole.

    Args:
        body: of the request.
        limit: bytes of an answer's body.
        answered: called once, with the whole answer; it remembers and sends it.

    Attributes:
        refusal: the reason for which the answer cannot be remembered, if there is one.
        is_over: whether the application has answered.
    """

    def __init__(self, body: bytes, limit: int, answered: Callable[[Response], Awaitable[None]]) -> None:
        self.is_over = False
        self.refusal: ConfigurationError | None = None
        self._body: bytes | None = body
        self._limit = limit
        self._answered = answered
        self._start: Message | None = None
        self._held = bytearray()
        self._sent = asyncio.Event()

    async def receive(self) -> Message:
        """The whole body. After that it waits until the answer is sent: a client that leaves does not end a run.

        Frameworks cancel what sends an answer in pieces when they hear that the client has left.
        """
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._sent.wait()
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
                self._refuse(f"the answer has more than the {self._limit} bytes that max_response allows: raise it, "
                             "or answer with a link to the content")  # fmt: skip
            if not message.get("more_body", False):
                await self._end()

    async def _end(self) -> None:
        if self._start is None:
            raise RuntimeError("the application sent a body before http.response.start")
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in _headers(self._start))
        self.is_over = True
        try:
            await self._answered(Response(self._start["status"], headers, bytes(self._held)))
        finally:
            self._sent.set()

    def _refuse(self, why: str) -> None:
        self.refusal = ConfigurationError(why)
        raise self.refusal


def _headers(start: Message) -> list[tuple[bytes, bytes]]:
    return [(bytes(name), bytes(value)) for name, value in start.get("headers", ())]


T = TypeVar("T")


class Run:
    """The run of one request; `serve` it once.

    Args:
        session_factory: for the ledger's transactions.
        rules: of the middleware.
        question: the arguments of `idempotency.begin`; None: the request has no key, and needs none.
        body: of the request.
    """

    def __init__(
        self,
        session_factory: async_sessionmaker[AsyncSession],
        rules: protocol.Rules,
        question: dict[str, Any] | None,
        body: bytes,
    ) -> None:
        self._session_factory = session_factory
        self._rules = rules
        self._question = question
        self._body = body

    async def serve(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer from the ledger, or have the application answer.

        Raises:
            ConfigurationError: the application's answer cannot be remembered.
            Exception: the application's own.
        """
        if self._question is None:
            without = Unkept()
            with being(without):
                await app({**scope, "outboxkit.steps": without}, replayed(self._body, receive), send)
            return
        outcome = await self._begin()
        protocol.count(outcome)
        if isinstance(outcome, Fresh):
            await self._run(app, scope, send, outcome)
        else:
            await answer(send, _answer_of(outcome))

    async def _run(self, app: App, scope: Scope, send: Send, fresh: Fresh) -> None:
        steps = Steps(self._session_factory, fresh)

        async def answered(response: Response) -> None:
            await answer(send, await self._ended(steps, fresh, response))

        buffer = ResponseBuffer(self._body, self._rules.max_response, answered)
        failure: BaseException | None = None
        try:
            with being(steps):
                await app({**scope, "outboxkit.steps": steps, "extensions": {}}, buffer.receive, buffer.send)
        except BaseException as error:  # noqa: BLE001  # raised again below, unless another answer takes its place
            failure = error
        if buffer.is_over:
            if failure is not None and not isinstance(failure, LeaseLost):
                raise failure
            return
        try:
            instead = await self._failed(fresh)
        except Exception as error:
            raise error from buffer.refusal or failure  # the application's own is shown, too
        if instead is None:
            raise buffer.refusal or failure or RuntimeError("the application returned without an answer")
        await answer(send, instead)

    async def _ended(self, steps: Steps, fresh: Fresh, response: Response) -> Response:
        """The answer to send: the application's, once it is remembered, or that of the run that has taken over."""
        try:
            if self._rules.stored(response.status):
                storable = protocol.stored_part(response.status, response.headers, response.body, self._rules)
                await self._write(idempotency.complete, fresh, storable)
                return Response(response.status, (*response.headers, protocol.expires_header(fresh)), response.body)
            is_clean = response.status < 500 and not steps.finished
            await self._write(idempotency.release, fresh, forget=is_clean)
        except LeaseLost:
            return await self._others()
        return response

    async def _failed(self, fresh: Fresh) -> Response | None:
        """Let a retry begin at once. If another run has taken over, its answer."""
        try:
            await self._write(idempotency.release, fresh)
        except LeaseLost:
            return await self._others()
        return None

    async def _others(self) -> Response:
        outcome = await self._begin()
        if isinstance(outcome, Fresh):
            await self._write(idempotency.release, outcome)
            return problem_response(in_progress(None))
        return _answer_of(outcome)

    async def _begin(self) -> Outcome:
        async with self._session_factory() as session:
            outcome = await session.run_sync(idempotency.begin, **(self._question or {}))
            await session.commit()
            return outcome

    async def _write(self, change: Callable[..., T], *arguments: object, **options: object) -> None:
        def write(session: Session) -> None:
            change(session, *arguments, **options)

        async with self._session_factory() as session:
            await session.run_sync(write)
            await session.commit()


def _answer_of(outcome: Any) -> Response:
    try:
        return protocol.answered(outcome)
    except Problem as problem:
        return problem_response(problem)
