"""Answers as Starlette sends them, and their description in the OpenAPI document."""

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
    """The operation in the OpenAPI document, with the header and the answers that refuse a request."""
    operation = dict(extra or {})
    parameters = [*operation.get("parameters", []), *({"name": field.alias} for field in get_flat_params(dependant))]
    if not any(str(parameter.get("name", "")).lower() == protocol.KEY.lower() for parameter in parameters):
        operation["parameters"] = [*operation.get("parameters", []), _parameter(rules)]
    responses: dict[str, Any] = {str(status): described for status, described in operation.get("responses", {}).items()}
    for status, meaning in _REFUSALS.items():
        answer = {"description": meaning, **responses.get(status, {})}
        answer["content"] = {problems.MEDIA_TYPE: {"schema": _PROBLEM}, **answer.get("content", {})}
        if status == "409":
            answer["headers"] = {"Retry-After": {"schema": {"type": "integer"}}, **answer.get("headers", {})}
        responses[status] = answer
    operation["responses"] = responses
    return operation


def _parameter(rules: protocol.Rules) -> dict[str, Any]:
    return {
        "name": protocol.KEY,
        "in": "header",
        "required": rules.required,
        "description": _KEY,
        "schema": {"type": "string", "minLength": 1, "title": protocol.KEY},
    }


class AlreadyAnswered(Exception):
    """Raised by the dependency: the request was answered before, and `response` is the answer."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


def remembered_answer(response: Response) -> Answer:
    """A remembered answer, byte for byte."""
    answer = Answer(response.body, response.status)
    answer.raw_headers += asgi_headers(response.headers)
    return answer


def problem_answer(problem: Problem) -> Answer:
    """A problem document."""
    answer = Answer(problem.body(), problem.status, media_type=problems.MEDIA_TYPE)
    answer.raw_headers += asgi_headers(problem.headers)
    return answer


def asgi_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Headers in the form of ASGI."""
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def decoded(answer: Answer) -> list[tuple[str, str]]:
    """The headers of an answer."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.raw_headers]


def add_problem_handlers(app: Starlette) -> None:
    """Have an application of FastAPI or Starlette answer every `Problem` and `StaleDataError` with a problem document.

    Routes of class `IdempotentRoute` do not need it; it is for others, above all those with preconditions.
    """

    async def refuse(_: Request, error: Exception) -> Answer:
        return problem_answer(error if isinstance(error, Problem) else preconditions.stale())

    app.add_exception_handler(Problem, refuse)
    app.add_exception_handler(StaleDataError, refuse)


async def answer_to(request: Request, error: Exception) -> Answer | None:
    """The answer of the application's own handler to an error; None: it has none."""
    handler = _handler(request, error)
    if handler is None:
        return problem_answer(error) if isinstance(error, Problem) else None
    if inspect.iscoroutinefunction(handler):
        answer = await handler(request, error)
    else:
        answer = await run_in_threadpool(handler, request, error)
    return answer if isinstance(answer, Answer) else None


def _handler(request: Request, error: Exception) -> Callable[..., Any] | None:
    """The handler that Starlette would choose, by status, then by class, but not one for any `Exception`."""
    handlers = request.app.exception_handlers
    handler: Callable[..., Any] | None = None
    if isinstance(error, HTTPException):
        handler = handlers.get(error.status_code)
    if handler is None:
        classes = [cls for cls in type(error).__mro__ if cls is not Exception]
        handler = next((handlers[cls] for cls in classes if cls in handlers), None)
    return handler
