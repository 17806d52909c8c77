"""The ASGI middleware for requests in steps, for any framework."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Unpack

from outboxkit.errors import ConfigurationError
from outboxkit.integrations import protocol
from outboxkit.integrations.asgi.run import (
    App,
    Receive,
    Run,
    Scope,
    Send,
    answer,
    header_lines,
    incoming,
    problem_response,
    read_body,
)
from outboxkit.problems import Problem
from outboxkit.sqlalchemy_asyncio import AsyncSession, async_sessionmaker

_MINUTE = timedelta(minutes=1)
_UNSAFE = frozenset(("POST", "PATCH"))

Principal = Callable[[Scope], str | Awaitable[str | None] | None]


def changes_something(scope: Scope) -> bool:
    """Whether a request is a POST or a PATCH, the methods that are not idempotent in HTTP."""
    return scope["method"] in _UNSAFE


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
        rules: as of `outboxkit.integrations.protocol.Rules`. A run has the request to itself for the `lease`, a minute
            by default, from its last finished step. It must be longer than any step takes.

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
        **rules: Unpack[protocol.IdempotencyOptions],
    ) -> None:
        self._app = app
        self._session_factory = session_factory
        self._principal = principal
        self._when = when
        rules.setdefault("lease", _MINUTE)
        self._rules = protocol.Rules(**rules)
        if self._rules.wait or self._rules.lease is None:
            raise ConfigurationError(
                "requests in steps have a lease, and a repetition gets 409 while it lasts: give lease=, and no wait="
            )
        if not self._rules.store_errors:
            raise ConfigurationError(
                "an error reaches the middleware as the answer that the framework made of it: leave out store_errors=, "
                "and choose the answers to remember with stored="
            )
        self._running: set[asyncio.Task[BaseException | None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of the server."""
        if scope["type"] != "http" or not self._when(scope):
            await self._app(scope, receive, send)
            return
        try:
            run = await self._prepared(scope, receive)
        except Problem as problem:
            await answer(send, problem_response(problem))
            return
        if run is not None:
            await self._to_its_end(run.serve(self._app, scope, receive, send))

    async def _prepared(self, scope: Scope, receive: Receive) -> Run | None:
        """The run of a request; None: the client left before the request was complete."""
        has_key = self._rules.required or bool(header_lines(scope, protocol.KEY.lower()))
        principal = await self._caller(scope) if has_key else None  # first, so that the body of a stranger is not read
        body = await read_body(scope, receive, self._rules.max_body)
        if body is None:
            return None
        request_key = await protocol.ask_aside(incoming(scope, body), self._rules)
        question: dict[str, Any] | None = None
        if request_key is not None:
            question = request_key._asdict() | {
                "principal": principal,
                "retention": self._rules.retention,
                "lease": self._rules.lease,
            }
        return Run(self._session_factory, self._rules, question, body)

    async def _caller(self, scope: Scope) -> str | None:
        if self._principal is None:
            return None
        principal = self._principal(scope)
        caller = await principal if inspect.isawaitable(principal) else principal
        if not isinstance(caller, str) or not caller:
            raise ConfigurationError(
                f"principal= gives {caller!r}; the caller's id as text is accepted. For a caller that is not known, "
                "raise outboxkit.problems.Problem with status 401"
            )
        return caller

    async def _to_its_end(self, run: Awaitable[None]) -> None:
        """Wait for the run, which goes on even if the server cancels the request because its client has left."""
        task = asyncio.create_task(_error_of(run))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        error = await asyncio.shield(task)
        if error is not None:
            raise error


async def _error_of(run: Awaitable[None]) -> BaseException | None:
    """The error of a run, as a result: a task that raises SystemExit ends its event loop, and so the server."""
    try:
        await run
    except BaseException as error:  # noqa: BLE001  # raised again in the request's own task
        return error
    return None
