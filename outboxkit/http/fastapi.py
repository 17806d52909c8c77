"""Idempotent endpoints of FastAPI: key, business rows and answer commit in the endpoint's own transaction.

`IdempotentRoute` reads the body, `Idempotent` takes the key on the endpoint's session, and the route ends the request.
"""

import inspect
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, Unpack

from sqlalchemy import Connection
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError

from outboxkit import tables
from outboxkit.database.sqlalchemy_asyncio import AsyncSession
from outboxkit.database.transaction import refuse_end
from outboxkit.errors import ConfigurationError
from outboxkit.errors.extras import needs_extra
from outboxkit.http import answer, ledger, preconditions, problems
from outboxkit.http.answer import Response
from outboxkit.http.problems import Problem
from outboxkit.http.request import (
    KEY_HEADER,
    SAFE,
    AsgiMessage,
    IdempotencyOptions,
    Receive,
    RequestKey,
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

with needs_extra(__name__):
    from anyio import CapacityLimiter
    from anyio.lowlevel import RunVar
    from anyio.to_thread import run_sync
    from fastapi import Depends, Request
    from fastapi import Response as FastApiResponse
    from fastapi.exceptions import RequestValidationError
    from fastapi.params import Depends as Dependency
    from fastapi.routing import APIRoute
    from starlette.applications import Starlette

T = TypeVar("T")

_PLACE = "outboxkit.exchange"
_ABOUT_KEY = (
    "Chosen by the client, the same with every retry of a request: 1 to 255 visible ASCII characters, bare or as a "
    "string in quotes."
)
_REFUSALS = {
    "400": "The key is missing, or it is not valid",
    "409": "A request with the key has not been answered yet, or the state of the resource forbids the request",
    "413": "The body is too large",
    "422": "The request is not valid, or the key was used for another one",
}
_MEMBERS = {"type": "string", "title": "string", "status": "integer", "detail": "string"}
_PROBLEM = {
    "type": "object",
    "title": "Problem",
    "description": "Problem details (RFC 9457)",
    "properties": {name: {"type": kind} for name, kind in _MEMBERS.items()},
    "required": [*_MEMBERS],
}


class Idempotent:
    """A dependency of endpoints whose requests may come twice; their routes are of class `IdempotentRoute`.

    The endpoint works on the session that `session` gives, and leaves the commit to the route. Key, business rows and
    answer are committed together before the answer leaves. A request of a safe method needs no key.

    Args:
        session: the endpoint's own dependency for its Session or AsyncSession, or `Depends(…)` of it if the
            endpoint's has a `scope`.
        principal: a dependency that gives the caller's id as text, and raises 401 for a caller that is not known. A
            key never gives one caller's answer to another. None: all callers share the keys.
        rules: as of `outboxkit.http.request.Rules`.

    Raises:
        ConfigurationError: one of these cannot be used as it is.
    """

    def __init__(
        self,
        *,
        session: Callable[..., Any] | Dependency,
        principal: Callable[..., Any] | Dependency | None,
        **rules: Unpack[IdempotencyOptions],
    ) -> None:
        self.session = _dependency("session", session)
        self.principal = None if principal is None else _dependency("principal", principal)
        self.rules = Rules(**rules)
        named = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("request", named, annotation=Request),
            inspect.Parameter("session", named, annotation=Any, default=self.session),
        ]
        if self.principal is not None:
            parameters.append(inspect.Parameter("principal", named, annotation=Any, default=self.principal))
        self.__signature__ = inspect.Signature(parameters)

    async def __call__(self, *, request: Request, session: Any, principal: Any = None) -> None:
        """Take the key. Ends the request if it is not new."""
        exchange = request.scope.get(_PLACE)
        if not isinstance(exchange, _Exchange):
            if request.method in SAFE:
                return
            raise ConfigurationError(
                f"{request.method} {request.url.path} depends on Idempotent, but its route cannot store the answer. "
                "Make its router with APIRouter(route_class=IdempotentRoute), or set app.router.route_class = "
                "IdempotentRoute before the first endpoint"
            )
        if exchange.session is not None:
            raise ConfigurationError(f"{request.url.path} depends on two Idempotent at once; one is needed")
        if self.principal is not None:
            principal = checked_principal(principal)
        if exchange.refusal is not None:
            raise exchange.refusal
        exchange.session = _usable(session)
        await exchange.begin(principal)


