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
from outboxkit.integrations.fastapi.answers import AlreadyAnswered
from outboxkit.integrations.fastapi.sessions import at_once, hold, on, rollback, usable
from outboxkit.integrations.protocol import Places, Rules

_PLACE = "outboxkit.visit"


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a request that is new.

    Attributes:
        session: the endpoint's.
        rules: of its `Idempotent`.
        question: the arguments of `idempotency.begin`.
        fresh: its outcome; None: the request has no key, and needs none.
    """

    session: Any
    rules: Rules
    question: dict[str, Any] = field(default_factory=dict)
    fresh: Fresh | None = None


@dataclass(slots=True)
class RequestState:
    """The state of a request, shared by its route and the dependency.

    Attributes:
        template: the path as the route declares it, behind the paths of all mounts.
        work: the work that the dependency began; None: nothing, or not yet.
    """

    template: str
    work: Work | None = None


def open_state(request: Request, template: str) -> RequestState:
    """Make the state of a request, in its ASGI scope."""
    state = RequestState(template)
    request.scope[_PLACE] = state
    return state


def state_of(request: Request) -> RequestState:
    """The state that the route has made.

    Raises:
        ConfigurationError: the route is of another class.
    """
    state = request.scope.get(_PLACE)
    if not isinstance(state, RequestState):
        raise ConfigurationError(
            f"{request.method} {request.url.path} depends on Idempotent, but its route cannot store the answer. "
            "Make its router with APIRouter(route_class=IdempotentRoute), or set app.router.route_class = "
            "IdempotentRoute before the first endpoint"
        )
    return state


class Idempotent:
    """A dependency of endpoints whose requests may come twice; their routes are of class `IdempotentRoute`.

    The endpoint works on the session that `session` gives, and leaves the commit to the route. Key, business rows and
    answer are committed together before the answer leaves.

    Args:
        session: the endpoint's own dependency for its Session or AsyncSession, or `Depends(…)` of it if the
            endpoint's has a `scope`.
        principal: a dependency that gives the caller's id as text, and raises 401 for a caller that is not known. A
            key never gives one caller's answer to another. None: all callers share the keys.
        rules: as of `outboxkit.integrations.protocol.Rules`, without `lease`, which is for the ASGI middleware.

    Raises:
        ConfigurationError: one of these cannot be used as it is.
    """

    def __init__(
        self,
        *,
        session: Callable[..., Any] | Dependency,
        principal: Callable[..., Any] | Dependency | None,
        **rules: Unpack[protocol.IdempotencyOptions],
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
        parameters = [("request", inspect.Parameter.empty), ("session", self.session)]
        if self.principal is not None:
            parameters.append(("principal", self.principal))
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=Request if name == "request" else Any,
                )
                for name, default in parameters
            ]
        )

    async def __call__(self, *, request: Request, session: Any, principal: object = None) -> None:
        """Take the key. Ends the request if it is not new.

        Raises:
            Problem: 400, the key is not usable; 413, the body is too large; 409, the request is not answered yet; 422,
                it is another's key.
            Answered: the request was answered before.
            ConfigurationError: the route, the session or the principal is of the wrong kind.
        """
        state = state_of(request)
        if self.principal is not None:
            _check_caller(principal)
        if state.work is not None:
            raise ConfigurationError(f"{state.template} depends on two Idempotent at once; one is needed")
        incoming = protocol.IncomingRequest(
            method=request.method,
            template=state.template,
            values={name: str(value) for name, value in request.path_params.items()},
            query=request.query_params.multi_items(),
            keys=request.headers.getlist(protocol.KEY),
            content_type=request.headers.get("content-type"),
            body=await request.body(),
        )
        request_key = await protocol.ask_aside(incoming, self.rules)
        session = usable(session)
        if request_key is None:
            hold(session)
            state.work = Work(session, self.rules)
            return
        question = request_key._asdict() | {"principal": principal, "retention": self.rules.retention}
        hold(session, keyed=True)
        outcome = await on(session, idempotency.begin, **question)
        if isinstance(outcome, InProgress) and self.rules.wait:
            with self._places.taken(principal or request_key) as may_wait:
                if may_wait:
                    outcome = await at_once(session, idempotency.begin, **question, wait=self.rules.wait)
        protocol.count(outcome)
        if isinstance(outcome, Fresh):
            state.work = Work(session, self.rules, question, outcome)
            return
        await at_once(session, rollback)
        raise AlreadyAnswered(protocol.answered(outcome))


def _dependency(name: str, source: object) -> Dependency:
    depends = source if isinstance(source, Dependency) else Depends(source)  # type: ignore[arg-type]
    if not callable(depends.dependency) or not depends.use_cache:
        raise ConfigurationError(
            f"{name}= is {source!r}; a function that FastAPI can depend on is accepted, shared within a request"
        )
    return depends


def _check_caller(principal: object) -> None:
    if not isinstance(principal, str) or not principal:
        raise ConfigurationError(
            f"principal= gives {type(principal).__name__ if principal else repr(principal)}; the caller's id as text "
            "is accepted. For a caller that is not known, raise HTTPException(401)"
        )
