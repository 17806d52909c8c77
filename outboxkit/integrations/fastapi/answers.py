"""Answers as Starlette sends them, and what the OpenAPI document says of them."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from fastapi import Request
from fastapi import Response as Answer
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_flat_params
from sqlalchemy.orm.exc import StaleDataError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from outboxkit import preconditions, problems
from outboxkit.idempotency import Response
from outboxkit.integrations import protocol
from outboxkit.problems import Problem

_KEY = (
    "Chosen by the client, the same with every retry of a request: 1 to 255 visible ASCII characters, bare or as a "
    "string in quotes."
)
_REFUSALS = {
    "400": "The key is missing, or it is not valid",
    "409": "A request with the key has not been answered yet, or the state of the resource forbids the request",
    "413": "The body is too large",
    "422": "The request is not valid, or the key was used for another one",
}
_PROBLEM = {
    "title": "Problem",
    "type": "object",
    "description": "Problem details (RFC 9457)",
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail"],
}


def documented(extra: dict[str, Any] | None, dependant: Dependant, rules: protocol.Rules) -> dict[str, Any]:
    """What is to be merged into the operation: the header, and the answers that refuse a request."""
    made = dict(extra or {})
    given = [*made.get("parameters", []), *({"name": field.alias} for field in get_flat_params(dependant))]
    if not any(str(parameter.get("name", "")).lower() == protocol.KEY.lower() for parameter in given):
        made["parameters"] = [*made.get("parameters", []), _parameter(rules)]
    responses: dict[str, Any] = {str(status): found for status, found in made.get("responses", {}).items()}
    for status, meaning in _REFUSALS.items():
        answer = {"description": meaning, **responses.get(status, {})}
        answer["content"] = {problems.MEDIA_TYPE: {"schema": _PROBLEM}, **answer.get("content", {})}
        if status == "409":
            answer["headers"] = {"Retry-After": {"schema": {"type": "integer"}}, **answer.get("headers", {})}
        responses[status] = answer
    made["responses"] = responses
    return made


def _parameter(rules: protocol.Rules) -> dict[str, Any]:
    return {
        "name": protocol.KEY,
        "in": "header",
        "required": rules.required,
        "description": _KEY,
        "schema": {"type": "string", "minLength": 1, "title": protocol.KEY},
    }


class Answered(Exception):
    """Raised by the dependency: the request was answered before, and `response` is the answer."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


def answer_of(response: Response) -> Answer:
    """A remembered answer, byte for byte."""
    answer = Answer(response.body, response.status)
    answer.raw_headers += encoded(response.headers)
    return answer


def problem_answer(problem: Problem) -> Answer:
    """A problem document."""
    answer = Answer(problem.body(), problem.status, media_type=problems.MEDIA_TYPE)
    answer.raw_headers += encoded(problem.headers)
    return answer


def encoded(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Headers as ASGI has them."""
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def decoded(answer: Answer) -> list[tuple[str, str]]:
    """The headers of an answer."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.raw_headers]


def add_problem_handlers(app: Starlette) -> None:
    """Have an application of FastAPI or Starlette answer every `Problem` and `StaleDataError` with a problem document.

    Routes of class `IdempotentRoute` do so without it; it is for the others, above all those with preconditions.
    """

    async def refuse(_: Request, error: Exception) -> Answer:
        return problem_answer(error if isinstance(error, Problem) else preconditions.stale())

    app.add_exception_handler(Problem, refuse)
    app.add_exception_handler(StaleDataError, refuse)


async def answer_to(request: Request, error: Exception) -> Answer | None:
    """What the application's own handler makes of an error; None: it has none."""
    handler = _handler(request, error)
    if handler is None:
        return problem_answer(error) if isinstance(error, Problem) else None
    if inspect.iscoroutinefunction(handler):
        made = await handler(request, error)
    else:
        made = await run_in_threadpool(handler, request, error)
    return made if isinstance(made, Answer) else None


def _handler(request: Request, error: Exception) -> Callable[..., Any] | None:
    """As Starlette chooses: by status, then by class; handlers of 500 and Exception are for what is not foreseen."""
    handlers = request.app.exception_handlers
    found: Callable[..., Any] | None = None
    if isinstance(error, HTTPException):
        found = handlers.get(error.status_code)
    if found is None:
        classes = [found for found in type(error).__mro__ if found is not Exception]
        found = next((handlers[found] for found in classes if found in handlers), None)
    return found
