"""One request on its way through an idempotent route: what the dependency began, for the route to end."""

from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from outboxkit.errors import ConfigurationError
from outboxkit.idempotency import Fresh
from outboxkit.integrations.door import Rules

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
