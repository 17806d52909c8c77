"""The write side: `add` puts a message beside the business rows, in the caller's own transaction."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, registry, scoped_session

from outboxkit import codec, ids, tables
from outboxkit.errors import ConfigurationError, EncodeError
from outboxkit.events import name_of
from outboxkit.message import Message, being_handled

AnySession = Session | scoped_session[Any] | AsyncSession | async_scoped_session[Any]

_TRACE_HEADERS = ("traceparent", "tracestate")


class OutboxRow:
    """A pending row of `outboxkit_outbox`: the session inserts it with its next flush, or forgets it in a rollback."""

    def __init__(self, **columns: Any) -> None:
        for name, value in columns.items():
            setattr(self, name, value)


registry().map_imperatively(OutboxRow, tables.outbox, eager_defaults=False)


def add(
    session: AnySession,
    event: object,
    *,
    key: str | None = None,
    headers: Mapping[str, object] | None = None,
    message_id: str | None = None,
    deliver_at: datetime | None = None,
    topic: str | None = None,
    correlation_id: str | None = None,
) -> Message:
    """Send `event` if, and only if, the session's transaction commits.

    An ordinary function for every kind of session (`AsyncSession.add` is no coroutine either): it encodes now, so
    that a bad event fails in the caller's stack, and does no I/O of its own. A rollback, also one to a savepoint,
    forgets the message.

    Inside a handler the correlation id, the causation id and the trace context come from the message being handled.

    Args:
        session: a `Session`, an `AsyncSession`, or a scoped variant of either.
        event: an instance of an `@event` class, or a ready-made `Message`, whose own properties then count where an
            argument is None.
        key: the ordering key, usually the aggregate's id.
        headers: str, int, bool or None values, sent as AMQP headers.
        message_id: a new UUIDv7 where None; `ids.derive(...)` for a producer that may run twice.
        deliver_at: publish not before this moment (aware datetime), by the relay's clock.
        topic: the routing key, where it is not the event's name.
        correlation_id: shared by all messages of one story.

    Returns:
        The message as it will be sent.

    Raises:
        EncodeError: the event, or one of the other arguments, cannot be stored and sent.
        ConfigurationError: the class is no `@event`, or `OUTBOXKIT_MAX_PAYLOAD_BYTES` is no whole number.
        TypeError: `session` is none of the four kinds.
    """
    _check_session(session)
    message = _message(
        event, deliver_at, key=key, headers=headers, id=message_id, topic=topic, correlation_id=correlation_id
    )
    session.add(_row(message, deliver_at))
    return message


def add_all(
    session: AnySession,
    events: Iterable[object],
    *,
    key: str | None = None,
    headers: Mapping[str, object] | None = None,
    message_id: str | None = None,
    deliver_at: datetime | None = None,
    topic: str | None = None,
    correlation_id: str | None = None,
) -> list[Message]:
    """`add` for many events with the same arguments: all of them, or none where one cannot be encoded.

    They are inserted in their order with the session's next flush, on PostgreSQL in one statement for each thousand.

    Raises:
        EncodeError: as `add`; also a `message_id` for more than one event.
    """
    _check_session(session)
    listed = list(events)
    if message_id is not None and len(listed) > 1:
        raise EncodeError(
            f"message_id names one message, and {len(listed)} events were given; leave it out, or add them one by one"
        )
    given = {"key": key, "headers": headers, "id": message_id, "topic": topic, "correlation_id": correlation_id}
    messages = [_message(event, deliver_at, **given) for event in listed]
    session.add_all([_row(message, deliver_at) for message in messages])
    return messages


def _message(event: object, deliver_at: datetime | None, **given: Any) -> Message:
    if deliver_at is not None and (not isinstance(deliver_at, datetime) or deliver_at.tzinfo is None):
        raise EncodeError(
            f"deliver_at is {deliver_at!r}; it must be a datetime with a time zone, such as datetime.now(UTC) + delay"
        )
    chosen = {name: value for name, value in given.items() if value is not None}
    if isinstance(event, Message):
        message = replace(event, **chosen)
        _check_size(message.payload, message.type)
    else:
        kind, payload = name_of(type(event)), codec.encode(event, limit=_payload_limit())
        message = Message(**{"id": ids.new(at=deliver_at), "type": kind, "payload": payload, **chosen})
    now = datetime.now(UTC)
    return _inherit(replace(message, created_at=message.created_at or max(now, deliver_at or now)))


def _inherit(message: Message) -> Message:
    """Fill what the message did not say from the message whose handler is running."""
    cause = being_handled()
    if cause is None:
        return message
    trace = {name: cause.headers[name] for name in _TRACE_HEADERS if isinstance(cause.headers.get(name), str)}
    if "traceparent" in message.headers:
        trace = {}
    return replace(
        message,
        correlation_id=message.correlation_id or cause.correlation_id or cause.id,
        causation_id=message.causation_id or cause.id,
        headers={**trace, **message.headers},
    )


def _row(message: Message, deliver_at: datetime | None) -> OutboxRow:
    return OutboxRow(
        message_id=message.id,
        type=message.type,
        topic=message.topic,
        key=message.key,
        payload=message.payload,
        headers=codec.encode_headers(message.headers),
        correlation_id=message.correlation_id,
        causation_id=message.causation_id,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        created_at=message.created_at,
        due_at=deliver_at,
    )


def _check_session(session: object) -> None:
    if not isinstance(session, Session | scoped_session | AsyncSession | async_scoped_session):
        raise TypeError(
            f"outbox.add takes a SQLAlchemy Session, AsyncSession, scoped_session or async_scoped_session; "
            f"found {type(session).__name__}"
        )


def _check_size(payload: bytes, kind: str) -> None:
    if len(payload) > (limit := _payload_limit()):
        raise EncodeError(
            f"the payload of {kind} is {len(payload)} bytes long; at most {limit} are accepted "
            "(OUTBOXKIT_MAX_PAYLOAD_BYTES)"
        )


def _payload_limit() -> int:
    found = os.environ.get("OUTBOXKIT_MAX_PAYLOAD_BYTES")
    if found is None:
        return codec.MAX_PAYLOAD_BYTES
    if not found.isdecimal() or int(found) < 1:
        raise ConfigurationError(
            f"OUTBOXKIT_MAX_PAYLOAD_BYTES is {found!r}; a whole number of bytes from 1 is accepted"
        )
    return int(found)
