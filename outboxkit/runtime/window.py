"""The window in which a duplicate is provably caught: when a delivery is stale, and when its inbox row may go. Pure.

The rule and its proof are in `docs/how-to/choose-retention.md`. Every time here is by the database's clock.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from outboxkit import ids
from outboxkit.message import Message
from outboxkit.retry import delay_for

SAFETY_FACTOR = 2
"""The factor by which the retention should exceed the longest time that retries can take."""

CLOCK_SKEW = timedelta(minutes=5)
"""The allowance for clocks that differ, by default. Consumers and retention must have the same."""

_EARLIEST = datetime.min.replace(tzinfo=UTC)


def message_time(message_id: str, timestamp: datetime | None, accepted_at: datetime | None = None) -> datetime | None:
    """The time from which a message's age is counted; None if nothing tells it, and then the message counts as new.

    Args:
        message_id: its time counts if it is a UUIDv7.
        timestamp: the producer's own time, which counts if the id has none.
        accepted_at: the time at which an operator accepted a stale message; counts if it is later.
    """
    moments = [moment for moment in (ids.time_of(message_id) or timestamp, accepted_at) if moment is not None]
    return max(moments, default=None)


def is_too_old(moment: datetime | None, *, now: datetime, retention: timedelta, skew: timedelta) -> bool:
    """The rule of `is_stale`, for a time from `message_time`. None is never too old."""
    return moment is not None and now - moment > retention - skew


def lowest_id(moment: datetime) -> str:
    """The lowest UUIDv7 of the millisecond behind this moment: those of later ones are above it, as texts."""
    milliseconds = f"{max(0, int(moment.timestamp() * 1000) + 1):012x}"
    return f"{milliseconds[:8]}-{milliseconds[8:]}-7000-8000-000000000000"


def forget_before(now: datetime, *, retention: timedelta, skew: timedelta) -> datetime:
    """The time before which a processed message's inbox row may be forgotten."""
    age = retention + skew
    return now - age if now - _EARLIEST > age else _EARLIEST


def needed(delays: Sequence[timedelta], max_attempts: int, skew: timedelta) -> timedelta:
    """The shortest retention that can work: the longest retry window, plus the skew that the inbox takes off.

    The retry window is the sum of all delays before a message's last attempt.
    """
    return sum((delay_for(delays, failures) for failures in range(1, max_attempts)), timedelta()) + skew


def recommended(delays: Sequence[timedelta], max_attempts: int, skew: timedelta) -> timedelta:
    """The recommended minimum of the retention: the longest retry window and the skew, times the safety factor."""
    return SAFETY_FACTOR * needed(delays, max_attempts, skew)


def is_stale(
    message: Message,
    *,
    now: datetime,
    retention: timedelta,
    skew: timedelta = CLOCK_SKEW,
    accepted_at: datetime | None = None,
) -> bool:
    """Whether the message is so old that its inbox row may be forgotten, so that it may have been handled already.

    Its age is that of its UUIDv7, otherwise that of its timestamp; a message with neither counts as new.

    Args:
        message: the message that arrived.
        now: the time, by the database's clock.
        retention: how long the inbox remembers: the value that `outboxkit prune` uses.
        skew: how far `now` may be wrong. The window is shorter by it.
        accepted_at: the time at which an operator accepted a stale message; its age is counted from there.
    """
    moment = message_time(message.id, message.created_at, accepted_at)
    return is_too_old(moment, now=now, retention=retention, skew=skew)