class IdempotentRoute(APIRoute):
    """The class of routes whose endpoints depend on `Idempotent`. It serves other endpoints as usual.

    Give it to a router, `APIRouter(route_class=IdempotentRoute)`, or to an application before its first endpoint,
    `app.router.route_class = IdempotentRoute`.

    Raises:
        ConfigurationError: an endpoint that depends on `Idempotent` does not use the session of `Idempotent`.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self._idempotents: dict[int, Idempotent | None] = {}
        idempotent = self._idempotent_of(self)
        if idempotent is not None:
            self.openapi_extra = _documented(self, idempotent.rules)

    def _idempotent_of(self, route: Any) -> Idempotent | None:
        """The `Idempotent` that this route depends on, by itself or as a router includes it."""
        if id(route) not in self._idempotents:
            calls = (one.call for one in _dependencies(route.dependant))
            idempotent = next((call for call in calls if isinstance(call, Idempotent)), None)
            if idempotent is not None:
                _check_session(route, idempotent.session)
            self._idempotents[id(route)] = idempotent
        return self._idempotents[id(route)]

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body of a request with a key, and see the answer pass."""
        included = scope.get("fastapi", {}).get("effective_route_context")  # with the dependencies of including routers
        route = included if included is not None and included.original_route is self else self
        idempotent = self._idempotent_of(route)
        if idempotent is None:
            return await super().handle(scope, receive, send)
        exchange = scope[_PLACE] = _Exchange(idempotent.rules, send)
        has_key = idempotent.rules.required or header_lines(scope, "idempotency-key")
        if has_key and scope["method"] not in SAFE:
            try:
                body = await read_body(scope, receive, idempotent.rules.max_body)
                if body is None:  # the client has left; middleware of the application wants an answer
                    return await answer.send_response(send, Response(400))
            except Problem as problem:
                return await answer.send_response(send, answer.problem_response(problem))
            receive = replayed(body, receive)
            try:
                exchange.request_key = request_key_of(scope, body, _operation(scope, route))
            except Problem as problem:  # a caller that is not known gets that answer first
                exchange.refusal = problem
        return await super().handle(scope, receive, exchange.send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, FastApiResponse]]:
        """FastAPI's own handler, between the begin and the end of an idempotent request."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> FastApiResponse:
            exchange: _Exchange | None = request.scope.get(_PLACE)
            if exchange is None:
                return await handler(request)
            try:
                return await exchange.succeeded(await handler(request))
            except _AlreadyAnswered as already:
                return _sent(already.response)
            except Exception as error:
                await exchange.failed(error)
                if (problem := _problem_of(error)) is None:
                    raise
                return _sent(answer.problem_response(problem))

        return handle


def add_problem_handlers(app: Starlette) -> None:
    """Have an application of FastAPI or Starlette answer every `Problem` and `StaleDataError` with a problem document.

    Routes of class `IdempotentRoute` do not need it; it is for others, above all those with preconditions.
    """

    async def refuse(_: Request, error: Exception) -> FastApiResponse:
        return _sent(answer.problem_response(_problem_of(error) or preconditions.stale()))

    app.add_exception_handler(Problem, refuse)
    app.add_exception_handler(StaleDataError, refuse)


class _AlreadyAnswered(Exception):
    """Raised by the dependency: the request was answered before, and `response` is the answer."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


