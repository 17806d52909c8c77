"""The dependency that takes the key, on the endpoint's own session and before the endpoint runs."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Unpack

from fastapi import Depends, Request
from fastapi.params import Depends as Dependency

from outboxkit import idempotency
from outboxkit.errors import ConfigurationError
from outboxkit.idempotency import Fresh, InProgress
from outboxkit.integrations import protocol
from outboxkit.integrations.fastapi.answers import Answered
from outboxkit.integrations.fastapi.sessions import at_once, hold, on, rollback, usable
from outboxkit.integrations.protocol import Places, Rules

_PLACE = "outboxkit.visit"


@dataclass(frozen=True, slots=True)
class Work:
    """A request that is to be done.

    Attributes:
        session: the endpoint's.
        rules: of its `Idempotent`.
        question: what the ledger was asked.
        fresh: what it said; None: the request has no key, and needs none.
    """

    session: Any
    rules: Rules
    question: dict[str, Any] = field(default_factory=dict)
    fresh: Fresh | None = None


@dataclass(slots=True)
class Visit:
    """A request in its route.

    Attributes:
        template: the path as the route is written, with what is before it where the route is mounted.
        work: what the dependency began; None: nothing, or not yet.
    """

    template: str
    work: Work | None = None


def open_visit(request: Request, template: str) -> Visit:
    """Begin the visit of a request."""
    visit = Visit(template)
    request.scope[_PLACE] = visit
    return visit


def visit_of(request: Request) -> Visit:
    """The visit that the route has begun.

    Raises:
        ConfigurationError: the route is of another class.
    """
    visit = request.scope.get(_PLACE)
    if not isinstance(visit, Visit):
        raise ConfigurationError(
            f"{request.method} {request.url.path} depends on Idempotent, but its route cannot store the answer. "
            "Make its router with APIRouter(route_class=IdempotentRoute), or set app.router.route_class = "
            "IdempotentRoute before the first endpoint"
        )
    return visit


class Idempotent:
    """A dependency of endpoints whose requests may come twice; their routes are of class `IdempotentRoute`.

    The endpoint does its work on the session that `session` gives and leaves the commit to the route: key, business
    rows and answer are committed together before the answer leaves.

    Args:
        session: the endpoint's own dependency for its Session or AsyncSession, or `Depends(…)` of it where the
            endpoint's has a `scope`.
        principal: a dependency that gives the caller's id as text, and raises 401 for a caller that is not known; one
            caller's key never answers another. None: whoever knows a key gets its answer.
        rules: as of `outboxkit.integrations.protocol.Rules`, but `lease`, which is for the ASGI middleware.

    Raises:
        ConfigurationError: one of these cannot be used as it is.
    """

    def __init__(
        self,
        *,
        session: Callable[..., Any] | Dependency,
        principal: Callable[..., Any] | Dependency | None,
        **rules: Unpack[protocol.Options],
    ) -> None:
        self.session = _dependency("session", session)
        self.principal = None if principal is None else _dependency("principal", principal)
        self.rules = protocol.Rules(**rules)
        if self.rules.lease is not None:
            raise ConfigurationError(
                "a lease is for requests in steps, which outboxkit.integrations.asgi.IdempotencyMiddleware is for; "
                "here the transaction is the lease"
            )
        self._places = Places(self.rules.max_waiting)
        given = [("request", inspect.Parameter.empty), ("session", self.session)]
        if self.principal is not None:
            given.append(("principal", self.principal))
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=Request if name == "request" else Any,
                )
                for name, default in given
            ]
        )

    async def __call__(self, *, request: Request, session: Any, principal: object = None) -> None:
        """Take the key; ends the request if it is not new.

        Raises:
            Problem: 400 or 413, there is no usable key or too large a body; 409, the same request has not been
                answered yet; 422, the key belongs to another request.
            Answered: the request was answered before.
            ConfigurationError: the route, the session or the principal is not what it must be.
        """
        visit = visit_of(request)
        if self.principal is not None:
            _check_caller(principal)
        if visit.work is not None:
            raise ConfigurationError(f"{visit.template} depends on two Idempotent at once; one is needed")
        incoming = protocol.Incoming(
            method=request.method,
            template=visit.template,
            values={name: str(value) for name, value in request.path_params.items()},
            query=request.query_params.multi_items(),
            keys=request.headers.getlist(protocol.KEY),
            content_type=request.headers.get("content-type"),
            body=await request.body(),
        )
        asked = await protocol.ask_aside(incoming, self.rules)
        session = usable(session)
        if asked is None:
            hold(session)
            visit.work = Work(session, self.rules)
            return
        question = asked._asdict() | {"principal": principal, "retention": self.rules.retention}
        outcome = await on(session, idempotency.begin, **question)
        if isinstance(outcome, InProgress) and self.rules.wait:
            with self._places.taken(principal or asked) as may_wait:
                if may_wait:
                    outcome = await at_once(session, idempotency.begin, **question, wait=self.rules.wait)
        if isinstance(outcome, Fresh):
            visit.work = Work(session, self.rules, question, outcome)
            return
        await at_once(session, rollback)
        raise Answered(protocol.answered(outcome))


def _dependency(name: str, given: object) -> Dependency:
    depends = given if isinstance(given, Dependency) else Depends(given)  # type: ignore[arg-type]
    if not callable(depends.dependency) or not depends.use_cache:
        raise ConfigurationError(
            f"{name}= is {given!r}; a function that FastAPI can depend on is accepted, shared within a request"
        )
    return depends


def _check_caller(principal: object) -> None:
    if not isinstance(principal, str) or not principal:
        raise ConfigurationError(
            f"principal= gives {type(principal).__name__ if principal else repr(principal)}; the caller's id as text "
            "is accepted. For a caller that is not known, raise HTTPException(401)"
        )
