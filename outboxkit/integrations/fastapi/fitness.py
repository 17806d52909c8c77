"""Whether a route can keep what `Idempotent` promises, found out before it is used."""

import inspect
from collections.abc import Iterator
from typing import Any

from fastapi import Request
from fastapi.datastructures import DefaultPlaceholder
from fastapi.dependencies.models import Dependant
from fastapi.params import Depends as Dependency
from fastapi.responses import FileResponse, StreamingResponse
from fastapi.routing import APIRoute

from outboxkit.errors import ConfigurationError
from outboxkit.integrations.fastapi.dependency import Idempotent

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
