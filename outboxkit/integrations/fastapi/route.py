"""The route of idempotent endpoints. It is checked first, and completes the request that its dependency began."""

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
from starlette.requests import ClientDisconnect

from outboxkit import preconditions, problems
from outboxkit.errors import ConfigurationError
from outboxkit.idempotency import Fresh, Replay, Response
from outboxkit.integrations import protocol
from outboxkit.integrations.fastapi.answers import (
    AlreadyAnswered,
    answer_to,
    asgi_headers,
    decoded,
    documented,
    problem_answer,
    remembered_answer,
)
from outboxkit.integrations.fastapi.dependency import Idempotent, RequestState, Work, open_state
from outboxkit.integrations.fastapi.sessions import at_once, finish, on, remember, rollback
from outboxkit.problems import Problem
from outboxkit.transaction import refuse_second_begin


def tree_of(route: APIRoute, request: Request) -> Any:
    """The route, with the path and the dependencies that including routers add."""
    context = request.scope.get("fastapi", {}).get("effective_route_context")
    return context if context is not None and context.original_route is route else route


def template_of(tree: Any, request: Request) -> str:
    """The path as the application declares it, from the outermost mount; the request's path if that is not known.

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
        ConfigurationError: it depends on two, or its answer or its work could not be stored.
    """
    idempotents = [one.call for one in _walk(tree.dependant, into=None) if isinstance(one.call, Idempotent)]
    if not idempotents:
        return None
    name = f"{'/'.join(sorted(tree.methods))} {tree.path_format}"
    if len({id(idempotent) for idempotent in idempotents}) > 1:
        raise ConfigurationError(f"{name} depends on two Idempotent at once; one is needed")
    if tree.methods & protocol.SAFE:
        raise ConfigurationError(
            f"{name} depends on Idempotent, but such a request changes nothing. Idempotency keys are for POST and "
            "PATCH. If a router has other endpoints as well, depend on Idempotent in the endpoints that need it"
        )
    _check_answer(tree, name)
    _check_session(tree.dependant, idempotents[0].session, name)
    return idempotents[0]


def _check_answer(tree: Any, name: str) -> None:
    response_class = tree.response_class
    answer = response_class.value if isinstance(response_class, DefaultPlaceholder) else response_class
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
    """Every dependency of a route, except those of a call of class `into`."""
    for one in dependant.dependencies:
        yield one
        if into is None or not isinstance(one.call, into):
            yield from _walk(one, into=into)


class IdempotentRoute(APIRoute):
    """The class of routes whose endpoints depend on `Idempotent`. It serves other endpoints as usual.

    Give it to a router, `APIRouter(route_class=IdempotentRoute)`, or to an application before its first endpoint,
    `app.router.route_class = IdempotentRoute`.

    Raises:
        ConfigurationError: an endpoint that depends on `Idempotent` is for GET, streams its answer, or does not use the
            session of `Idempotent`.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        idempotent = checked(self)
        if idempotent is not None:
            self.openapi_extra = documented(self.openapi_extra, self.dependant, idempotent.rules)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Answer]]:
        """FastAPI's own handler, between the begin and the end of an idempotent request."""
        handler = super().get_route_handler()
        looked_at: tuple[Any, Idempotent | None] = None, None

        async def handle(request: Request) -> Answer:
            nonlocal looked_at
            tree = tree_of(self, request)
            if looked_at[0] is not tree:
                looked_at = tree, checked(tree)
            idempotent = looked_at[1]
            state = open_state(request, template_of(tree, request))
            try:
                if idempotent is not None:
                    await _read(request, idempotent.rules)
                answer = await handler(request)
            except AlreadyAnswered as answered:
                return remembered_answer(answered.response)
            except Exception as error:  # noqa: BLE001  # raised again if there is no answer to it
                return await _failed(request, state, error)
            return answer if state.work is None else await _succeeded(state.work, answer)

        return handle


async def _read(request: Request, rules: protocol.Rules) -> None:
    """Read the body of a request with a key, unless it is too large.

    Raises:
        Problem: 413.
        HTTPException: 400; the client left before the end of the body.
    """
    if not rules.required and protocol.KEY not in request.headers:
        return
    if protocol.is_longer(request.headers.get("content-length"), rules.max_body):
        raise protocol.refused(problems.body_too_large(rules.max_body))
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > rules.max_body:
                raise protocol.refused(problems.body_too_large(rules.max_body))
    except ClientDisconnect:
        raise HTTPException(400, "The body ended too early") from None
    request._body = bytes(body)  # noqa: SLF001  # Request.body() looks there first, here and in the error handlers


async def _succeeded(work: Work, answer: Answer) -> Answer:
    """Commit the endpoint's work together with its answer, or roll it back if the answer is not to be remembered."""
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


async def _failed(request: Request, state: RequestState, error: Exception) -> Answer:
    """Roll back the endpoint's work. Remember the answer alone, if the error is one of the request's own."""
    work = state.work
    if work is None:
        if isinstance(error, Problem):
            return problem_answer(error)
        raise error
    await at_once(work.session, rollback)
    refuse_second_begin(error, "the endpoint")
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
            return remembered_answer(protocol.answered(outcome))
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
    return protocol.stored_part(answer.status_code, decoded(answer), bytes(body), work.rules)


def _with_expiry(answer: Answer, fresh: Fresh | None) -> Answer:
    if fresh is not None:
        answer.raw_headers += asgi_headers([protocol.expires_header(fresh)])
    return answer
