"""The ASGI middleware for requests in steps; of the framework inside it only ASGI is known."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Unpack

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from outboxkit.errors import ConfigurationError
from outboxkit.integrations import protocol
from outboxkit.integrations.asgi.run import App, Receive, Run, Scope, Send, answer, incoming, lines, read, refusal
from outboxkit.problems import Problem

_MINUTE = timedelta(minutes=1)
_UNSAFE = frozenset(("POST", "PATCH"))

Principal = Callable[[Scope], str | Awaitable[str | None] | None]


def changes_something(scope: Scope) -> bool:
    """Whether a request is a POST or a PATCH: the methods that HTTP does not know to be idempotent."""
    return scope["method"] in _UNSAFE


class IdempotencyMiddleware:
    """Idempotency keys for endpoints that call other systems while the client waits: any ASGI framework.

    The key is committed with a lease before the application runs, in a transaction of its own. What the application
    does inside `step(…)` is remembered as it finishes; a retry after a crash runs the application again, and its
    finished steps are not repeated. Everything outside of a step may run more than once.

    Args:
        app: the application inside.
        session_factory: for the ledger's own short transactions.
        principal: from the ASGI scope to the caller's id, as text or an awaitable of it; it raises a `Problem` with
            status 401 for a caller that is not known. None: whoever knows a key gets its answer.
        when: whether a request needs a key, from its ASGI scope; others pass untouched.
        rules: as of `outboxkit.integrations.protocol.Rules`. `lease`, a minute unless it is given, is how long a run
            has the request to itself, from its last finished step: longer than any step takes.

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
        **rules: Unpack[protocol.Options],
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
                "an error reaches the middleware as the answer that the framework made of it: leave store_errors= out, "
                "and say with stored= which answers are remembered"
            )
        self._running: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of the server."""
        if scope["type"] != "http" or not self._when(scope):
            await self._app(scope, receive, send)
            return
        try:
            run = await self._prepared(scope, receive)
        except Problem as problem:
            await answer(send, refusal(problem))
            return
        if run is not None:
            await self._to_its_end(run.serve(self._app, scope, receive, send))

    async def _prepared(self, scope: Scope, receive: Receive) -> Run | None:
        """What there is to do; None: the client left before it had asked."""
        has_key = self._rules.required or bool(lines(scope, protocol.KEY.lower()))
        principal = await self._caller(scope) if has_key else None  # first: strangers make no work
        body = await read(scope, receive, self._rules.max_body)
        if body is None:
            return None
        asked = await protocol.ask_aside(incoming(scope, body), self._rules)
        question: dict[str, Any] | None = None
        if asked is not None:
            question = asked._asdict() | {
                "principal": principal,
                "retention": self._rules.retention,
                "lease": self._rules.lease,
            }
        return Run(self._session_factory, self._rules, question, body)

    async def _caller(self, scope: Scope) -> str | None:
        if self._principal is None:
            return None
        found = self._principal(scope)
        caller = await found if inspect.isawaitable(found) else found
        if not isinstance(caller, str) or not caller:
            raise ConfigurationError(
                f"principal= gives {caller!r}; the caller's id as text is accepted. For a caller that is not known, "
                "raise outboxkit.problems.Problem with status 401"
            )
        return caller

    async def _to_its_end(self, run: Any) -> None:
        """Also where the server cancels the request because its client has left."""
        task = asyncio.ensure_future(run)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await asyncio.shield(task)
