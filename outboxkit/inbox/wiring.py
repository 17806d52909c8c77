"""Wiring: what a consumer's modules give it: middleware, a lifespan with resources for its handlers, and readers.

An import error of a module names its line in the user's code.
There is no container: a resource is found by the annotation of a handler's parameter, when the consumer starts.
"""

import asyncio
import importlib
import inspect
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Union, cast, get_args, get_origin

from outboxkit.codec.envelopes import READERS, Reader
from outboxkit.errors import ConfigurationError, LifespanError
from outboxkit.errors.failures import first_line, path_of
from outboxkit.inbox.handlers import Handler, handler_of, is_required
from outboxkit.inbox.middleware import Layer, Middleware, check_colour, layers_of

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]
"""A function that returns an async context manager, as `@asynccontextmanager` makes them."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """The middleware and the lifespan of a consumer.

    Attributes:
        middleware: context managers around each handler, the first one outermost, outside the handler's own. Each is a
            function of the `Context`, made by `@contextmanager` or `@asynccontextmanager`.
        lifespan: a function without parameters, made by `@asynccontextmanager`. It is entered when the consumer starts
            and left when its handlers have ended. It yields a resource, whose class is its type, or a dict of resources
            by their types, or None.

    Raises:
        ConfigurationError: one of them is of another kind.
    """

    middleware: Sequence[Middleware] = ()
    lifespan: Lifespan | None = None

    def __post_init__(self) -> None:
        layers_of(self.middleware, "Wiring")
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
            ConfigurationError: no resource has the type of a parameter, or a middleware is async and a handler is not.
        """
        resources = resources or {}
        layers = layers_of(self.middleware, "Wiring")
        checked = [each if isinstance(each, Handler) else handler_of(each) for each in handlers]
        return [_prepared(handler, layers, resources) for handler in checked]

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


def _prepared(handler: Handler, layers: tuple[Layer, ...], resources: Mapping[Any, Any]) -> Handler:
    check_colour(layers, is_async=handler.is_async, handler=handler.name)
    values = dict(handler.values)
    for parameter in handler.parameters:
        union = get_args(parameter.annotation) if get_origin(parameter.annotation) in (Union, UnionType) else ()
        types = [
            type_ for type_ in (parameter.annotation, *union) if isinstance(type_, Hashable) and type_ in resources
        ]
        if types:
            values[parameter.name] = resources[types[0]]
        elif is_required(parameter) and parameter.name not in values:
            names = ", ".join(map(path_of, resources)) or "nothing"
            raise ConfigurationError(
                f"handler {handler.name!r}: nothing gives parameter {parameter.name!r} of {path_of(handler.function)}, "
                f"of type {path_of(parameter.annotation)}; the lifespan gives: {names}. "
                "To cure it, have the lifespan of the Wiring yield it, or give the parameter a default"
            )
    resources = {**handler.resources, **resources}
    return replace(handler, middleware=layers + handler.middleware, values=values, resources=resources)


def wiring_in(modules: Iterable[ModuleType]) -> Wiring:
    """The `Wiring` that these modules define or import; an empty one if there is none.

    Raises:
        ConfigurationError: there are two different ones.
    """
    places = {
        id(value): (f"{module.__name__}.{name}", value)
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Wiring)
    }
    if len(places) > 1:
        names = " and ".join(sorted(name for name, _ in places.values()))
        raise ConfigurationError(f"a consumer has one Wiring, found {names}: make one of them")
    return next((value for _, value in places.values()), Wiring())


def _is_lifespan(function: object) -> bool:
    return callable(function) and not (inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function))


@asynccontextmanager
async def _entered(lifespan: Lifespan) -> AsyncIterator[dict[Any, Any]]:
    """The resources of a lifespan by type. The lifespan sees an error of the block, and cannot swallow it."""
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


_OURS = str(Path(__file__).parents[1])


def load_module(name: str) -> ModuleType:
    """Import a module by its dotted name, also from the current directory.

    Raises:
        ConfigurationError: there is none, or it cannot be imported; the text names the file and the line.
    """
    if "" not in sys.path:  # an installed command starts without the current directory, which has the handlers
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except SystemExit as error:
        hint = 'put what only a program does under `if __name__ == "__main__":`'
        raise ConfigurationError(
            f"module {name!r} cannot be imported: {_location(error)}it ends the program, with sys.exit; {hint}"
        ) from error
    except Exception as error:
        is_path = not name or name.startswith(".")
        missing = name if is_path else error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            hint = "MODULE is a dotted name, importable from the current directory"
            module, colon, attribute = name.partition(":")
            if module.endswith(".py"):
                hint += f", without .py: {module.removesuffix('.py').lstrip('./').replace('/', '.')}"
            elif colon:
                hint += f", without :{attribute}: {module} is enough, all of its handlers are taken"
            raise ConfigurationError(f"no module named {missing!r}; {hint}") from None
        text = f"{type(error).__name__}: {error.msg}" if isinstance(error, SyntaxError) else first_line(error)
        raise ConfigurationError(f"module {name!r} cannot be imported: {_location(error)}{text}") from error


def load_readers(names: Sequence[str]) -> list[Reader]:
    """The readers of these names: built-in ones, or `MODULE:NAME` for one of your own.

    Raises:
        ConfigurationError: there is no such reader, or it cannot be called; the text suggests a similar name.
    """
    return [READERS[name]() if name in READERS else _own_reader(name) for name in names]


def _own_reader(name: str) -> Reader:
    module_name, _, attribute = name.partition(":")
    reader, hint = None, "" if attribute else _similar(name, READERS)
    if module_name and attribute:
        module = load_module(module_name)
        if not hasattr(module, attribute):
            similar = _similar(attribute, [each for each, value in vars(module).items() if callable(value)])
            raise ConfigurationError(
                f"OUTBOXKIT_READERS names {name!r}, and module {module_name!r} has no {attribute!r}{similar}"
            )
        reader = getattr(module, attribute)
        if isinstance(reader, type):
            hint = f"; it is a class: name an object of it, such as `{attribute.lower()} = {attribute}()` in the module"
    if not callable(reader) or isinstance(reader, type):
        known = ", ".join(READERS)
        raise ConfigurationError(
            f"OUTBOXKIT_READERS names {name!r}, which is not a reader: {known} is accepted, or MODULE:NAME. "
            f"That is a function, or an object that can be called, which takes an Envelope{hint}"
        )
    return cast("Reader", reader)


def _similar(name: str, names: Iterable[str]) -> str:
    """A question about the name that was probably meant; empty if none is similar."""
    nearest = get_close_matches(name, list(names), n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def _location(error: BaseException) -> str:
    """The file and line of the user's code that failed, skipping the import system and outboxkit's decorators."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}, line {error.lineno}: "
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_foreign(frame.filename)]
    return f"{_shown(frames[-1].filename)}, line {frames[-1].lineno}: " if frames else ""


def _is_foreign(file: str) -> bool:
    return file.startswith((_OURS, "<frozen", "<string>")) or file == importlib.__file__


def _shown(file: str) -> str:
    path, folder = Path(file), Path.cwd()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else file