@dataclass(slots=True)
class _Exchange:
    """One request of an idempotent endpoint, from its body to its answer.

    Attributes:
        pass_on: the server's `send`.
        request_key: the ledger's key for it; None: it has no idempotency key, and needs none.
        refusal: the reason for which its key is not accepted.
        run: of the request; None: it has not begun, or its answer may leave as it is.
        start: the head of the answer to an error, until its body is there.
    """

    rules: Rules
    pass_on: Send
    request_key: RequestKey | None = None
    refusal: Problem | None = None
    session: Any = None
    run: Run | None = None
    start: AsgiMessage | None = None

    async def begin(self, principal: str | None) -> None:
        """Take the key, on the endpoint's session."""
        self.run = Run(self.rules, self.request_key, principal)
        if self.request_key is None:
            return
        answered = await _on(self.session, self.run.begin, _threads())
        if answered is not None:
            raise _AlreadyAnswered(answered)

    async def succeeded(self, answered: FastApiResponse) -> FastApiResponse:
        """Commit the endpoint's work with its answer, or roll it back if the answer is not to be remembered."""
        if self.run is not None:
            end = partial(self.run.end, status=answered.status_code, whole=partial(_whole, answered))
            for header in await _on(self.session, end):
                answered.headers.append(*header)
            self.run = None
        return answered

    async def failed(self, error: Exception) -> None:
        """Roll back the endpoint's work. `send` may then remember the answer to the error, under the key of `run`."""
        run, self.run = self.run, None
        if self.session is not None:
            await _on(self.session, ledger.roll_back)
            refuse_end(error, "the endpoint")
            if not isinstance(error, StaleDataError | RequestValidationError):
                self.run = run

    async def send(self, message: AsgiMessage) -> None:
        """Pass the answer on. That to an error is committed before, without the work, if `Rules.stored` says so."""
        if self.run is not None and self.run.fresh is not None and message["type"] == "http.response.start":
            self.start = message
        elif self.run is not None and self.start is not None:
            run, self.run = self.run, None
            await self._end_error(run, self.start, message)
        else:
            await self.pass_on(message)

    async def _end_error(self, run: Run, start: AsgiMessage, message: AsgiMessage) -> None:
        if not self.rules.stored(start["status"]) or message.get("more_body", False):
            await self.pass_on(start)
            return await self.pass_on(message)
        headers = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"])
        whole = Response(start["status"], tuple(headers), message.get("body", b""))
        remember = partial(run.remember, status=whole.status, whole=lambda: whole)
        end = await _on(self.session, partial(_anew, call=remember), _threads())
        if not isinstance(end, Response):
            end = Response(whole.status, (*whole.headers, *end), whole.body)
        return await answer.send_response(self.pass_on, end)


_limiter: RunVar[CapacityLimiter] = RunVar("outboxkit.http.threads")
"""The limiter of the running event loop."""


def _threads() -> CapacityLimiter:
    """Threads for calls that may wait for a connection: as many as AnyIO has for endpoints, but others.

    Those of endpoints may all be waiting for such a call.
    """
    try:
        return _limiter.get()
    except LookupError:
        limiter = CapacityLimiter(40)
        _limiter.set(limiter)
        return limiter


async def _on(session: Any, call: Callable[[Session], T], threads: CapacityLimiter | None = None) -> T:
    """Call a plain function on the session: on the one inside an `AsyncSession`, or in a thread.

    Unless `threads` limits them, a thread is there at once, for a call that others wait for.
    """
    if isinstance(session, AsyncSession):
        return await session.run_sync(call)
    return await run_sync(call, session, limiter=threads or CapacityLimiter(1))


def _anew(session: Session, *, call: Callable[[Session], T]) -> T:
    """Call the function on a session of its own, after a rollback of the endpoint's.

    `sessionmaker.begin()` allows no second transaction in the one that it gives. The session is of the same class and
    has the same `info`, so that listeners of the `sessionmaker` set up this one, too.
    """
    bind = session.get_bind(clause=tables.idempotency)
    if isinstance(bind, Connection) and bind.closed:  # by the dependency, which has ended
        bind = bind.engine.execution_options(**bind.get_execution_options())
    info = {name: value for name, value in session.info.items() if not str(name).startswith("outboxkit")}
    try:
        anew = type(session)(bind=bind, info=info)
    except TypeError:  # a class with other parameters
        anew = Session(bind, info=info)
    with anew:
        return call(anew)


