"""Handlers: `@inbox_handler`, what it says of a function, and where handlers are found."""

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from types import CodeType, ModuleType
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from outboxkit import models
from outboxkit.errors import ConfigurationError
from outboxkit.events import is_event, name_of
from outboxkit.failures import printable, text_of
from outboxkit.message import NAME_LIMIT, is_storable_name
from outboxkit.retry import Retries

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__outboxkit_handler__"
_SYNC, _ASYNC = (Session, scoped_session), (AsyncSession, async_scoped_session)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler function, what `@inbox_handler` says of it and what its signature says.

    Attributes:
        name: durable; with the message id it is the key of the inbox row.
        function: called as `function(session, event)` or `function(session, event, message)`.
        event_type: the class that the payload is decoded to.
        takes_message: whether the function has a third parameter.
        is_async: whether it is an `async def`, and so gets an `AsyncSession`.
        batch: whether it may share a transaction with others, and be run again because another one failed.
        timeout: how long it may run; for ever where None.
        retry: what becomes of the message when it fails, where that differs from the consumer's rule.
    """

    name: str
    function: Callable[..., Any]
    event_type: type
    takes_message: bool
    is_async: bool
    batch: bool = False
    timeout: timedelta | None = None
    retry: Retries | None = None

    @property
    def message_type(self) -> str:
        """The type of the messages that it handles."""
        return name_of(self.event_type)


@dataclass(frozen=True, slots=True)
class _Mark:
    """What `@inbox_handler` was told."""

    name: str
    batch: bool
    timeout: timedelta | None
    retry: Retries | None


def inbox_handler(
    name: str, *, batch: bool = False, timeout: timedelta | float | None = None, retry: Retries | None = None
) -> Callable[[F], F]:
    """Mark a function as the handler of an event: `(session, event)` or `(session, event, message)`, def or async def.

    The event type is the annotation of the second parameter. The name is durable: it is stored with each handled
    message, so renaming the function is free and renaming the handler makes every message new to it. The function
    is returned as it was and registered nowhere: a consumer is given its handlers.

    Args:
        name: 1 to 255 bytes that a table can hold.
        batch: all effects of the handler are in its session, so that it may be run again: then a consumer runs many
            messages in one transaction, and all of them again when one fails.
        timeout: seconds, or a timedelta, after which it is cancelled and has failed. In an asynchronous session only;
            a call that blocks the event loop is not interrupted.
        retry: how often and when it is tried again, where that is not as the consumer's settings say.

    Raises:
        ConfigurationError: the name cannot be stored, or an option is of another kind.
    """
    if isinstance(bare := getattr(name, "__code__", None), CodeType):
        place = f"{bare.co_filename}, line {bare.co_firstlineno}"
        raise ConfigurationError(
            f'@inbox_handler has no name on {bare.co_qualname} ({place}): write @inbox_handler("HandleOrder")'
        )
    if not isinstance(name, str) or not is_storable_name(name):
        raise ConfigurationError(
            f"@inbox_handler takes a name of 1 to {NAME_LIMIT} bytes that a table can hold (no NUL character, no lone "
            f'surrogate), as in @inbox_handler("HandleOrder"); found {printable(repr(name), 300)}'
        )
    if not isinstance(batch, bool):
        raise ConfigurationError(f"@inbox_handler({name!r}): batch is {batch!r}; True or False is accepted")
    if retry is not None and not isinstance(retry, Retries):
        raise ConfigurationError(
            f"@inbox_handler({name!r}): retry is {retry!r}; Retries(...) is accepted, as in Retries(max_attempts=3)"
        )
    told = _Mark(name, batch, _duration(name, timeout), retry)

    def mark(function: F) -> F:
        setattr(function, _MARK, told)
        return function

    return mark


@cache
def handler_of(function: Callable[..., Any]) -> Handler:
    """What `@inbox_handler` and the signature say about a function.

    Raises:
        ConfigurationError: it is not marked, its signature is not that of a handler, or no payload could be read as
            its event.
    """
    told: _Mark | None = getattr(function, _MARK, None)
    shown = getattr(function, "__qualname__", repr(function))
    if told is None:
        raise ConfigurationError(f'{shown} is no handler: decorate it with @inbox_handler("…")')
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) not in (2, 3) or any(parameter.kind not in _POSITIONAL for parameter in parameters):
        found = ", ".join(map(str, parameters))
        raise ConfigurationError(
            f"handler {told.name!r} is {shown}({found}); it takes (session, event) or (session, event, message)"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"handler {told.name!r}: {shown} is a generator (it has a yield), so calling it runs nothing"
        )
    label, is_async = f"handler {told.name!r}", inspect.iscoroutinefunction(function)
    hints = _hints(function, label, shown)
    _check_session(hints.get(parameters[0].name), is_async=is_async, handler=label, shown=shown)
    return Handler(
        told.name,
        function,
        _event_type(hints, parameters[1].name, label, shown),
        takes_message=len(parameters) == 3,
        is_async=is_async,
        batch=told.batch,
        timeout=told.timeout,
        retry=told.retry,
    )


def handlers_in(modules: Iterable[ModuleType]) -> list[Handler]:
    """The handlers that these modules define or import, each once, in the order in which they are found.

    Raises:
        ConfigurationError: two different handlers have one name, a signature is wrong, a method is marked, or there is
            no handler at all.
    """
    listed = list(modules)
    found: dict[str, Handler] = {}
    for function in _marked(listed):
        handler = handler_of(function)
        other = found.setdefault(handler.name, handler)
        if other.function is not function:
            raise ConfigurationError(
                f"two handlers are named {handler.name!r}: {_place(other.function)} and {_place(function)}. "
                "The name is what the inbox remembers: give each its own"
            )
    if methods := list(_methods(listed, found.values())):
        raise ConfigurationError(
            f"handlers are functions of their module, and methods are not found: {', '.join(methods)}. Move it out of "
            "its class, or give it to the module as that of an object, as in confirm = Orders().confirm"
        )
    if not found:
        names = ", ".join(module.__name__ for module in listed)
        raise ConfigurationError(f'no handler in {names}: mark functions with @inbox_handler("…")')
    return list(found.values())


def _duration(name: str, timeout: object) -> timedelta | None:
    found = timeout
    if isinstance(found, int | float) and not isinstance(found, bool):
        with suppress(OverflowError, ValueError):  # not a number, or for ever
            found = timedelta(seconds=found)
    if found is None or (isinstance(found, timedelta) and found > timedelta(0)):
        return found
    raise ConfigurationError(
        f"@inbox_handler({name!r}): timeout is {timeout!r}; a number of seconds or a timedelta above 0 is accepted, "
        "or None"
    )


def _hints(function: Callable[..., Any], handler: str, shown: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception as error:
        text = printable(text_of(error))
        raise ConfigurationError(f"{handler}: the annotations of {shown} cannot be resolved: {text}") from error


def _check_session(annotation: object, *, is_async: bool, handler: str, shown: str) -> None:
    """Refuse a session annotation of the other colour: such a handler would await nothing, and nothing would be done.

    Raises:
        ConfigurationError: it is.
    """
    named = list(_types(annotation))
    right, wrong = (_ASYNC, _SYNC) if is_async else (_SYNC, _ASYNC)
    if any(issubclass(each, wrong) for each in named) and not any(issubclass(each, right) for each in named):
        kind, session = ("an async def", "AsyncSession") if is_async else ("a plain def", "Session")
        found = next(each.__name__ for each in named if issubclass(each, wrong))
        raise ConfigurationError(
            f"{handler}: {shown} is {kind}, which gets a{'n' * is_async} {session}, but its session is annotated as "
            f"{found}: annotate it as {session}, or make it {'a plain def' if is_async else 'an async def'}"
        )


def _types(annotation: object) -> Iterator[type]:
    """The classes that an annotation names, also inside of a union or of brackets."""
    for each in (annotation, typing.get_origin(annotation)):
        if isinstance(each, type):
            yield each
    for argument in typing.get_args(annotation):
        yield from _types(argument)


def _event_type(hints: dict[str, Any], parameter: str, handler: str, shown: str) -> type:
    found = hints.get(parameter)
    if not isinstance(found, type) or not is_event(found):
        has = "no annotation" if found is None else repr(found)
        raise ConfigurationError(
            f"{handler}: parameter {parameter!r} of {shown} has {has}; annotate it with an @event class"
        )
    try:
        models.check(found)
    except ConfigurationError as error:
        raise ConfigurationError(f"{handler}: {error}") from error
    return found


def _marked(modules: Iterable[ModuleType]) -> Iterator[Callable[..., Any]]:
    seen: set[int] = set()
    for module in modules:
        for candidate in vars(module).values():
            if callable(candidate) and not isinstance(candidate, type) and id(candidate) not in seen:
                seen.add(id(candidate))
                if isinstance(getattr(candidate, _MARK, None), _Mark):
                    yield candidate


def _methods(modules: Iterable[ModuleType], handlers: Iterable[Handler]) -> Iterator[str]:
    """Methods that are marked, of classes that the modules define, unless the module has one of an object."""
    bound = {getattr(handler.function, "__func__", handler.function) for handler in handlers}
    for module in modules:
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == module.__name__:
                for attribute in vars(cls).values():
                    method = getattr(attribute, "__func__", attribute)
                    if isinstance(getattr(method, _MARK, None), _Mark) and method not in bound:
                        yield _place(method)


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"
