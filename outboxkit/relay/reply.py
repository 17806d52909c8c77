"""What a destination has answered, as a message of its own: the reply that the event asked for. Pure."""

from datetime import datetime
from typing import NamedTuple

from outboxkit import codec, ids
from outboxkit.brokers import Answer
from outboxkit.message import NAME_LIMIT, storable
from outboxkit.relay.rows import Claimed

NOTHING_SAID = Answer(b"{}")
"""The reply to a message that was confirmed without a word: an event without fields."""

_TRACE_HEADERS = ("traceparent", "tracestate")


class Reply(NamedTuple):
    """A new row of the outbox, in the columns of `statements.settle.REPLY`, and the position of what it answers."""

    at_position: int
    message_id: str
    type: str
    payload: bytes
    key: str | None
    headers: bytes
    correlation_id: str | None
    causation_id: str
    created_at: datetime
    content_type: str


def reply_to(row: Claimed, wanted: str, answer: Answer | None, *, now: datetime) -> Reply:
    """The reply of type `wanted`: caused by the row's message, part of its story, and in the order of its key.

    Its id is derived from the message's: a message that is published twice has one reply, which an inbox recognises.
    Nothing that a destination says makes a reply that cannot be stored and sent: its settlement would never commit.
    """
    said, cause = answer or NOTHING_SAID, row.message
    trace = {name: cause.headers[name] for name in _TRACE_HEADERS if isinstance(cause.headers.get(name), str)}
    return Reply(
        at_position=row.position,
        message_id=ids.derive("reply", cause.id),
        type=wanted,
        payload=bytes(said.payload) or NOTHING_SAID.payload,
        key=cause.key,
        headers=codec.encode_headers(trace),
        correlation_id=cause.correlation_id or cause.id,
        causation_id=cause.id,
        created_at=now,
        content_type=_short(said.content_type),
    )


def _short(content_type: str) -> str:
    """It is an AMQP short string on its way, as long as ids and types may be."""
    kept = storable(content_type).encode()[:NAME_LIMIT].decode(errors="ignore")
    return kept or NOTHING_SAID.content_type
