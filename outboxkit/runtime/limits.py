"""Limits of a handler in one process: how many of it run at once, and how many start in a period. Pure."""

import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypedDict

from outboxkit.errors import ConfigurationError

_RATE = re.compile(r"(\d{1,5})/(\d{1,5})?(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
MOST, MOST_AT_ONCE, LONGEST_SECONDS = 10_000, 1000, 86_400.0

BURST_SECONDS = 0.1
"""A rate that was not used for a while catches up on so much of it at once, so that a late timer costs nothing."""
FEW, FEW_BYTES = 32, 4 * 1024 * 1024
"""So many messages may wait in memory for a limit, and so many bytes of them. The prefetch has room for them."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate: at most `count` starts in any `seconds`."""

    count: int
    seconds: float

    @classmethod
    def parse(cls, text: object) -> Self:
        """`10/s`, `100/m`, `5/h`, or with a number before the unit: `1/30s`.

        Raises:
            ValueError: it reads otherwise.
        """
        match = _RATE.fullmatch(text) if isinstance(text, str) else None
        count, seconds = (int(match[1]), int(match[2] or 1) * _UNITS[match[3]]) if match else (0, 0.0)
        if not (1 <= count <= MOST and 0 < seconds <= LONGEST_SECONDS):
            raise ValueError(
                f'a number from 1 to {MOST} and a period up to a day are accepted, as in "10/s", "100/m" or "1/30s"'
            )
        return cls(count, seconds)

    @property
    def interval(self) -> float:
        """The seconds from one start to the next, if they are spread evenly."""
        return self.seconds / self.count


class Limits(TypedDict, total=False):
    """The keyword arguments of `@inbox_handler` that say how a consumer gives messages to the handler.

    Attributes:
        queue: the queue from which it gets its messages. A consumer of several queues needs it; one of another queue
            leaves the handler out.
        concurrency: how many messages it handles at once in one process. Not with `batch`, which has one transaction.
        rate: how many messages it begins in a period in one process, spread evenly, such as "10/s" or "100/m".
    """

    queue: str | None
    concurrency: int | None
    rate: str | None


def check_limits(label: str, limits: Limits, *, batch: bool) -> tuple[str | None, int | None, Rate | None]:
    """The queue, the concurrency and the rate that a handler declares, checked. The `label` begins the errors.

    Raises:
        ConfigurationError: one of them is of another kind, or `concurrency` is there beside `batch`.
        TypeError: there is another argument.
    """
    if unknown := sorted(set(limits) - Limits.__annotations__.keys()):
        raise TypeError(f"{label} got an unexpected keyword argument {unknown[0]!r}")
    queue, concurrency, rate = (limits.get(name) for name in ("queue", "concurrency", "rate"))
    if queue is not None and not (isinstance(queue, str) and queue):
        raise ConfigurationError(f"{label}: queue is {queue!r}; the name of a queue is accepted")
    if concurrency is not None and batch:
        raise ConfigurationError(f"{label}: batch and concurrency exclude each other: one batch is handled at a time")
    number = concurrency if isinstance(concurrency, int) and not isinstance(concurrency, bool) else None
    if concurrency is not None and (number is None or not 1 <= number <= MOST_AT_ONCE):
        accepted = f"a whole number from 1 to {MOST_AT_ONCE} is accepted"
        raise ConfigurationError(f"{label}: concurrency is {concurrency!r}; {accepted}")
    try:
        return queue, number, None if rate is None else Rate.parse(rate)
    except ValueError as error:
        raise ConfigurationError(f"{label}: rate is {rate!r}; {error}") from None


class Limit:
    """The limits of one handler, and the messages that wait for them.

    Starts are spread over the period of the rate. In no period are there more than the rate has.

    Args:
        concurrency: how many messages of the handler run at once; None means as many as the queue allows.
        rate: how many start in a period; None means no limit.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self, concurrency: int | None, rate: Rate | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._concurrency, self._rate, self._clock = concurrency, rate, clock
        self._starts: deque[float] = deque(maxlen=rate.count if rate else 0)
        self._opens_at = self._promised_until = float("-inf")
        self._was_closed = False
        self._running = self._ended = 0
        self._busy_seconds, self._changed_at = 0.0, clock()
        self._waiting = self._waiting_bytes = 0

    def opens_in(self) -> float | None:
        """The seconds until another message may start, 0 for now; None if one that runs has to end first."""
        if self._concurrency is not None and self._running >= self._concurrency:
            return None
        seconds = max(self._opens_at - self._clock(), 0.0)
        self._was_closed = self._was_closed or seconds > 0
        return seconds

    def look_again_in(self) -> float | None:
        """The seconds until another look is worth while: 0 if it was closed at an earlier one, and has opened since.

        None if its rate holds nothing up.
        """
        seconds = self.opens_in()
        if seconds != 0:
            return seconds
        was_closed, self._was_closed = self._was_closed, False
        return 0.0 if was_closed else None

    def start(self) -> None:
        """Count a message that starts."""
        now = self._clock()
        self._change(now, 1)
        if self._rate is not None:
            self._starts.append(now)
            self._opens_at = max(self._opens_at, now - BURST_SECONDS) + self._rate.interval
            if len(self._starts) == self._rate.count:
                self._opens_at = max(self._opens_at, self._starts[0] + self._rate.seconds)

    def end(self) -> None:
        """Count a message that has ended, however."""
        self._change(self._clock(), -1)
        self._ended += 1

    def wait(self, size: int) -> None:
        """Count a message of so many bytes that waits in memory."""
        self._waiting += 1
        self._waiting_bytes += size

    def waits_no_more(self, size: int) -> None:
        """Undo `wait`."""
        self._waiting -= 1
        self._waiting_bytes -= size

    def forget_waiting(self) -> None:
        """Forget all messages that wait, after the loss of their connection."""
        self._waiting = self._waiting_bytes = 0

    def is_crowded(self, size: int) -> bool:
        """Whether so many wait beside one of `size` bytes, that it should not wait in memory for long."""
        return self._waiting > FEW or self._waiting_bytes - size >= FEW_BYTES

    def turn(self) -> float | None:
        """The seconds until the turn of one more message, if many wait already; None if it may wait in memory, too.

        Each call promises a turn, behind those that were promised before.
        """
        if self._waiting < FEW and self._waiting_bytes < FEW_BYTES:
            return None
        now, pace = self._clock(), self._pace()
        self._promised_until = max(self._promised_until, now + self._waiting * pace) + pace
        return self._promised_until - now

    def _pace(self) -> float:
        """The seconds from one start to the next while messages wait."""
        by_rate = self._rate.interval if self._rate else 0.0
        if self._concurrency is None:
            return by_rate
        stalled = self._clock() - self._changed_at if self._running >= self._concurrency else 0.0
        mean = self._busy_seconds / self._ended / self._concurrency if self._ended else 0.0
        return max(by_rate, mean, stalled)

    def _change(self, now: float, by: int) -> None:
        self._busy_seconds += self._running * (now - self._changed_at)
        self._running, self._changed_at = self._running + by, now
