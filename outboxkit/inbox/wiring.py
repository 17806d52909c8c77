"""Wiring: what a consumer puts around its handlers, and what it gives them beyond session, event and message.

There is no container: a value is found by the annotation of a handler's parameter, when the consumer starts.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from types import ModuleType, UnionType
from typing import Any, Union, get_args, get_origin

from outboxkit.errors import ConfigurationError, LifespanError
from outboxkit.errors.failures import first_line, path_of
from outboxkit.inbox.handlers import Handler, handler_of
from outboxkit.inbox.middleware import Middleware, check_colour, layers_of
from outboxkit.inbox.providers import Provider
from outboxkit.inbox.signature import Parameter

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]
"""A function that returns an async context manager, as `@asynccontextmanager` makes them."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """The middleware, the providers and the lifespan of a consumer.

    Attributes:
        middleware: functions `(call, context)` around each handler, the first one outermost, outside the handler's own.
        providers: by type, the function that makes the value of a handler's parameter for one call. It is called with
            the `Context` if it has a parameter. If it is made by `@contextmanager` or `@asynccontextmanager`, what it
            yields is the value, and it is closed after the call.
        lifespan: a function without parameters, made by `@asynccontextmanager`. It is entered when the consumer starts
            and left when its handlers have ended. It yields a resource, whose class is its type, or a dict of resources
            by their types, or None.

    Raises:
        ConfigurationError: one of them is of another kind.
    """

    middleware: Sequence[Middleware] = ()
    providers: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    lifespan: Lifespan | None = None

    def __post_init__(self) -> None:
        layers_of(self.middleware, "Wiring")
        if not isinstance(self.providers, Mapping):
            raise ConfigurationError(
                f"Wiring: providers is {self.providers!r}; a dict of functions by type is accepted"
            )
        for type_, function in self.providers.items():
            Provider.of(type_, function)
        if self.lifespan is not None and not _is_lifespan(self.lifespan):
            raise ConfigurationError(
                f"Wiring: lifespan is {path_of(self.lifespan)}; an async def with a yield, and "
                "@contextlib.asynccontextmanager above it, is accepted"
            )

    def prepare(
        self, handlers: Iterable[Handler | Callable[..., Any]], resources: Mapping[Any, Any] | None = None
    ) -> list[Handler]:
        """The handlers with this wiring, for `run_once`, a `DirectPublisher` or a consumer of your own.

        Args:
            handlers: functions with `@inbox_handler`, or their `Handler`s.
            resources: by type, in place of those of the lifespan, which is not entered here.

        Raises:
            ConfigurationError: nothing provides a parameter, something is provided twice, or an `async def` would be
                called for a plain handler.
        """
        resources = resources or {}
        providers = {type_: Provider.of(type_, function) for type_, function in self.providers.items()}
        for type_, value in resources.items():
            if type_ in providers:
                raise ConfigurationError(f"{path_of(type_)} is given by the lifespan and by a provider: remove one")
            providers[type_] = Provider.fixed(value)
        checked = [each if isinstance(each, Handler) else handler_of(each) for each in handlers]
        return [self._prepared(handler, providers, resources) for handler in checked]

    @asynccontextmanager
    async def running(self, handlers: Iterable[Handler | Callable[..., Any]]) -> AsyncIterator[list[Handler]]:
        """The handlers with this wiring, from the start of the lifespan to its end.

        Raises:
            LifespanError: the lifespan failed at its start or at its end.
            ConfigurationError: as `prepare`.
        """
        if self.lifespan is None:
            yield self.prepare(handlers)
            return
        async with _entered(self.lifespan) as resources:
            yield self.prepare(handlers, resources)

    def _prepared(self, handler: Handler, providers: Mapping[Any, Provider], resources: Mapping[Any, Any]) -> Handler:
        layers = layers_of(self.middleware, "Wiring")
        check_colour(layers, is_async=handler.is_async, handler=handler.name)
        values = dict(handler.providers)
        for parameter in handler.parameters:
            if parameter.name in values:
                continue
            provider = _provider(parameter, providers)
            if provider is not None:
                provider.check_colour(is_async=handler.is_async, handler=handler.name)
                values[parameter.name] = provider
            elif parameter.is_required:
                raise ConfigurationError(self._unknown(handler, parameter, providers))
        return replace(
            handler,
            middleware=layers + handler.middleware,
            providers=values,
            resources={**handler.resources, **resources},
        )

    def _unknown(self, handler: Handler, parameter: Parameter, providers: Mapping[Any, Provider]) -> str:
        names = ", ".join(map(path_of, providers)) or "nothing"
        cure = "add a provider for it to the Wiring, have the lifespan yield it, or give the parameter a default"
        return (
            f"handler {handler.name!r}: nothing provides parameter {parameter.name!r} of {path_of(handler.function)}, "
            f"of type {path_of(parameter.type)}; provided is: {names}. To cure it, {cure}"
        )


def wiring_in(modules: Iterable[ModuleType]) -> Wiring:
    """The `Wiring` that these modules define or import; an empty one if there is none.

    Raises:
        ConfigurationError: there are two different ones.
    """
    places = {id(value): (f"{module.__name__}.{name}", value) for module in modules for name, value in _wirings(module)}
    if len(places) > 1:
        names = " and ".join(sorted(name for name, _ in places.values()))
        raise ConfigurationError(f"a consumer has one Wiring, found {names}: make one of them")
    return next((value for _, value in places.values()), Wiring())


def _wirings(module: ModuleType) -> list[tuple[str, Wiring]]:
    return [(name, value) for name, value in vars(module).items() if isinstance(value, Wiring)]


def _provider(parameter: Parameter, providers: Mapping[Any, Provider]) -> Provider | None:
    """The provider for the annotation as it is, or for a part of a union."""
    for type_ in (parameter.type, *(get_args(parameter.type) if _is_union(parameter.type) else ())):
        with suppress(TypeError):  # it cannot be a key
            if type_ in providers:
                return providers[type_]
    return None


def _is_union(annotation: object) -> bool:
    return get_origin(annotation) in (Union, UnionType)


def _is_lifespan(function: object) -> bool:
    return callable(function) and not (inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function))


@asynccontextmanager
async def _entered(lifespan: Lifespan) -> AsyncIterator[dict[Any, Any]]:
    """The resources of a lifespan by type. The lifespan sees an error of the block, and cannot swallow it.

    Raises:
        LifespanError: it failed at its start or at its end.
    """
    try:
        manager = lifespan()
        value = await manager.__aenter__()
    except Exception as error:
        raise LifespanError(f"the lifespan {path_of(lifespan)} failed at its start: {first_line(error)}") from error
    try:
        yield _by_type(value)
    except (Exception, asyncio.CancelledError) as error:
        await _leave(lifespan, manager, error)
        raise
    await _leave(lifespan, manager, None)


async def _leave(lifespan: Lifespan, manager: AbstractAsyncContextManager[Any], error: BaseException | None) -> None:
    traceback = None if error is None else error.__traceback__
    try:
        await manager.__aexit__(None if error is None else type(error), error, traceback)
    except Exception as other:
        if other is not error:
            raise LifespanError(f"the lifespan {path_of(lifespan)} failed at its end: {first_line(other)}") from other


def _by_type(value: object) -> dict[Any, Any]:
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else {type(value): value}
