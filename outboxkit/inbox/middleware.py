"""Middleware: functions around the call of a handler, inside its transaction.

Each is called as `middleware(call, context)` and runs the rest by `call()`: the next one, and in the end the handler.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

from sqlalchemy.orm import Session
from sqlalchemy.util import greenlet_spawn

from outboxkit.database.sqlalchemy_asyncio import AsyncSession, await_
from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import path_of
from outboxkit.message import Message

S = TypeVar("S", bound=Session | AsyncSession)
T = TypeVar("T")

Call = Callable[[], None]
"""The rest of the call, for a plain middleware."""
AsyncCall = Callable[[], Awaitable[None]]
"""The rest of the call, for an `async def` middleware."""
Middleware = Callable[[Any, Any], Any]
"""A function `(call, context)`: `(Call, Context[Session])`, or async `(AsyncCall, Context[AsyncSession])`."""


@dataclass(slots=True)
class Context(Generic[S]):
    """The call of a handler, as a middleware and a provider see it.

    Attributes:
        session: the handler's; a plain middleware gets a `Session`, whatever the handler has.
        event: the one that the handler gets.
        message: the message that arrived.
        handler: the handler's durable name.
        attempt: the number of the attempt, from 1.
        resources: the resources that the lifespan has given, by type.
    """

    session: S
    event: Any
    message: Message
    handler: str
    attempt: int
    resources: Mapping[Any, Any]

    def resource(self, type_: type[T]) -> T:
        """The resource of this type.

        Raises:
            ConfigurationError: the lifespan has given none.
        """
        if type_ not in self.resources:
            names = ", ".join(map(path_of, self.resources)) or "none"
            raise ConfigurationError(f"no resource is a {path_of(type_)}: the lifespan gave {names}")
        return cast("T", self.resources[type_])


@dataclass(frozen=True, slots=True)
class Layer:
    """A middleware that was checked.

    Attributes:
        function: called as `function(call, context)`.
        is_async: whether it is an `async def`.
    """

    function: Middleware
    is_async: bool


def layers_of(middleware: Iterable[Middleware], place: str) -> tuple[Layer, ...]:
    """The checked middleware of `place`, which errors name; the first one is the outermost.

    Raises:
        ConfigurationError: it is not a list of functions.
    """
    if isinstance(middleware, str | Mapping) or not isinstance(middleware, Iterable):
        raise ConfigurationError(f"{place}: middleware is {middleware!r}; a list of functions is accepted")
    layers = []
    for each in middleware:
        if not callable(each):
            raise ConfigurationError(f"{place}: {each!r} is not a middleware: a function (call, context) is accepted")
        call = getattr(each, "__call__", None)  # noqa: B004 - an object may have an async one
        layers.append(Layer(each, inspect.iscoroutinefunction(each) or inspect.iscoroutinefunction(call)))
    return tuple(layers)


def check_colour(layers: Iterable[Layer], *, is_async: bool, handler: str) -> None:
    """Refuse an `async def` middleware for a plain handler, which cannot await it.

    Raises:
        ConfigurationError: there is one.
    """
    for each in layers:
        if each.is_async and not is_async:
            raise ConfigurationError(
                f"middleware {path_of(each.function)} is an async def, and handler {handler!r} a plain def, which "
                "cannot await it. Make the middleware a plain def, which serves both kinds"
            )


def run_around(layers: Sequence[Layer], context: Context[Session], handle: Call) -> None:
    """Run plain middleware, the first one outermost, around `handle`.

    Raises:
        ConfigurationError: a middleware has not called `call`, or twice.
    """
    call = handle
    for layer in reversed(layers):
        call = partial(_pass, layer, _Call(layer, call), context)
    call()


def run_async_around(
    layers: Sequence[Layer], session: Session, context: Context[AsyncSession], handle: AsyncCall
) -> None:
    """Run middleware of both kinds around `handle`, within a greenlet of SQLAlchemy.

    Raises:
        ConfigurationError: a middleware has not called or not awaited `call`, or called it twice.
    """
    outermost = 0
    while outermost < len(layers) and not layers[outermost].is_async:
        outermost += 1
    call = handle
    for layer in reversed(layers[outermost:]):
        if layer.is_async:
            call = _AsyncCall(layer, call, context).pass_on
        else:
            rest = _Call(layer, partial(_wait_for, call))
            call = partial(greenlet_spawn, _pass, layer, rest, _plain(context, session))
    if not outermost:
        await_(call())
        return
    run_around(layers[:outermost], _plain(context, session), partial(_wait_for, call))


def _plain(context: Context[AsyncSession], session: Session) -> Context[Session]:
    return Context(session, context.event, context.message, context.handler, context.attempt, context.resources)


def _wait_for(call: AsyncCall) -> None:
    await_(call())


_NEW, _BEGUN, _ENDED = range(3)


class _Call:
    """The `call` of a plain middleware."""

    __slots__ = ("_layer", "_rest", "error", "state")

    def __init__(self, layer: Layer, rest: Callable[[], Any]) -> None:
        self._layer, self._rest = layer, rest
        self.state = _NEW
        self.error: BaseException | None = None

    def __call__(self) -> None:
        self.begin()
        try:
            self._rest()
        except (Exception, asyncio.CancelledError) as error:
            self.error = error
            raise
        finally:
            self.state = _ENDED

    def begin(self) -> None:
        """Note that it is called.

        Raises:
            ConfigurationError: for the second time.
        """
        if self.state != _NEW:
            self.error = ConfigurationError(
                f"middleware {path_of(self._layer.function)} has called `call` twice: a handler runs once in its "
                "transaction. To have the message tried again, raise Retry"
            )
            raise self.error
        self.state = _BEGUN

    def check(self) -> None:
        """Make sure that the middleware, which has returned, did not lose the outcome of the call.

        Raises:
            ConfigurationError: the handler was not called.
            BaseException: the one that the call has raised, if the middleware has swallowed it.
        """
        if self.error is not None:
            with suppress(Exception):
                self.error.add_note(
                    f"Middleware {path_of(self._layer.function)} has swallowed this error, which decides all the same. "
                    "A middleware may raise another one in its place."
                )
            raise self.error
        if self.state == _NEW:
            raise ConfigurationError(
                f"middleware {path_of(self._layer.function)} has returned without {self.missing()}, so that the "
                "message is not handled. To refuse a message, raise Reject or Retry"
            )

    def missing(self) -> str:
        """The call that was left out, for the error's text."""
        return "a call of `call()`"


