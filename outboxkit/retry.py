"""When to try again: pure arithmetic from the number of failures to a delay."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

Jitter = Callable[[], float]
"""A number from 0 (inclusive) to 1 (exclusive), such as `random.random`."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays with full jitter: a random share of `base * 2 ** (failures - 1)`, which `cap` bounds.

    Full jitter spreads clients best (M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
    `floor` is the least delay, so that a message which just failed never comes straight back.
    """

    base: timedelta = timedelta(seconds=1)
    cap: timedelta = timedelta(minutes=1)
    floor: timedelta = timedelta(milliseconds=100)
    jitter: Jitter = random.random

    def after(self, failures: int) -> timedelta:
        """The delay after this many failures, counted from 1."""
        doubled = self.base.total_seconds() * 2.0 ** min(max(failures, 1) - 1, 62)
        ceiling = min(doubled, self.cap.total_seconds())
        return max(timedelta(seconds=ceiling * self.jitter()), self.floor)


def rung(ladder: Sequence[timedelta], failures: int, wanted: timedelta | None = None) -> timedelta:
    """The step of the ladder on which a message waits: by the number of failures, or nearest to what was wanted.

    A ladder is an ascending row of delays; failures beyond its length stay on the last step.
    """
    if wanted is not None:
        return min(ladder, key=lambda step: abs(step - wanted))
    return ladder[min(max(failures, 1), len(ladder)) - 1]
