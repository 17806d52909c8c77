"""The session of an `async def` handler: it knows which of its coroutines were never awaited."""

import inspect
from collections.abc import Callable, Coroutine, Hashable
from functools import cache, wraps
from typing import Any, cast

from sqlalchemy.ext.asyncio import AsyncSession

from outboxkit.errors import ConfigurationError

Asked = list[tuple[str, Coroutine[Any, Any, Any]]]


def watched(session: AsyncSession) -> tuple[AsyncSession, Asked]:
    """The same session in another object, and what is asked of it there and not awaited yet.

    Everything but the methods is shared, so that each object stands for the other. What is sent through a connection of
    the session is not seen, nor is a coroutine of the application's own.
    """
    made = object.__new__(_class_of(cast("Hashable", type(session))))
    made.__dict__ = session.__dict__
    asked: Asked = []
    made._asked = asked  # type: ignore[attr-defined]
    return made, asked


def check_awaited(asked: Asked, handler: str) -> None:
    """Make sure that everything that was asked of the session has begun.

    Raises:
        ConfigurationError: something was not: what it was to do was not done.
    """
    forgotten = [name for name, coroutine in asked if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED]
    close_all(asked)
    if forgotten:
        raise ConfigurationError(
            f"handler {handler!r} did not await session.{forgotten[0]}(...), so that nothing of it was done: "
            f"write `await session.{forgotten[0]}(...)`"
        )


def close_all(asked: Asked) -> None:
    """Have nothing of it begin any more, not even in a task that the handler has left behind."""
    for _, coroutine in asked:
        if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
            coroutine.close()


@cache
def _class_of(given: Hashable) -> type[AsyncSession]:
    """A subclass whose coroutine methods are noted when they are called."""
    kind = cast("type[AsyncSession]", given)
    found = {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}
    methods = {name: _noted(name, method) for name, method in found.items() if inspect.iscoroutinefunction(method)}
    return type(kind.__name__, (kind,), {"__slots__": ("_asked",), "__module__": kind.__module__, **methods})


def _noted(name: str, method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @wraps(method)
    def ask(self: Any, *arguments: Any, **options: Any) -> Coroutine[Any, Any, Any]:
        asked: Asked = self._asked
        while asked and inspect.getcoroutinestate(asked[-1][1]) != inspect.CORO_CREATED:
            asked.pop()
        coroutine = method(self, *arguments, **options)
        asked.append((name, coroutine))
        return coroutine

    return ask
