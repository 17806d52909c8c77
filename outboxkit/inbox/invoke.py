"""The call of a handler's function, sync or async: inside its middleware, with values for its parameters."""

import inspect
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from outboxkit.database.sqlalchemy_asyncio import AsyncSession, async_session, await_
from outboxkit.errors import ConfigurationError
from outboxkit.inbox.handlers import Handler
from outboxkit.inbox.middleware import Context, run_around, run_async_around
from outboxkit.inbox.providers import provided, provided_async
from outboxkit.message import Message


def invoke(handler: Handler, session: Session, event: object, message: Message, attempt: int) -> None:
    """Call the handler, inside its middleware and with the values of its parameters.

    Raises:
        ConfigurationError: it is async and the session is not. Or it is sync and returned an awaitable, or nothing
            provides one of its parameters.
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
    if is_bare:
        await_(_invoke_async(handler, proxy, event, message))
    else:
        _invoke_wired(handler, session, event, message, attempt, proxy)


def _invoke_wired(
    handler: Handler, session: Session, event: object, message: Message, attempt: int, proxy: AsyncSession | None = None
) -> None:
    if handler.parameters:
        _check_provided(handler)
    if proxy is None:
        context = Context(session, event, message, handler.name, attempt, handler.resources)
        run_around(handler.middleware, context, partial(_invoke_provided, handler, context))
        return
    async_context = Context(proxy, event, message, handler.name, attempt, handler.resources)
    if handler.providers:
        handle = partial(_invoke_provided_async, handler, async_context)
    else:
        handle = partial(_invoke_async, handler, proxy, event, message)
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
