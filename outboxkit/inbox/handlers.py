"""Handlers: the decorator `@inbox_handler`, and the lookup of handlers in modules."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from types import CodeType, ModuleType
from typing import Any, TypeVar

from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import path_of, printable
from outboxkit.events import declaration_of, name_of
from outboxkit.inbox.middleware import Layer, Middleware, check_colour, layers_of
from outboxkit.inbox.providers import MESSAGE, Provider
from outboxkit.inbox.signature import Parameter, read_signature
from outboxkit.message import NAME_LIMIT, Message, is_storable_name
from outboxkit.retry import Retries
from outboxkit.runtime.sources import MOST_AT_ONCE

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__outboxkit_handler__"


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler function, with the options of its `@inbox_handler` and the facts of its signature.

    Attributes:
        name: durable; together with the message id it is the key of the inbox row.
        function: called as `function(session, event)` or `function(session, event, message)`.
        event_type: the class that the payload is decoded to.
        takes_message: whether the function has a third parameter.
        is_async: whether it is an `async def`, and so gets an `AsyncSession`.
        batch: whether it may share a transaction with others, and be run again because another one failed.
        timeout: how long it may run; None means without limit.
        retry: its own rule for retries; None means the consumer's.
        parameters: those beyond session, event and message.
        middleware: called around it, the first one outermost.
        providers: the makers of its parameters' values, by their names; a consumer's wiring adds them.
        resources: the lifespan's resources, by type.
        in_loop: whether a plain `def` runs in the event loop of a consumer, and not in a thread.
        queue: the queue from which it gets its messages; None means the only one of its consumer.
        concurrency: how many messages it handles at once in a process; None means as many as its queue.
    """

    name: str
    function: Callable[..., Any]
    event_type: type
    takes_message: bool
    is_async: bool
    batch: bool = False
    timeout: timedelta | None = None
    retry: Retries | None = None
    parameters: tuple[Parameter, ...] = field(default=(), compare=False)
    middleware: tuple[Layer, ...] = field(default=(), compare=False)
    providers: Mapping[str, Provider] = field(default_factory=dict, compare=False)
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


@dataclass(frozen=True, slots=True)
class _Mark:
    """The arguments of `@inbox_handler`."""

    name: str
    batch: bool
    timeout: timedelta | None
    retry: Retries | None
    middleware: tuple[Layer, ...]
    in_loop: bool
    queue: str | None
    concurrency: int | None


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
) -> Callable[[F], F]:
    """Mark a function as the handler of an event: `(session, event)` or `(session, event, message)`, def or async def.

    The event type is the annotation of the second parameter. Further parameters get their values from the consumer's
    `Wiring`, by their types. The name is durable, because it is stored with each handled message. Renaming the
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
        middleware: functions `(call, context)` around it, in its transaction, the first one outermost.
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
    if not isinstance(batch, bool):
        raise ConfigurationError(f"@inbox_handler({name!r}): batch is {batch!r}; True or False is accepted")
    if retry is not None and not isinstance(retry, Retries):
        raise ConfigurationError(
            f"@inbox_handler({name!r}): retry is {retry!r}; Retries(...) is accepted, as in Retries(max_attempts=3)"
        )
    if not isinstance(in_loop, bool):
        raise ConfigurationError(f"@inbox_handler({name!r}): in_loop is {in_loop!r}; True or False is accepted")
    label = f"@inbox_handler({name!r})"
    _check_concurrency(label, concurrency, batch=batch)
    if queue is not None and not (isinstance(queue, str) and queue):
        raise ConfigurationError(f"{label}: queue is {queue!r}; the name of a queue is accepted")
    layers = layers_of(middleware, label)
    options = _Mark(name, batch, _duration(name, timeout), retry, layers, in_loop, queue, concurrency)

    def mark(function: F) -> F:
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
    mark: _Mark | None = getattr(function, _MARK, None)
    qualname = getattr(function, "__qualname__", repr(function))
    if mark is None:
        raise ConfigurationError(f'{qualname} is not a handler: decorate it with @inbox_handler("…")')
    facts = read_signature(function, f"handler {mark.name!r}")
    check_colour(mark.middleware, is_async=facts.is_async, handler=mark.name)
    if facts.is_async and mark.in_loop:
        raise ConfigurationError(
            f"handler {mark.name!r}: in_loop is for a plain def; {qualname} is an async def, which is always there"
        )
    return Handler(
        mark.name,
        function,
        facts.event_type,
        facts.takes_message,
        facts.is_async,
        batch=mark.batch,
        timeout=mark.timeout,
        retry=mark.retry,
        parameters=facts.parameters,
        middleware=mark.middleware,
        providers={each.name: MESSAGE for each in facts.parameters if each.type is Message},
        in_loop=mark.in_loop,
        queue=mark.queue,
        concurrency=mark.concurrency,
    )


def handlers_in(modules: Iterable[ModuleType], *, required: bool = True) -> list[Handler]:
    """The handlers that these modules define or import, each once, in order of appearance.

    Raises:
        ConfigurationError: two different handlers have one name, a signature is wrong, a method is decorated, or no
            handler is found and `required` is set.
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
    if required and not by_name:
        names = ", ".join(module.__name__ for module in sources)
        raise ConfigurationError(f'no handler in {names}: mark functions with @inbox_handler("…")')
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
        return isinstance(getattr(candidate, _MARK, None), _Mark)
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
