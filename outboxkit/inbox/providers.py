"""Providers: functions that make the value of a handler's parameter for one call of the handler."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import path_of
from outboxkit.inbox.middleware import Context

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider that was checked.

    Attributes:
        function: called with the context, or without anything.
        takes_context: whether it is called with the context.
        is_async: whether it has to be awaited, or entered by `async with`.
        is_closed: whether it is a context manager, which is closed after the call.
    """

    function: Callable[..., Any]
    takes_context: bool = False
    is_async: bool = False
    is_closed: bool = False

    @classmethod
    def of(cls, type_: object, function: Callable[..., Any]) -> "Provider":
        """The provider for values of a type.

        Raises:
            ConfigurationError: it is not a function, takes more than the context, or is a generator.
        """
        label = f"the provider of {path_of(type_)}"
        if not callable(function):
            raise ConfigurationError(
                f"{label} is {function!r}; a function is accepted, such as one that returns this value"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            decorator = "asynccontextmanager" if inspect.isasyncgenfunction(function) else "contextmanager"
            raise ConfigurationError(f"{label}, {path_of(function)}, has a yield: put @{decorator} above it")
        required = _required(function)
        if len(required) > 1 or any(each.kind not in _POSITIONAL for each in required):
            raise ConfigurationError(
                f"{label}, {path_of(function)}, takes {', '.join(each.name for each in required)}; a provider takes "
                "nothing, or the context of the call"
            )
        target = inspect.unwrap(function.func if isinstance(function, partial) else function)
        is_async = inspect.isasyncgenfunction(target) or inspect.iscoroutinefunction(function)
        is_closed = inspect.isasyncgenfunction(target) or inspect.isgeneratorfunction(target)
        return cls(function, bool(required), is_async, is_closed)

    @classmethod
    def fixed(cls, value: object) -> "Provider":
        """The provider of one value."""
        return cls(lambda: value)

    def check_colour(self, *, is_async: bool, handler: str) -> None:
        """Refuse an async provider for a plain handler.

        Raises:
            ConfigurationError: it is one.
        """
        if self.is_async and not is_async:
            raise ConfigurationError(
                f"handler {handler!r} is a plain def, and the provider {path_of(self.function)} is async: make one "
                "of them like the other"
            )

    def make(self, context: Context[Any]) -> Any:
        """Call the function."""
        return self.function(context) if self.takes_context else self.function()


def _required(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters that it must be given. None are known of some that are written in C."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each for each in parameters if each.default is each.empty and each.kind not in several]


MESSAGE = Provider(lambda context: context.message, takes_context=True)
"""The provider of the message, for a parameter that is not the third one."""


@contextmanager
def provided(providers: Mapping[str, Provider], context: Context[Any]) -> Iterator[dict[str, Any]]:
    """The values of a plain handler's parameters; they are closed at the end, the last one first.

    A provider sees the handler's error, and cannot swallow it.
    """
    raised: BaseException | None = None
    with ExitStack() as stack:
        values = {}
        for name, provider in providers.items():
            value = provider.make(context)
            values[name] = stack.enter_context(value) if provider.is_closed else value
        try:
            yield values
        except (Exception, asyncio.CancelledError) as error:
            raised = error
            raise
    _raise_again(raised)


@asynccontextmanager
async def provided_async(providers: Mapping[str, Provider], context: Context[Any]) -> AsyncIterator[dict[str, Any]]:
    """The values of an async handler's parameters, as `provided` has them."""
    raised: BaseException | None = None
    async with AsyncExitStack() as stack:
        values = {}
        for name, provider in providers.items():
            value = provider.make(context)
            if provider.is_closed and provider.is_async:
                value = await stack.enter_async_context(value)
            elif provider.is_closed:
                value = stack.enter_context(value)
            elif provider.is_async:
                value = await value
            values[name] = value
        try:
            yield values
        except (Exception, asyncio.CancelledError) as error:
            raised = error
            raise
    _raise_again(raised)


def _raise_again(error: BaseException | None) -> None:
    if error is not None:
        raise error
