"""Answers as Starlette sends them: remembered ones, problems, and what the application makes of an error."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from fastapi import Request
from fastapi import Response as Answer
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.orm.exc import StaleDataError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from outboxkit import preconditions, problems
from outboxkit.idempotency import Response
from outboxkit.problems import Problem


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
