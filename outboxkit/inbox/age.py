"""How old a message may be that is handled."""

from datetime import datetime, timedelta

from outboxkit import window
from outboxkit.message import Message


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
    made = window.message_time(message.id, message.created_at, accepted_at)
    return window.is_too_old(made, now=now, retention=retention, skew=skew)