def _usable(session: object) -> object:
    """The session, which stays the same in every thread of a request: a `scoped_session` may not."""
    if not isinstance(session, Session | AsyncSession):
        raise ConfigurationError(
            f"session= gives {type(session).__name__}; a dependency that gives a Session or an AsyncSession is accepted"
        )
    return session


def _operation(scope: Scope, route: Any) -> str:
    """The path with the names of the route's parameters in place of their values: a key is for one of these requests.

    The path of a mounted application stands before it as it was sent.
    """
    mount: str = scope.get("root_path", "")
    return (mount if scope["path"].startswith(f"{mount}/") else "") + str(route.path_format)


def _whole(answered: FastApiResponse) -> Response:
    """The answer with its body."""
    body = getattr(answered, "body", None)
    if not isinstance(body, bytes | memoryview):
        raise ConfigurationError(
            f"the endpoint returned a {type(answered).__name__}, whose body comes piece by piece and cannot be "
            "remembered. Return the content as a whole, or a link to it"
        )
    return Response(answered.status_code, tuple(answered.headers.items()), bytes(body))


def _sent(response: Response) -> FastApiResponse:
    """An answer as Starlette sends it, byte for byte."""
    sent = FastApiResponse(response.body, response.status)
    for name, value in response.headers:
        sent.headers.append(name, value)
    return sent


def _problem_of(error: Exception) -> Problem | None:
    if isinstance(error, StaleDataError):
        return preconditions.stale()
    return error if isinstance(error, Problem) else None


def _dependency(name: str, source: object) -> Dependency:
    depends = source if isinstance(source, Dependency) else Depends(source)  # type: ignore[arg-type]
    if not callable(depends.dependency) or not depends.use_cache:
        raise ConfigurationError(
            f"{name}= is {source!r}; a function that FastAPI can depend on is accepted, shared within a request"
        )
    return depends


def _dependencies(dependant: Any) -> Iterator[Any]:
    """Every dependency of a route, except those of an `Idempotent`: the one part of FastAPI that is not public."""
    for one in dependant.dependencies:
        yield one
        if not isinstance(one.call, Idempotent):
            yield from _dependencies(one)


def _check_session(route: Any, session: Dependency) -> None:
    called = getattr(session.dependency, "__name__", repr(session.dependency))
    # == and not `is`: a bound method is another object each time
    uses = [one for one in _dependencies(route.dependant) if one.call == session.dependency]
    if not uses or any(one.scope != session.scope or not one.use_cache for one in uses):
        raise ConfigurationError(
            f"{route.path_format} depends on Idempotent(session={called}), but its endpoint does not get that session: "
            "its work would be in another transaction than its key. Let the endpoint take its session from "
            f"Depends({called}). If that has a scope, write the same in both: Idempotent(session=Depends(…), …)"
        )


def _documented(route: APIRoute, rules: Rules) -> dict[str, Any]:
    """The operation in the OpenAPI document, with the header and the answers that refuse a request."""
    extra: dict[str, Any] = dict(route.openapi_extra or {})
    content = {problems.MEDIA_TYPE: {"schema": _PROBLEM}}
    refusals = {status: {"description": meaning, "content": content} for status, meaning in _REFUSALS.items()}
    extra["responses"] = refusals | {str(status): answers for status, answers in extra.get("responses", {}).items()}
    declared = [
        field.alias for one in (route.dependant, *_dependencies(route.dependant)) for field in one.header_params
    ]
    if KEY_HEADER.lower() not in map(str.lower, declared):
        header = {"name": KEY_HEADER, "in": "header", "required": rules.required, "description": _ABOUT_KEY}
        header["schema"] = {"type": "string", "minLength": 1, "title": KEY_HEADER}
        extra["parameters"] = [*extra.get("parameters", []), header]
    return extra
