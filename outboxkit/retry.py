"""Retry delays: arithmetic from the number of failures to a delay. Pure.

A failed publish gets its delay in `relay/decisions.py`, by `Backoff`. A failed delivery gets it from its handler's
`Retries` in `consumer/decisions.py`, or else as the step of `OUTBOXKIT_RETRY_DELAYS` that `delay_for` says.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from outboxkit.errors import ConfigurationError

Jitter = Callable[[], float]
"""A number from 0 (inclusive) to 1 (exclusive), such as `random.random`."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays with full jitter: a random share of `base * 2 ** (failures - 1)`, at most `cap`.

    Full jitter spreads clients best (M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
    `minimum` is the shortest delay, so that a message which just failed never comes straight back.
    """

    base: timedelta = timedelta(seconds=1)
    cap: timedelta = timedelta(minutes=1)
    minimum: timedelta = timedelta(milliseconds=100)
    jitter: Jitter = random.random

    def after(self, failures: int) -> timedelta:
        """The delay after this many failures, counted from 1."""
        doubled = self.base.total_seconds() * 2.0 ** min(max(failures, 1) - 1, 62)
        ceiling = min(doubled, self.cap.total_seconds())
        return max(timedelta(seconds=ceiling * self.jitter()), self.minimum)


ATTEMPTS_LIMIT = 100_000
"""The maximum of `Retries.max_attempts`: more would be a retry without end."""


@dataclass(frozen=True, slots=True)
class Retries:
    """A handler's own rule for retries, instead of the consumer's.

    Attributes:
        max_attempts: after so many failures the message becomes a dead letter; None means the consumer's limit.
        delays: the delays after the first failure, the second, …; the last one applies to all further failures. Each
            is rounded to the nearest of the consumer's retry delays, which apply if this is empty.
        never: exceptions after which another attempt is pointless: the message is dead at once.

    Raises:
        ConfigurationError: one of them is of another kind.
    """

    max_attempts: int | None = None
    delays: Sequence[timedelta] = ()
    never: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        limit = self.max_attempts
        is_number = isinstance(limit, int) and not isinstance(limit, bool)
        if limit is not None and not (is_number and 1 <= limit <= ATTEMPTS_LIMIT):
            accepted = f"a whole number from 1 to {ATTEMPTS_LIMIT}, or None, is accepted"
            raise ConfigurationError(f"Retries: max_attempts is {limit!r}; {accepted}")
        for name, is_right, accepted in (
            ("delays", _is_delay, "timedeltas of 0 or more are accepted, as in (timedelta(seconds=1),)"),
            ("never", _is_exception, "classes of exceptions are accepted, as in (ValueError,)"),
        ):
            values = getattr(self, name)
            if not isinstance(values, tuple | list) or not all(map(is_right, values)):
                raise ConfigurationError(f"Retries: {name} is {values!r}; a tuple or list of {accepted}")
            object.__setattr__(self, name, tuple(values))

    def delay(self, failures: int) -> timedelta | None:
        """The delay after this many failures, counted from 1; None means the consumer's delays."""
        return self.delays[min(max(failures, 1), len(self.delays)) - 1] if self.delays else None


def delay_for(delays: Sequence[timedelta], failures: int, requested: timedelta | None = None) -> timedelta:
    """The delay before a message's next attempt: by the number of failures, or the one nearest to `requested`.

    The delays ascend; failures beyond their number take the last one.
    """
    if requested is not None:
        bounded = min(max(requested, timedelta()), delays[-1])
        return min(delays, key=lambda each: abs(each - bounded))
    return delays[min(max(failures, 1), len(delays)) - 1]


def _is_delay(value: object) -> bool:
    return isinstance(value, timedelta) and value >= timedelta(0)


def _is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)
