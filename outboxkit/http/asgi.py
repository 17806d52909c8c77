"""Requests in steps, in any ASGI framework: a lease on the key, and results of finished steps that a retry reuses."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, Unpack

from sqlalchemy.orm import Session

from outboxkit import defaults, ids
from outboxkit.database.sqlalchemy_asyncio import AsyncSession, async_sessionmaker
from outboxkit.errors import ConfigurationError, LeaseLost
from outboxkit.http import answer
from outboxkit.http.answer import Response
from outboxkit.http.ledger import check_span
from outboxkit.http.problems import Problem
from outboxkit.http.request import (
    AsgiMessage,
    IdempotencyOptions,
    Receive,
    Rules,
    Scope,
    Send,
    checked_principal,
    header_lines,
    read_body,
    replayed,
    request_key_of,
)
from outboxkit.http.run import Run
from outboxkit.http.steps import Steps

__all__ = ["IdempotencyMiddleware", "step", "steps"]

T = TypeVar("T")
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Principal = Callable[[Scope], str | Awaitable[str | None] | None]


class UnrecordedSteps:
    """The steps of a request without a key: each call is made, and no result is remembered."""

    async def step(self, name: str, call: Callable[[], Awaitable[T]]) -> T:  # noqa: ARG002
        """Make the call."""
        return await call()

    def key(self, name: str) -> str:
        """A key that no other request has."""
        return f"{name}-{ids.new()}"


_current: ContextVar[Steps | UnrecordedSteps | None] = ContextVar("outboxkit.steps", default=None)


@contextmanager
def bind(current: Steps | UnrecordedSteps) -> Iterator[None]:
    """Have `steps()` return these inside the block, and in tasks that it starts."""
    token = _current.set(current)
    try:
        yield
    finally:
        _current.reset(token)


def steps() -> Steps | UnrecordedSteps:
    """The steps of the request at hand.

    Raises:
        ConfigurationError: there is no such request.
    """
    current = _current.get()
    if current is None:
        raise ConfigurationError(
            "there are no steps here: the request did not pass IdempotencyMiddleware. Wrap the application in it, and "
            "have its `when` return True for the path"
        )
    return current


async def step(name: str, call: Callable[[], Awaitable[T]]) -> T:
    """Make a call whose result is remembered, as `Steps.step` says: a retry of the request does not repeat it."""
    return await steps().step(name, call)


def changes_something(scope: Scope) -> bool:
    """Whether a request is a POST or a PATCH, the methods that are not idempotent in HTTP."""
    return scope["method"] in ("POST", "PATCH")


class IdempotencyMiddleware:
    """Idempotency keys for endpoints of any ASGI framework that call other systems while the client waits.

    The key is committed with a lease before the application runs, in a transaction of its own. The result of each
    `step(…)` is remembered as it finishes. A retry after a crash runs the application again, and finished steps are not
    repeated. Everything outside of a step may run more than once.

    Args:
        app: the application inside.
        session_factory: for the ledger's own short transactions.
        principal: a function from the ASGI scope to the caller's id, as text or an awaitable of it. For a caller that
            is not known it raises a `Problem` with status 401. None: all callers share the keys.
        when: whether a request needs a key, from its ASGI scope; others pass untouched.
        lease: how long a run has the request to itself, from its last finished step; longer than any step takes.
        rules: as of `outboxkit.http.request.Rules`.

    Raises:
        ConfigurationError: one of these cannot be used as it is.
    """

    def __init__(
        self,
        app: App,
        session_factory: async_sessionmaker[AsyncSession],
        *,
        principal: Principal | None,
        when: Callable[[Scope], bool] = changes_something,
        lease: timedelta = defaults.LEASE,
        **rules: Unpack[IdempotencyOptions],
    ) -> None:
        self._app = app
        self._session_factory = session_factory
        self._principal = principal
        self._when = when
        check_span("lease", lease)
        self._lease = lease
        self._rules = Rules(**rules)
        self._running: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of the server."""
        if scope["type"] != "http" or not self._when(scope):
            return await self._app(scope, receive, send)
        if not (self._rules.required or header_lines(scope, "idempotency-key")):
            with bind(UnrecordedSteps()):
                return await self._app(scope, receive, send)
        try:
            caller = await self._caller(scope)  # first, so that the body of a stranger is not read
            body = await read_body(scope, receive, self._rules.max_body)
            if body is None:  # the client has left
                return None
            request_key = request_key_of(scope, body)
        except Problem as problem:
            return await answer.send_response(send, answer.problem_response(problem))
        run = _LeasedRun(self._session_factory, self._rules, Run(self._rules, request_key, caller, self._lease))
        return await self._to_its_end(run.serve(self._app, scope, body, send))

    async def _caller(self, scope: Scope) -> str | None:
        if self._principal is None:
            return None
        caller = self._principal(scope)
        return checked_principal(await caller if inspect.isawaitable(caller) else caller)

    async def _to_its_end(self, run: Coroutine[Any, Any, None]) -> None:
        """Wait for the run, which goes on even if the server cancels the request because its client has left."""
        task = asyncio.create_task(run)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await asyncio.shield(task)


