"""A handler's signature: session, event, perhaps the message, and parameters that a consumer's wiring gives by type."""

import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from sqlalchemy.orm import Session, scoped_session

from outboxkit.codec import payloads, upcasts
from outboxkit.database.sqlalchemy_asyncio import AsyncSession, async_scoped_session
from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import printable, text_of
from outboxkit.events import is_event
from outboxkit.message import Message

_SYNC, _ASYNC = (Session, scoped_session), (AsyncSession, async_scoped_session)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_NONE = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a handler beyond its session, its event and a third one for the message.

    Attributes:
        name: as the function has it.
        type: its annotation, by which its value is found.
        is_required: whether it has no default.
    """

    name: str
    type: Any
    is_required: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """The facts of a handler's signature.

    Attributes:
        event_type: the class of its second parameter.
        takes_message: whether its third parameter is the message.
        is_async: whether it is an `async def`.
        parameters: all further ones.
    """

    event_type: type
    takes_message: bool
    is_async: bool
    parameters: tuple[Parameter, ...]


def read_signature(function: Callable[..., Any], handler: str) -> Signature:
    """The signature of a handler; `handler` names it in errors.

    Raises:
        ConfigurationError: it is not the signature of a handler, or no payload could be decoded to its event.
    """
    qualname = getattr(function, "__qualname__", repr(function))
    parameters = list(inspect.signature(function).parameters.values())
    by_position, further = parameters[:2], parameters[2:]
    if len(by_position) < 2 or any(parameter.kind not in _POSITIONAL for parameter in by_position):
        raise ConfigurationError(
            f"{handler} is {qualname}({', '.join(map(str, parameters))}); it takes (session, event), "
            "(session, event, message), or these and parameters whose types a wiring provides"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"{handler}: {qualname} is a generator (it has a yield), so calling it runs nothing")
    is_async, hints = inspect.iscoroutinefunction(function), _hints(function, handler, qualname)
    _check_session(hints.get(by_position[0].name), is_async=is_async, handler=handler, qualname=qualname)
    event_type = _event_type(hints, by_position[1].name, handler, qualname)
    takes_message = bool(further) and _is_message(further[0], hints)
    rest = tuple(_parameter(each, hints, handler, qualname) for each in further[takes_message:])
    return Signature(event_type, takes_message, is_async, rest)


def _is_message(parameter: inspect.Parameter, hints: dict[str, Any]) -> bool:
    """Whether a third parameter is the message: by its annotation, or if it has none by its name or lack of default."""
    if parameter.kind not in _POSITIONAL:
        return False
    annotation = hints.get(parameter.name, _NONE)
    if annotation in (_NONE, Any, object):
        return parameter.name == "message" or (annotation is _NONE and parameter.default is _NONE)
    return Message in _types(annotation)


def _parameter(parameter: inspect.Parameter, hints: dict[str, Any], handler: str, qualname: str) -> Parameter:
    annotation = hints.get(parameter.name, _NONE)
    is_required = parameter.default is _NONE
    if parameter.kind not in _BY_NAME:
        raise ConfigurationError(
            f"{handler}: {qualname} has the parameter {str(parameter)!r}; each parameter after (session, event) or "
            "(session, event, message) is given by its name"
        )
    if annotation is _NONE and is_required:
        raise ConfigurationError(
            f"{handler}: parameter {parameter.name!r} of {qualname} has no annotation; its value is found by its type. "
            "Annotate it, or give it a default"
        )
    return Parameter(parameter.name, annotation, is_required)


def _hints(function: Callable[..., Any], handler: str, qualname: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        text = printable(text_of(error))
        raise ConfigurationError(f"{handler}: the annotations of {qualname} cannot be resolved: {text}") from error


def _check_session(annotation: object, *, is_async: bool, handler: str, qualname: str) -> None:
    """Refuse an event, an `AsyncSession` on a `def`, and a `Session` on an `async def`: their calls would do nothing.

    Raises:
        ConfigurationError: the annotation is an event, or of the other kind.
    """
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
