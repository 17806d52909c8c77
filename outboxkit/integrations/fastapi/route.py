"""The route of idempotent endpoints: checked before it is used, it completes what the dependency began."""

import inspect
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi import Request
from fastapi import Response as Answer
from fastapi.datastructures import DefaultPlaceholder
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.params import Depends as Dependency
from fastapi.responses import FileResponse, StreamingResponse
from fastapi.routing import APIRoute
from sqlalchemy.orm.exc import StaleDataError
from starlette.exceptions import HTTPException

from outboxkit import preconditions, problems
from outboxkit.errors import ConfigurationError
from outboxkit.idempotency import Fresh, Replay, Response
from outboxkit.integrations import protocol
from outboxkit.integrations.fastapi.answers import (
    Answered,
    answer_of,
    answer_to,
    decoded,
    documented,
    encoded,
    problem_answer,
)
from outboxkit.integrations.fastapi.dependency import Idempotent, Visit, Work, open_visit
from outboxkit.integrations.fastapi.sessions import at_once, finish, on, remember, rollback
from outboxkit.problems import Problem

_SAFE = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))


def tree_of(route: APIRoute, request: Request) -> Any:
    """The route with what the routers that include it add to its path and to its dependencies."""
    found = request.scope.get("fastapi", {}).get("effective_route_context")
    return found if found is not None and found.original_route is route else route


def template_of(tree: Any, request: Request) -> str:
    """The path as it is written in the application, from the outermost mount; the path itself where that is not known.

    A path that is known only in part would give two operations one name.
    """
    root: str = request.scope.get("root_path", "")
    mounted = root.removeprefix(request.scope.get("app_root_path", root))
    path: str = request.scope["path"].removeprefix(root)
    written: str = tree.path_format if tree.path_regex.match(path) else path
    return mounted + written


def checked(tree: Any) -> Idempotent | None:
    """The `Idempotent` that a route depends on; None: it depends on none.

    Raises:
        ConfigurationError: it depends on two, or it is one whose answer or work could not be kept.
    """
    found = [one.call for one in _walk(tree.dependant, into=None) if isinstance(one.call, Idempotent)]
    if not found:
        return None
    name = f"{'/'.join(sorted(tree.methods))} {tree.path_format}"
    if len({id(idempotent) for idempotent in found}) > 1:
        raise ConfigurationError(f"{name} depends on two Idempotent at once; one is needed")
    if tree.methods & _SAFE:
        raise ConfigurationError(
            f"{name} depends on Idempotent, but such a request changes nothing. Idempotency keys are for POST and "
            "PATCH; depend on Idempotent in the endpoints that need it, where a router has others as well"
        )
    _check_answer(tree, name)
    _check_session(tree.dependant, found[0].session, name)
    return found[0]


def _check_answer(tree: Any, name: str) -> None:
    given = tree.response_class
    answer = given.value if isinstance(given, DefaultPlaceholder) else given
    streams = inspect.isclass(answer) and issubclass(answer, StreamingResponse | FileResponse)
    endpoint = inspect.unwrap(tree.endpoint)
    if streams or inspect.isgeneratorfunction(endpoint) or inspect.isasyncgenfunction(endpoint):
        raise ConfigurationError(
            f"{name} depends on Idempotent, but its answer is a stream, which cannot be remembered. "
            "Answer with the content as a whole, or with a link to it"
        )


def _check_session(dependant: Dependant, session: Dependency, name: str) -> None:
    called = getattr(session.dependency, "__name__", repr(session.dependency))
    uses = [one for one in _walk(dependant, into=Idempotent) if one.call is session.dependency]
    if not uses:
        raise ConfigurationError(
            f"{name} depends on Idempotent(session={called}), but not on {called} itself: its work would be in "
            f"another transaction than its key. Let the endpoint take its session from Depends({called})"
        )
    if any(one.scope != session.scope or not one.use_cache for one in uses):
        raise ConfigurationError(
            f"{name} and its Idempotent would get two sessions of {called}. Write the same Depends({called}, …) in "
            "both, without use_cache=False: Idempotent(session=Depends(…), …)"
        )


def _walk(dependant: Dependant, *, into: type[Idempotent] | None) -> Iterator[Dependant]:
    """Every dependency of a route; not those of a call of class `into`."""
    for one in dependant.dependencies:
        yield one
        if into is None or not isinstance(one.call, into):
            yield from _walk(one, into=into)


