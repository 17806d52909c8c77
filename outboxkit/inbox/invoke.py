"""The call of a handler's function, sync or async: inside its middleware, with values for its parameters."""

import inspect
from collections.abc import Callable, Coroutine, Hashable
from functools import cache, partial, wraps
from typing import Any, cast

from sqlalchemy.orm import Session

from outboxkit.errors import ConfigurationError
from outboxkit.inbox.handlers import Handler
from outboxkit.inbox.middleware import Context, run_around, run_async_around
from outboxkit.inbox.providers import provided, provided_async
from outboxkit.message import Message
from outboxkit.sqlalchemy_asyncio import AsyncSession, async_session, await_

SessionCalls = list[tuple[str, Coroutine[Any, Any, Any]]]


def watched(session: AsyncSession) -> tuple[AsyncSession, SessionCalls]:
    """A twin of the session that records the coroutines its methods return, and that record.

    The twin shares all state, so that each object stands for the other. Not recorded: calls through a connection of the
    session, and the application's own coroutines.
    """
    twin = object.__new__(_recording_class(cast("Hashable", type(session))))
    twin.__dict__ = session.__dict__
    calls: SessionCalls = []
    twin._calls = calls  # type: ignore[attr-defined]
    return twin, calls


def check_awaited(calls: SessionCalls, handler: str) -> None:
    """Make sure that every recorded call of the session was awaited.

    Raises:
        ConfigurationError: one was not, so it did nothing.
    """
    forgotten = [name for name, coroutine in calls if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED]
    close_all(calls)
    if forgotten:
        raise ConfigurationError(
            f"handler {handler!r} did not await session.{forgotten[0]}(...), so that nothing of it was done: "
            f"write `await session.{forgotten[0]}(...)`"
        )


def close_all(calls: SessionCalls) -> None:
    """Close the calls that were not awaited, so that a task that the handler left behind cannot begin them."""
    for _, coroutine in calls:
        if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
            coroutine.close()


@cache
def _recording_class(cls: Hashable) -> type[AsyncSession]:
    """A subclass whose coroutine methods record each call."""
    session = cast("type[AsyncSession]", cls)
    attributes = {name: inspect.getattr_static(session, name) for name in dir(session) if not name.startswith("_")}
    coroutines = {name: each for name, each in attributes.items() if inspect.iscoroutinefunction(each)}
    methods = {name: _recording(name, method) for name, method in coroutines.items()}
    return type(session.__name__, (session,), {"__slots__": ("_calls",), "__module__": session.__module__, **methods})


def _recording(name: str, method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @wraps(method)
    def record(self: Any, *arguments: Any, **options: Any) -> Coroutine[Any, Any, Any]:
        calls: SessionCalls = self._calls
        while calls and inspect.getcoroutinestate(calls[-1][1]) != inspect.CORO_CREATED:
            calls.pop()
        coroutine = method(self, *arguments, **options)
        calls.append((name, coroutine))
        return coroutine

    return record


def invoke(handler: Handler, session: Session, event: object, message: Message, attempt: int) -> None:
    """Call the handler, inside its middleware and with the values of its parameters.

    Raises:
        ConfigurationError: it is async and the session is not. Or it is sync and returned an awaitable, or it did not
            await a call of its session. Or nothing provides one of its parameters.
    """
    is_bare = not (handler.middleware or handler.parameters)
    if not handler.is_async:
        if is_bare:
            _invoke_plain(handler, session, event, message)
        else:
            _invoke_wired(handler, session, event, message, attempt)
        return
    proxy = async_session(session)
    if proxy is None:
        raise ConfigurationError(
            f"handler {handler.name!r} is async and needs an AsyncSession: "
            "await session.run_sync(inbox.run_once, message, handler)"
        )
    twin, calls = watched(proxy)
    try:
        if is_bare:
            await_(_invoke_async(handler, twin, event, message))
        else:
            _invoke_wired(handler, session, event, message, attempt, twin)
    except BaseException:
        close_all(calls)
        raise
    check_awaited(calls, handler.name)


def _invoke_wired(
    handler: Handler, session: Session, event: object, message: Message, attempt: int, twin: AsyncSession | None = None
) -> None:
    if handler.parameters:
        _check_provided(handler)
    if twin is None:
        context = Context(session, event, message, handler.name, attempt, handler.resources)
        run_around(handler.middleware, context, partial(_invoke_provided, handler, context))
        return
    async_context = Context(twin, event, message, handler.name, attempt, handler.resources)
    if handler.providers:
        handle = partial(_invoke_provided_async, handler, async_context)
    else:
        handle = partial(_invoke_async, handler, twin, event, message)
    run_async_around(handler.middleware, session, async_context, handle)


def _check_provided(handler: Handler) -> None:
    missing = [each.name for each in handler.parameters if each.is_required and each.name not in handler.providers]
    if missing:
        raise ConfigurationError(
            f"handler {handler.name!r} needs a value for its parameter {missing[0]!r}: give the consumer a Wiring, or "
            "call the handler that Wiring(...).prepare returns"
        )


def _invoke_provided(handler: Handler, context: Context[Session]) -> None:
    if not handler.providers:
        _invoke_plain(handler, context.session, context.event, context.message)
        return
    with provided(handler.providers, context) as values:
        _invoke_plain(handler, context.session, context.event, context.message, **values)


async def _invoke_provided_async(handler: Handler, context: Context[AsyncSession]) -> None:
    async with provided_async(handler.providers, context) as values:
        await _invoke_async(handler, context.session, context.event, context.message, **values)


def _invoke_plain(handler: Handler, session: Session, event: object, message: Message, **values: Any) -> None:
    extra = (message,) if handler.takes_message else ()
    result = handler.function(session, event, *extra, **values)
    _refuse_generator(handler, result)
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise ConfigurationError(
            f"handler {handler.name!r} is not an `async def` but returned an awaitable, which is never awaited: "
            "declare it, and its decorators' wrappers, as async def"
        )


async def _invoke_async(
    handler: Handler, session: AsyncSession, event: object, message: Message, **values: Any
) -> None:
    extra = (message,) if handler.takes_message else ()
    awaitable = handler.function(session, event, *extra, **values)
    _refuse_generator(handler, awaitable)
    result = await awaitable
    _refuse_generator(handler, result)
    if inspect.iscoroutine(result):
        result.close()
        raise ConfigurationError(
            f"handler {handler.name!r} returned a coroutine, which is never awaited: write `return await ...`"
        )


def _refuse_generator(handler: Handler, result: object) -> None:
    """Refuse a handler that is a generator: none of its code has run when it returns."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise ConfigurationError(
            f"handler {handler.name!r} returned a generator, none of whose code has run: remove its yield, or the "
            "decorator that makes it a generator"
        )
