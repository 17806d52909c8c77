"""Handlers: the decorator `@inbox_handler`, the signature of a handler, and the lookup of handlers in modules."""

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from types import CodeType, ModuleType
from typing import Annotated, Any, TypeVar, get_args, get_origin

from sqlalchemy.orm import Session, scoped_session

from outboxkit.codec import payloads, upcasts
from outboxkit.database.sqlalchemy_asyncio import AsyncSession, async_scoped_session
from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import path_of, printable, text_of
from outboxkit.events import declaration_of, is_event, name_of
from outboxkit.inbox.middleware import Layer, Middleware, check_colour, layers_of
from outboxkit.message import NAME_LIMIT, Message, is_storable_name
from outboxkit.retry import Retries
from outboxkit.runtime.sources import MOST_AT_ONCE

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_MARK = "__outboxkit_handler__"
_SYNC, _ASYNC = (Session, scoped_session), (AsyncSession, async_scoped_session)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_NONE = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler function, with the facts of its signature and the options of its `@inbox_handler`, explained there.

    Attributes:
        name: durable; together with the message id it is the key of the inbox row.
        function: called as `function(session, event)` or `function(session, event, message)`.
        event_type: the class that the payload is decoded to.
        takes_message: whether the function has a third parameter.
        is_async: whether it is an `async def`, and so gets an `AsyncSession`.
        parameters: those beyond session, event and message, with their annotations resolved.
        values: of its parameters, by their names; a consumer's wiring adds them.
        resources: the lifespan's resources, by type.
    """

    name: str
    function: Callable[..., Any]
    event_type: type
    takes_message: bool
    is_async: bool
    batch: bool = False
    timeout: timedelta | None = None
    retry: Retries | None = None
    parameters: tuple[inspect.Parameter, ...] = field(default=(), compare=False)
    middleware: tuple[Layer, ...] = field(default=(), compare=False)
    values: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    resources: Mapping[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    in_loop: bool = False
    queue: str | None = None
    concurrency: int | None = None

    @property
    def in_thread(self) -> bool:
        """Whether a consumer runs it in a thread, with a `Session` of that thread."""
        return not (self.is_async or self.in_loop)

    @property
    def message_type(self) -> str:
        """The type of the messages that it handles."""
        return name_of(self.event_type)

    @property
    def message_types(self) -> tuple[str, ...]:
        """All types of the messages that it handles: that of its event, and its earlier names."""
        return declaration_of(self.event_type).names


class _Options(dict[str, Any]):
    """The arguments of `@inbox_handler`, by the names that `Handler` has for them."""


def inbox_handler(
    name: str,
    *,
    batch: bool = False,
    timeout: timedelta | float | None = None,
    retry: Retries | None = None,
    middleware: Sequence[Middleware] = (),
    in_loop: bool = False,
    queue: str | None = None,
    concurrency: int | None = None,
) -> Callable[[Decorated], Decorated]:
    """Mark a function as the handler of an event: `(session, event)` or `(session, event, message)`, def or async def.

    The event type is the annotation of the second parameter. Further parameters get resources of the consumer's
    lifespan, by their types. The name is durable, because it is stored with each handled message. Renaming the
    function is free; renaming the handler makes every message new to it. The function is returned unchanged and
    registered nowhere: a consumer gets its handlers as an argument.

    Args:
        name: 1 to 255 bytes that a table can hold.
        batch: declares that all effects of the handler are in its session, so that it may be run again. A consumer
            then handles many messages in one transaction, and handles them again when one fails.
        timeout: seconds, or a timedelta, after which it is cancelled and has failed. It holds in consumers and in
            asynchronous sessions. A call that blocks the event loop is not interrupted. One that blocks a thread
            outside the database goes on, and the transaction is rolled back all the same.
        retry: its own rule for retries, instead of the consumer's settings.
        middleware: context managers around it, in its transaction, the first one outermost. Each is a function of the
            `Context`, made by `@contextmanager` or `@asynccontextmanager`.
        in_loop: whether a plain `def` runs in the event loop of a consumer, and nothing else meanwhile. Without it, it
            runs in a thread with a `Session` of its own.
        queue: the queue from which it gets its messages. A consumer of several queues needs it; one of another queue
            leaves the handler out.
        concurrency: how many messages it handles at once in one process. Not with `batch`, which has one transaction.

    Raises:
        ConfigurationError: the name cannot be stored, or an option is of another kind.
    """
    if isinstance(bare := getattr(name, "__code__", None), CodeType):
        location = f"{bare.co_filename}, line {bare.co_firstlineno}"
        raise ConfigurationError(
            f'@inbox_handler has no name on {bare.co_qualname} ({location}): write @inbox_handler("HandleOrder")'
        )
    if not isinstance(name, str) or not is_storable_name(name):
        raise ConfigurationError(
            f"@inbox_handler takes a name of 1 to {NAME_LIMIT} bytes without NUL characters and lone surrogates, "
            f'as in @inbox_handler("HandleOrder"); found {printable(repr(name), 300)}'
        )
    label = f"@inbox_handler({name!r})"
    _check_concurrency(label, concurrency, batch=batch)
    if queue is not None and not (isinstance(queue, str) and queue):
        raise ConfigurationError(f"{label}: queue is {queue!r}; the name of a queue is accepted")
    options = _Options(
        name=name,
        batch=batch,
        timeout=_duration(name, timeout),
        retry=retry,
        middleware=layers_of(middleware, label),
        in_loop=in_loop,
        queue=queue,
        concurrency=concurrency,
    )

    def mark(function: Decorated) -> Decorated:
        setattr(function, _MARK, options)
        return function

    return mark


@cache
def handler_of(function: Callable[..., Any]) -> Handler:
    """The `Handler` of a function: the options of its `@inbox_handler`, checked against its signature.

    Raises:
        ConfigurationError: it is not decorated, its signature is not that of a handler, or no payload could be decoded
            to its event. Or an upcast is missing between version 1 of its event and the one of its class.
    """
    options: _Options | None = getattr(function, _MARK, None)
    qualname = getattr(function, "__qualname__", repr(function))
    if options is None:
        raise ConfigurationError(f'{qualname} is not a handler: decorate it with @inbox_handler("…")')
    label = f"handler {options['name']!r}"
    is_async = inspect.iscoroutinefunction(function)
    check_colour(options["middleware"], is_async=is_async, handler=options["name"])
    if is_async and options["in_loop"]:
        raise ConfigurationError(f"{label}: in_loop is for a plain def; {qualname} is an async def, always in the loop")
    event_type, takes_message, parameters = _read_signature(function, label, is_async=is_async)
    return Handler(
        function=function,
        event_type=event_type,
        takes_message=takes_message,
        is_async=is_async,
        parameters=parameters,
        **options,
    )


def handlers_in(modules: Iterable[ModuleType]) -> list[Handler]:
    """The handlers that these modules define or import, each once, in order of appearance.

    Raises:
        ConfigurationError: two different handlers have one name, a signature is wrong, a method is decorated, or no
            handler is found.
    """
    sources = list(modules)
    by_name: dict[str, Handler] = {}
    for function in _marked(sources):
        handler = handler_of(function)
        other = by_name.setdefault(handler.name, handler)
        if other.function is not function:
            raise ConfigurationError(
                f"two handlers are named {handler.name!r}: {path_of(other.function)} and {path_of(function)}. "
                "The name is what the inbox remembers: give each its own"
            )
    if methods := list(_methods(sources, by_name.values())):
        raise ConfigurationError(
            f"handlers are functions of their module, and methods are not found: {', '.join(methods)}. Move it out of "
            "its class, or bind it to an object in the module, as in confirm = Orders().confirm"
        )
    if not by_name:
        names = ", ".join(module.__name__ for module in sources)
        package = next((module.__name__ for module in sources if hasattr(module, "__path__")), None)
        hint = f", or name the module of the package that has them, such as {package}.handlers" if package else ""
        raise ConfigurationError(f'no handler in {names}: mark functions with @inbox_handler("…"){hint}')
    return list(by_name.values())


def _duration(name: str, timeout: object) -> timedelta | None:
    duration = timeout
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        with suppress(OverflowError, ValueError):  # not a number, or infinite
            duration = timedelta(seconds=duration)
    if duration is None or (isinstance(duration, timedelta) and duration > timedelta(0)):
        return duration
    raise ConfigurationError(
        f"@inbox_handler({name!r}): timeout is {timeout!r}; a number of seconds or a timedelta above 0 is accepted, "
        "or None"
    )


def _check_concurrency(label: str, concurrency: object, *, batch: bool) -> None:
    if concurrency is None:
        return
    if batch:
        raise ConfigurationError(f"{label}: batch and concurrency exclude each other: one batch is handled at a time")
    if type(concurrency) is not int or not 1 <= concurrency <= MOST_AT_ONCE:
        accepted = f"a whole number from 1 to {MOST_AT_ONCE} is accepted"
        raise ConfigurationError(f"{label}: concurrency is {concurrency!r}; {accepted}")


def _marked(modules: Iterable[ModuleType]) -> Iterator[Callable[..., Any]]:
    ids: set[int] = set()
    for module in modules:
        for candidate in vars(module).values():
            if callable(candidate) and not isinstance(candidate, type) and id(candidate) not in ids:
                ids.add(id(candidate))
                if _is_marked(candidate):
                    yield candidate


def _is_marked(candidate: object) -> bool:
    try:
        return isinstance(getattr(candidate, _MARK, None), _Options)
    except Exception:  # noqa: BLE001 - a proxy that stands for nothing now, such as Flask's `request`
        return False


def _methods(modules: Iterable[ModuleType], handlers: Iterable[Handler]) -> Iterator[str]:
    """Decorated methods of classes that the modules define, except those bound to an object in the module."""
    bound = {getattr(handler.function, "__func__", handler.function) for handler in handlers}
    for module in modules:
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == module.__name__:
                for attribute in vars(cls).values():
                    is_wrapped = isinstance(attribute, staticmethod | classmethod)
                    method = attribute.__func__ if is_wrapped else attribute
                    if _is_marked(method) and method not in bound:
                        yield path_of(method)


def _read_signature(
    function: Callable[..., Any], handler: str, *, is_async: bool
) -> tuple[type, bool, tuple[inspect.Parameter, ...]]:
    """The class of its event, whether its third parameter is the message, and further ones. Errors name `handler`."""
    qualname = getattr(function, "__qualname__", repr(function))
    parameters = list(inspect.signature(function).parameters.values())
    by_position, further = parameters[:2], parameters[2:]
    if len(by_position) < 2 or any(parameter.kind not in _POSITIONAL for parameter in by_position):
        raise ConfigurationError(
            f"{handler} is {qualname}({', '.join(map(str, parameters))}); it takes (session, event), "
            "(session, event, message), or these and parameters of the types that a lifespan yields"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"{handler}: {qualname} is a generator (it has a yield), so calling it runs nothing")
    hints = _hints(function, handler, qualname)
    _check_session(hints.get(by_position[0].name), is_async=is_async, handler=handler, qualname=qualname)
    event_type = _event_type(hints, by_position[1].name, handler, qualname)
    takes_message = bool(further) and _is_message(further[0], hints)
    rest = tuple(_parameter(each, hints, handler, qualname) for each in further[takes_message:])
    return event_type, takes_message, rest


def _is_message(parameter: inspect.Parameter, hints: dict[str, Any]) -> bool:
    """Whether a third parameter is the message: by its annotation, or if it has none by its name or lack of default."""
    if parameter.kind not in _POSITIONAL:
        return False
    annotation = hints.get(parameter.name, _NONE)
    if annotation in (_NONE, Any, object):
        return parameter.name == "message" or (annotation is _NONE and parameter.default is _NONE)
    return Message in _types(annotation)


def _parameter(parameter: inspect.Parameter, hints: dict[str, Any], handler: str, qualname: str) -> inspect.Parameter:
    annotation = hints.get(parameter.name, _NONE)
    if parameter.kind not in _BY_NAME:
        raise ConfigurationError(
            f"{handler}: {qualname} has the parameter {str(parameter)!r}; each parameter after (session, event) or "
            "(session, event, message) is given by its name"
        )
    if annotation is _NONE and is_required(parameter):
        raise ConfigurationError(
            f"{handler}: parameter {parameter.name!r} of {qualname} has no annotation; its value is found by its type. "
            "Annotate it, or give it a default"
        )
    return parameter.replace(annotation=annotation)


def is_required(parameter: inspect.Parameter) -> bool:
    """Whether it has no default."""
    return parameter.default is _NONE


def _hints(function: Callable[..., Any], handler: str, qualname: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        text = printable(text_of(error))
        raise ConfigurationError(f"{handler}: the annotations of {qualname} cannot be resolved: {text}") from error


def _check_session(annotation: object, *, is_async: bool, handler: str, qualname: str) -> None:
    """Refuse an event, an `AsyncSession` on a `def`, a `Session` on an `async def`: such calls do nothing."""
    classes = list(_types(annotation))
    if any(map(is_event, classes)):
        raise ConfigurationError(
            f"{handler}: the first parameter of {qualname} is annotated as an event; it takes (session, event)"
        )
    right, wrong = (_ASYNC, _SYNC) if is_async else (_SYNC, _ASYNC)
    if any(issubclass(each, wrong) for each in classes) and not any(issubclass(each, right) for each in classes):
        kind, session = ("an async def", "AsyncSession") if is_async else ("a plain def", "Session")
        annotated = next(each.__name__ for each in classes if issubclass(each, wrong))
        raise ConfigurationError(
            f"{handler}: {qualname} is {kind}, which gets a{'n' * is_async} {session}, but its session is annotated as "
            f"{annotated}: annotate it as {session}, or make it {'a plain def' if is_async else 'an async def'}"
        )


def _types(annotation: object) -> Iterator[type]:
    """The classes that an annotation names, also inside a union or brackets."""
    for each in (annotation, get_origin(annotation)):
        if isinstance(each, type):
            yield each
    for argument in get_args(annotation):
        yield from _types(argument)


def _event_type(hints: dict[str, Any], parameter: str, handler: str, qualname: str) -> type:
    cls = hints.get(parameter)
    if get_origin(cls) is Annotated:
        cls = get_args(cls)[0]
    if not isinstance(cls, type) or not is_event(cls):
        has = "no annotation" if cls is None else repr(cls)
        raise ConfigurationError(
            f"{handler}: parameter {parameter!r} of {qualname} has {has}; annotate it with an @event class"
        )
    try:
        payloads.check_event_class(cls)
        upcasts.chain_of(cls)
    except ConfigurationError as error:
        raise ConfigurationError(f"{handler}: {error}") from error
    return cls