class _AsyncCall(_Call):
    """The `call` of an `async def` middleware."""

    __slots__ = ("_context", "_coroutine", "_over")

    def __init__(self, layer: Layer, rest: AsyncCall, context: Context[AsyncSession]) -> None:
        self._layer, self._rest, self._context = layer, rest, context  # super() would cost as much as the rest of this
        self.state = _NEW
        self.error = None
        self._coroutine: Coroutine[Any, Any, None] | None = None
        self._over: asyncio.Event | None = None

    def __call__(self) -> Coroutine[Any, Any, None]:  # type: ignore[override]
        coroutine = self._run()
        if self._coroutine is None:
            self._coroutine = coroutine
        return coroutine

    async def _run(self) -> None:
        self.begin()
        try:
            await self._rest()
        except (Exception, asyncio.CancelledError) as error:
            self.error = error
            raise
        finally:
            self.state = _ENDED
            if self._over is not None:
                self._over.set()

    async def pass_on(self) -> None:
        """Run the middleware, and the rest through it.

        Raises:
            ConfigurationError: it has not called or not awaited `call`, or called it twice.
        """
        try:
            try:
                await self._layer.function(self, self._context)
            except Exception:
                if self.state == _BEGUN:
                    await self._wait()
                raise
            if self.state == _BEGUN:
                await self._wait()
            self.check()
        finally:
            self.error = None  # as in `_pass`

    async def _wait(self) -> None:
        """Wait for the call's end: the middleware has left it behind in a task, which uses the transaction."""
        self._over = asyncio.Event()
        await self._over.wait()

    def missing(self) -> str:
        """The call that was left out, for the error's text."""
        if self._coroutine is None:
            return "a call of `await call()`"
        self._coroutine.close()
        return "awaiting `call()`"


def _pass(layer: Layer, call: _Call, context: Context[Session]) -> None:
    try:
        layer.function(call, context)
        call.check()
    finally:
        call.error = None  # an error and its frames must not keep each other alive
