"""`once`, in the colour that its sessions have."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from functools import partial
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from typing import Any, TypeVar, cast, overload

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from outboxkit import defaults
from outboxkit.codec import payloads
from outboxkit.database.sqlalchemy_asyncio import AsyncSession, async_sessionmaker
from outboxkit.effects.record import (
    Begun,
    Effect,
    EffectOutcome,
    EffectRun,
    Errors,
    OnUnknown,
    begin_effect,
    give_up,
    new_run,
    record,
)
from outboxkit.errors import ConfigurationError, EncodeError, InProgressElsewhere, Retry
from outboxkit.telemetry import catalogue, metrics

T = TypeVar("T")
TIDY_SECONDS = 5
"""A run that failed or was cancelled may take so long to record it; else its lease runs out."""
ASYNC_CALL = "effects.once: the call is async and the sessions are not: use an async_sessionmaker"


class _NotBegun(ConfigurationError):
    """The call returned a coroutine, none of whose code has run."""


@overload
def once(
    session_factory: sessionmaker[Any],
    key: str | None = ...,
    call: Callable[[], object] | None = ...,
    *,
    on_unknown: OnUnknown,
    lease: timedelta = ...,
    certain: Errors = ...,
) -> Effect: ...
@overload
def once(
    session_factory: async_sessionmaker[Any],
    key: str | None = ...,
    call: Callable[[], Awaitable[object]] | None = ...,
    *,
    on_unknown: OnUnknown,
    lease: timedelta = ...,
    certain: Errors = ...,
) -> Coroutine[Any, Any, Effect]: ...
def once(
    session_factory: sessionmaker[Any] | async_sessionmaker[Any],
    key: str | None = None,
    call: Callable[[], Any] | None = None,
    *,
    on_unknown: OnUnknown,
    lease: timedelta = defaults.LEASE,
    certain: Errors = (),
) -> Effect | Coroutine[Any, Any, Effect]:
    """Make a call that must not be made twice, unless it was made: then return what it returned.

    With an `async_sessionmaker` the call is a coroutine function, and `once` is awaited.

    Args:
        session_factory: for sessions of its own, on a database with outboxkit's tables. On SQLite, inside a handler,
            another file than the handler's.
        key: the effect's name at each run, up to 600 characters. None: the names of the handler and its message, for
            the one effect of a handler that has no key of its own.
        call: the function that makes the effect; it takes no argument. Its result must have a JSON form.
        on_unknown: the policy if an earlier run has left unknown whether the call was made. `skip` it, and it is made
            at most once; or `repeat` it, and it is made at least once.
        lease: how long the call may take. Until then another run of the key is refused; after that its outcome is
            unknown. Between runs of the default key none is needed: the inbox keeps them apart.
        certain: more exceptions, beside `CERTAIN`, after which the call was not made.

    Raises:
        Exception: whatever the call raises. After one that is certain the next run makes the call; after any other, or
            a cancellation, the effect is unknown.
        InProgressElsewhere: another run is busy with it; inside a handler `Retry` instead, for the same time.
        LeaseLost: the call took longer than its lease, and another run has taken over.
        EncodeError: the call was made, and is remembered with None: its result has no JSON form.
        ConfigurationError: there is no call, or neither a key nor a handler. Or a second effect of a handler has no
            key, or an option is of another kind. Or the sessions are of no use here: a `Connection`'s, or on the file
            that the handler is writing to.
    """
    if call is None:
        raise ConfigurationError("effects.once needs a call: effects.once(session_factory, key, call, on_unknown=...)")
    if not isinstance(session_factory, sessionmaker | async_sessionmaker):
        raise ConfigurationError(
            f"effects.once takes a sessionmaker or an async_sessionmaker, found {type(session_factory).__name__}: the "
            "intention is committed before the call, so it needs sessions of its own"
        )
    run = new_run(key, on_unknown, lease, (*certain, _NotBegun))
    if isinstance(session_factory, async_sessionmaker):
        return _run_async(session_factory, run, call)
    if iscoroutinefunction(call):
        raise ConfigurationError(ASYNC_CALL)
    return _run(session_factory, run, call)


def _run(factory: sessionmaker[Any], run: EffectRun, call: Callable[[], object]) -> Effect:
    async def write(change: Callable[[Session], T], seconds: float | None = None) -> T:  # noqa: ARG001 - for a loop
        with factory.begin() as session:
            return change(session)

    async def make() -> object:
        return _plain(call())

    try:
        _once(run, write, make).send(None)  # nothing in it waits, so it ends at once
    except StopIteration as end:
        return cast("Effect", end.value)
    raise AssertionError("a plain run has waited")


async def _run_async(factory: async_sessionmaker[AsyncSession], run: EffectRun, call: Callable[[], Any]) -> Effect:
    async def write(change: Callable[[Session], T], seconds: float | None = None) -> T:
        async with asyncio.timeout(seconds), factory.begin() as session:
            return await session.run_sync(change)

    async def make() -> object:
        result = call()
        return await result if isawaitable(result) else result

    return await _once(run, write, make)


async def _once(run: EffectRun, write: Callable[..., Awaitable[Any]], make: Callable[[], Awaitable[object]]) -> Effect:
    """The steps of a run, the same for both colours: `write` makes a change in a transaction of its own."""
    try:
        begun: Begun = await write(partial(begin_effect, run=run))
    except (InProgressElsewhere, Retry):
        _count("busy")
        raise
    _report(run, begun)
    if begun.effect is not None:
        _count(begun.effect.outcome)
        return begun.effect
    try:
        result = await make()
    except (Exception, asyncio.CancelledError) as error:
        _count("failed")
        with suppress(SQLAlchemyError, TimeoutError):
            await write(partial(give_up, run=run, begun=begun, error=error), seconds=TIDY_SECONDS)
        raise
    payload, problem = _written(run, result)
    await write(partial(record, run=run, begun=begun, payload=payload))
    outcome: EffectOutcome = "made" if begun.unknown_since is None else "repeated"
    _count(outcome)
    if problem is not None:
        raise problem
    return Effect(outcome, msgspec.json.decode(payload))


def _plain(result: object) -> object:
    """The result of a plain call; an awaitable is refused."""
    if iscoroutine(result):
        result.close()
        raise _NotBegun(ASYNC_CALL)
    if isawaitable(result):
        raise ConfigurationError(ASYNC_CALL)
    return result


def _written(run: EffectRun, result: object) -> tuple[bytes, EncodeError | None]:
    """The result as JSON; if it has none, null, and the error to raise once that is recorded."""
    try:
        return payloads.encode_value(result), None
    except EncodeError as error:
        problem = EncodeError(f"effect {run.key!r}: the call was made, and its result is not remembered: {error}")
        problem.__cause__ = error
        return b"null", problem


def _count(decision: str) -> None:
    metrics.measure(catalogue.EFFECTS, 1, {"decision": decision})


def _report(run: EffectRun, begun: Begun) -> None:
    if begun.unknown_since is not None:
        text = (
            "an effect is unknown: it was begun, and nobody knows whether it was made: key %r, policy %s, begun at %s"
        )
        logging.getLogger("outboxkit").warning(text, run.key, run.on_unknown, begun.unknown_since.isoformat())
