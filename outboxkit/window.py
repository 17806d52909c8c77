"""The window in which a duplicate is provably caught: how old a delivery may be, and when its inbox row may go. Pure.

The rule and its proof are in `docs/explanation/dedup-window.md`. Every time here is one of the database's clock.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from outboxkit import ids
from outboxkit.message import Message
from outboxkit.retry import delay_for

SAFETY_FACTOR = 2
"""By how much the retention should exceed the longest time for which a message can be on its way by itself."""

_EARLIEST = datetime.min.replace(tzinfo=UTC)


def message_time(message_id: str, timestamp: datetime | None, accepted_at: datetime | None = None) -> datetime | None:
    """The time from which a message's age is counted; None where nothing says it, and then it is taken as new.

    Args:
        message_id: its time counts where it is a UUIDv7.
        timestamp: the producer's own, which counts where the id has none.
        accepted_at: when an operator said that it is to be handled although it is stale; counts where it is later.
    """
    known = [moment for moment in (ids.time_of(message_id) or timestamp, accepted_at) if moment is not None]
    return max(known, default=None)


def is_too_old(moment: datetime | None, *, now: datetime, retention: timedelta, skew: timedelta) -> bool:
    """Whether the message is so old that its inbox row may be forgotten: nobody can say that it was not handled."""
    return moment is not None and now - moment > retention - skew


def forget_before(now: datetime, *, retention: timedelta, skew: timedelta) -> datetime:
    """Inbox rows whose `processed_at` is earlier than this may be forgotten."""
    kept = retention + skew
    return now - kept if now - _EARLIEST > kept else _EARLIEST


def needed(ladder: Sequence[timedelta], max_attempts: int, skew: timedelta) -> timedelta:
    """The shortest retention that can work: the longest retry window, and the skew that the inbox takes off.

    The window is how long a message waits on its retry ladder until its last attempt.
    """
    return sum((delay_for(ladder, failures) for failures in range(1, max_attempts)), timedelta()) + skew


def recommended(ladder: Sequence[timedelta], max_attempts: int, skew: timedelta) -> timedelta:
    """What the retention should be at least: the longest retry window times the safety factor."""
    return SAFETY_FACTOR * needed(ladder, max_attempts, skew)


def is_stale(
    message: Message,
    *,
    now: datetime,
    retention: timedelta,
    skew: timedelta = timedelta(minutes=5),
    accepted_at: datetime | None = None,
) -> bool:
    """Whether the message is so old that its inbox row may be forgotten: nobody can say that it was not handled.

    Its age is the one of its UUIDv7, else the one of its timestamp; a message with neither is taken as new.

    Args:
        message: what arrived.
        now: the time, by the database's clock.
        retention: how long the inbox remembers: what `outboxkit prune` is given.
        skew: by how much `now` may be wrong. The window is shorter by it.
        accepted_at: when an operator said that it is to be handled although it is stale; its age is counted from there.
    """
    made = message_time(message.id, message.created_at, accepted_at)
    return is_too_old(made, now=now, retention=retention, skew=skew)