class _LeasedRun:
    """A run that commits its key before the application runs; `serve` it once."""

    def __init__(self, session_factory: async_sessionmaker[AsyncSession], rules: Rules, run: Run) -> None:
        self._session_factory = session_factory
        self._rules = rules
        self._run = run
        self._is_taken_over = False

    async def serve(self, app: App, scope: Scope, body: bytes, send: Send) -> None:
        """Answer from the ledger, or have the application answer."""
        answered = await self._on(self._run.begin)
        if answered is not None:
            return await answer.send_response(send, answered)
        assert self._run.fresh is not None  # noqa: S101 - it has begun
        recorded = Steps(self._session_factory, self._run.fresh)

        async def whole(response: Response) -> None:
            recorded.end()
            await answer.send_response(send, await self._ended(response, has_steps=bool(recorded.finished)))

        buffer = ResponseBuffer(body, self._rules.max_response, whole)
        failure: BaseException | None = None
        try:
            with bind(recorded):
                await app({**scope, "extensions": {}}, buffer.receive, buffer.send)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # raised below, or another answer is sent
            failure = error
        if buffer.is_over:
            if failure is not None and not (self._is_taken_over and isinstance(failure, LeaseLost)):
                raise failure
            return None
        try:
            await self._on(self._run.release)  # a retry may begin at once
        except LeaseLost:
            return await answer.send_response(send, await self._on(self._run.taken_over))
        except Exception as error:
            raise error from buffer.refusal or failure  # the application's own is shown, too
        raise buffer.refusal or failure or RuntimeError("the application returned without an answer")

    async def _ended(self, response: Response, *, has_steps: bool) -> Response:
        """The answer to send: the application's, once it is remembered, or that of the run that has taken over."""
        try:
            if self._rules.stored(response.status):
                added = await self._on(partial(self._run.end, status=response.status, whole=lambda: response))
                return Response(response.status, (*response.headers, *added), response.body)
            await self._on(partial(self._run.release, forget=response.status < 500 and not has_steps))
        except LeaseLost:
            self._is_taken_over = True
            return await self._on(self._run.taken_over)
        return response

    async def _on(self, call: Callable[[Session], T]) -> T:
        async with self._session_factory() as session:
            return await session.run_sync(call)


class ResponseBuffer:
    """The application's side of one request: it gives the body that was read, and buffers the answer until it is whole.

    Args:
        whole: called once, with the whole answer; it remembers and sends it.

    Attributes:
        refusal: the reason for which the answer cannot be remembered, if there is one.
    """

    def __init__(self, body: bytes, limit: int, whole: Callable[[Response], Awaitable[None]]) -> None:
        self.is_over = False
        self.refusal: ConfigurationError | None = None
        self._limit = limit
        self._whole = whole
        self._start: AsgiMessage | None = None
        self._held = bytearray()
        self._sent = asyncio.Event()
        self.receive = replayed(body, self._wait_for_end)

    async def _wait_for_end(self) -> AsgiMessage:
        """Behind the body, wait until the answer is sent: a client that leaves does not end a run.

        Frameworks cancel what sends an answer in pieces when they hear that the client has left.
        """
        await self._sent.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: AsgiMessage) -> None:
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
            if any(name == "content-type" and value.startswith("text/event-stream") for name, value in _lines(message)):
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
        self.is_over = True
        try:
            await self._whole(Response(self._start["status"], tuple(_lines(self._start)), bytes(self._held)))
        finally:
            self._sent.set()

    def _refuse(self, why: str) -> None:
        self.refusal = ConfigurationError(why)
        raise self.refusal


def _lines(start: AsgiMessage) -> list[tuple[str, str]]:
    """The headers of an answer; their names are lower case in ASGI."""
    headers = ((bytes(name).lower(), bytes(value)) for name, value in start.get("headers", ()))
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
