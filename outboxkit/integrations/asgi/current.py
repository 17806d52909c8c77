"""The steps of the request that is being handled."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from outboxkit import ids
from outboxkit.errors import ConfigurationError
from outboxkit.idempotency import Steps

T = TypeVar("T")


class Unkept:
    """The steps of a request without a key: each call is made, and no result is remembered."""

    async def step(self, name: str, call: Callable[[], Awaitable[T]]) -> T:  # noqa: ARG002
        """Make the call."""
        return await call()

    def key(self, name: str) -> str:
        """A key that no other request has."""
        return f"{name}-{ids.new()}"


_current: ContextVar[Steps | Unkept | None] = ContextVar("outboxkit.steps", default=None)


@contextmanager
def being(current: Steps | Unkept) -> Iterator[None]:
    """Have `steps()` return these inside the block, and in tasks that it starts."""
    token = _current.set(current)
    try:
        yield
    finally:
        _current.reset(token)


def steps() -> Steps | Unkept:
    """The steps of the request at hand; `scope["outboxkit.steps"]` has them as well.

    Raises:
        ConfigurationError: there is no such request.
    """
    current = _current.get()
    if current is None:
        raise ConfigurationError(
            "there are no steps here: the request did not pass IdempotencyMiddleware. Wrap the application in it, and "
            "have its `when` return True for the path"
        )
    return current


async def step(name: str, call: Callable[[], Awaitable[T]]) -> T:
    """Make a call whose result is remembered: a retry of the request does not repeat it.

    A crash between the call and the commit of its result repeats the call: give the other system a key that stays the
    same, `steps().key(name)`.

    Args:
        name: of the step, unique in the operation.
        call: a function without arguments that returns an awaitable; its result must have a form in JSON.

    Returns:
        The result as it is stored.

    Raises:
        LeaseLost: the lease ended, and another run has taken over; leave the request to it.
        EncodeError: the result has no form in JSON.
        ConfigurationError: as of `steps`.
    """
    return await steps().step(name, call)
