"""What a call of `outbox.add` may say of its message."""

from collections.abc import Mapping
from datetime import datetime
from typing import TypedDict

from outboxkit.errors import EncodeError
from outboxkit.message import NAME_LIMIT, check_moment, is_storable_name


class Options(TypedDict, total=False):
    """The keyword arguments of `outbox.add` and `outbox.add_all`; None is the same as not given.

    Attributes:
        key: the ordering key, usually the aggregate's id: messages of one key stay in order.
        headers: str, int, bool or None values, sent as AMQP headers.
        message_id: a new UUIDv7 where None; `ids.derive(...)` for a producer that may run twice.
        deliver_at: publish not before this moment (aware datetime), by the relay's clock.
        expires_at: publish not after this moment (aware datetime), by the relay's clock; the message then goes to the
            dead letters as expired.
        dedup: write nothing where the outbox has a message of this id that was added with `dedup` too.
        topic: the routing key, where it is not the event's name.
        correlation_id: shared by all messages of one story.
        destination: who publishes it, where that is not what its event says.
    """

    key: str | None
    headers: Mapping[str, object] | None
    message_id: str | None
    deliver_at: datetime | None
    expires_at: datetime | None
    dedup: bool
    topic: str | None
    correlation_id: str | None
    destination: str | None


def check_options(caller: str, options: Options) -> None:
    """Refuse what no message can have.

    Raises:
        TypeError: a name is none of `Options`.
        EncodeError: a moment has no time zone or is out of bounds, the message would expire before it is delivered, or
            the destination is no name.
    """
    for name in options:
        if name not in Options.__annotations__:
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}")
    deliver_at, expires_at = options.get("deliver_at"), options.get("expires_at")
    check_moment("deliver_at", deliver_at)
    check_moment("expires_at", expires_at)
    if deliver_at is not None and expires_at is not None and expires_at <= deliver_at:
        raise EncodeError(
            f"expires_at is {expires_at}, and deliver_at {deliver_at}: the message would expire before it may leave. "
            "Give a later expires_at, or leave it out"
        )
    destination = options.get("destination")
    if destination is not None and (not isinstance(destination, str) or not is_storable_name(destination)):
        raise EncodeError(f"destination is {destination!r}; a name of 1 to {NAME_LIMIT} bytes is accepted")
