"""Middleware: context managers around the call of a handler, inside its transaction."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar, cast

from sqlalchemy.orm import Session

from outboxkit.database.sqlalchemy_asyncio import AsyncSession, await_
from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import path_of
from outboxkit.message import Message

S = TypeVar("S", bound=Session | AsyncSession)
T = TypeVar("T")

Middleware = Callable[[Any], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
"""A function that takes the `Context`, made by `@contextmanager` or `@asynccontextmanager`."""


@dataclass(slots=True)
class Context(Generic[S]):
    """The call of a handler, as a middleware sees it.

    Attributes:
        session: the handler's; a plain middleware gets a `Session`, whatever the handler has.
        event: the one that the handler gets.
        message: the message that arrived.
        handler: the handler's durable name.
        attempt: the number of the attempt, from 1.
        resources: the resources that the lifespan has given, by type.
    """

    session: S
    event: Any
    message: Message
    handler: str
    attempt: int
    resources: Mapping[Any, Any]

    def resource(self, type_: type[T]) -> T:
        """The resource of this type.

        Raises:
            ConfigurationError: the lifespan has given none.
        """
        if type_ not in self.resources:
            names = ", ".join(map(path_of, self.resources)) or "none"
            raise ConfigurationError(f"no resource is a {path_of(type_)}: the lifespan gave {names}")
        return cast("T", self.resources[type_])


@dataclass(frozen=True, slots=True)
class Layer:
    """A middleware that was checked, and whether it is entered by `async with`."""

    function: Middleware
    is_async: bool


def layers_of(middleware: Iterable[Middleware], place: str) -> tuple[Layer, ...]:
    """The checked middleware of `place`, which errors name; the first one is the outermost.

    Raises:
        ConfigurationError: it is not a list of functions, or one of them is a generator.
    """
    if isinstance(middleware, str | Mapping) or not isinstance(middleware, Iterable):
        raise ConfigurationError(f"{place}: middleware is {middleware!r}; a list of functions is accepted")
    layers = []
    for each in middleware:
        if not callable(each):
            raise ConfigurationError(f"{place}: {each!r} is not a middleware: a function (context) is accepted")
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            decorator = "asynccontextmanager" if inspect.isasyncgenfunction(each) else "contextmanager"
            raise ConfigurationError(f"{place}: middleware {path_of(each)} has a yield: put @{decorator} above it")
        layers.append(Layer(each, inspect.isasyncgenfunction(inspect.unwrap(each)) or hasattr(each, "__aenter__")))
    return tuple(layers)


def check_colour(layers: Iterable[Layer], *, is_async: bool, handler: str) -> None:
    """Refuse async middleware for a plain handler, which cannot await it.

    Raises:
        ConfigurationError: there is some.
    """
    for each in layers:
        if each.is_async and not is_async:
            raise ConfigurationError(
                f"middleware {path_of(each.function)} is async, and handler {handler!r} a plain def, which cannot "
                "await it. Make the middleware a plain @contextmanager, which serves both kinds"
            )


@contextmanager
def entered(layers: Iterable[Layer], context: Context[Any], proxy: AsyncSession | None) -> Iterator[None]:
    """The block runs inside the middleware, the first one outermost. None of them can swallow an error of the block.

    Args:
        layers: the middleware.
        context: of the call, with the plain session.
        proxy: the `AsyncSession` of an async handler, which runs in a greenlet of SQLAlchemy.

    Raises:
        ConfigurationError: a middleware has not returned a context manager.
    """
    with ExitStack() as stack:
        for layer in layers:
            manager: Any = layer.function(replace(context, session=proxy) if layer.is_async else context)
            if not hasattr(manager, "__aenter__" if layer.is_async else "__enter__"):
                raise ConfigurationError(
                    f"middleware {path_of(layer.function)} returned {path_of(type(manager))}, which is not a "
                    "context manager: write a function with one yield, and @contextmanager above it"
                )
            if layer.is_async:
                await_(manager.__aenter__())
            else:
                manager.__enter__()
            stack.push(partial(_leave, manager, layer))
        yield


def _leave(manager: Any, layer: Layer, *error: object) -> None:
    """Leave a middleware. Its answer, by which it could swallow the error, is not returned."""
    if layer.is_async:
        await_(manager.__aexit__(*error))
    else:
        manager.__exit__(*error)