class IdempotentRoute(APIRoute):
    """The class of routes whose endpoints depend on `Idempotent`; other endpoints are served as ever.

    Give it to a router, `APIRouter(route_class=IdempotentRoute)`, or to an application before its first endpoint,
    `app.router.route_class = IdempotentRoute`.

    Raises:
        ConfigurationError: an endpoint that depends on `Idempotent` is one of GET, streams its answer, or does not use
            the session that `Idempotent` was given.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        idempotent = checked(self)
        if idempotent is not None:
            self.openapi_extra = documented(self.openapi_extra, self.dependant, idempotent.rules)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Answer]]:
        """FastAPI's own handler, between the begin of a visit and its end."""
        handler = super().get_route_handler()
        looked_at: tuple[Any, Idempotent | None] = None, None

        async def handle(request: Request) -> Answer:
            nonlocal looked_at
            tree = tree_of(self, request)
            if looked_at[0] is not tree:
                looked_at = tree, checked(tree)
            idempotent = looked_at[1]
            visit = open_visit(request, template_of(tree, request))
            try:
                if idempotent is not None:
                    await _read(request, idempotent.rules)
                answer = await handler(request)
            except Answered as answered:
                return answer_of(answered.response)
            except Exception as error:  # noqa: BLE001  # raised again where nobody has an answer to it
                return await _failed(request, visit, error)
            return answer if visit.work is None else await _succeeded(visit.work, answer)

        return handle


async def _read(request: Request, rules: protocol.Rules) -> None:
    """Read the body of a request that the ledger will be asked about, as long as it is not too large.

    Raises:
        Problem: 413.
    """
    if not rules.required and protocol.KEY not in request.headers:
        return
    if protocol.is_longer(request.headers.get("content-length"), rules.max_body):
        raise problems.body_too_large(rules.max_body)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > rules.max_body:
            raise problems.body_too_large(rules.max_body)
    request._body = bytes(body)  # noqa: SLF001  # where Request.body() looks first, here and in the error handlers


async def _succeeded(work: Work, answer: Answer) -> Answer:
    """Commit what the endpoint did together with its answer; take it back where the answer is not to be kept."""
    try:
        if not work.rules.stored(answer.status_code):
            await at_once(work.session, rollback)
            return answer
        await at_once(work.session, finish, work.fresh, _whole(work, answer))
    except StaleDataError:
        await at_once(work.session, rollback)
        return problem_answer(preconditions.stale())
    except Exception:
        await at_once(work.session, rollback)
        raise
    return _with_expiry(answer, work.fresh)


async def _failed(request: Request, visit: Visit, error: Exception) -> Answer:
    """Take back what the endpoint did; remember the answer alone, if the error is one of the request's own."""
    work = visit.work
    if work is None:
        if isinstance(error, Problem):
            return problem_answer(error)
        raise error
    await at_once(work.session, rollback)
    if isinstance(error, StaleDataError):
        return problem_answer(preconditions.stale())
    if isinstance(error, RequestValidationError):
        raise error
    if isinstance(error, HTTPException) and not _is_kept(work, error.status_code):
        raise error
    answer = await answer_to(request, error)
    if answer is None:
        raise error
    if not _is_kept(work, answer.status_code) or not isinstance(getattr(answer, "body", None), bytes):
        return answer
    return await _remembered(work, answer)


def _is_kept(work: Work, status: int) -> bool:
    return work.fresh is not None and work.rules.store_errors and work.rules.stored(status)


async def _remembered(work: Work, answer: Answer) -> Answer:
    outcome = await on(work.session, remember, work.question, _whole(work, answer))
    match outcome:
        case Fresh():
            return _with_expiry(answer, outcome)
        case Replay():
            return answer_of(protocol.answered(outcome))
        case _:
            return answer


def _whole(work: Work, answer: Answer) -> Response:
    """The answer as it is remembered.

    Raises:
        ConfigurationError: it is a stream, or too large.
    """
    body = getattr(answer, "body", None)
    if not isinstance(body, bytes | memoryview):
        raise ConfigurationError(
            f"the endpoint returned a {type(answer).__name__}, whose body comes piece by piece and cannot be "
            "remembered. Return the content as a whole, or a link to it"
        )
    return protocol.kept(answer.status_code, decoded(answer), bytes(body), work.rules)


def _with_expiry(answer: Answer, fresh: Fresh | None) -> Answer:
    if fresh is not None:
        answer.raw_headers += encoded([protocol.expires_header(fresh)])
    return answer
