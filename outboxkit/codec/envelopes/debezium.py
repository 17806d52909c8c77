"""Rows of a foreign outbox that Debezium Server publishes through its outbox event router: a reader. Pure.

https://debezium.io/documentation/reference/stable/transformations/outbox-event-router.html; the sink for RabbitMQ sends
the record's headers and its value, and neither properties nor the record's key.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec

from outboxkit import ids
from outboxkit.codec.envelopes.envelope import Envelope, parse_json, scalars, type_name
from outboxkit.errors import DecodeError
from outboxkit.message import Message

HEADER_LIMIT = 4096
"""The maximum bytes of a header that is written as JSON."""


_NOTHING = msgspec.Raw(b"null")


class _Converted(msgspec.Struct):
    """A value that the JSON converter wrote with its schema."""

    payload: msgspec.Raw
    schema: msgspec.Raw = _NOTHING


@dataclass(frozen=True, slots=True)
class DebeziumOutbox:
    """A reader of events of Debezium's outbox event router, as Debezium Server's sink for RabbitMQ sends them.

    The header `id` is the message's id. If it is not a UUID, it is unique in its table only, and the id is derived from
    it and the routing key. The body is the event. A text that holds JSON, or a document with its schema, is unwrapped.

    Args:
        types: the event's name for a type in the outbox; any other type is the event's name itself.
        type_header: the header with the type, `table.fields.additional.placement=type:header:eventType` in the
            connector. Without such a header the type is the routing key.
        key_header: the header with the ordering key, `aggregateid:header:aggregateId` in the same setting.
    """

    types: Mapping[str, str] = field(default_factory=dict)
    type_header: str = "eventType"
    key_header: str = "aggregateId"

    def __call__(self, envelope: Envelope) -> Message | None:
        """The message of such an event; None if the envelope is not one.

        Raises:
            DecodeError: it is one, and cannot be read.
        """
        headers = dict(envelope.headers)
        if "id" not in headers or "task" in headers or envelope.message_id or envelope.type:
            return None
        id_ = _text(headers.pop("id"))
        key, type_ = _text(headers.pop(self.key_header, None)), _text(headers.pop(self.type_header, None))
        type_ = type_ or envelope.routing_key
        if not id_ or not type_:
            missing = "a routing key" if id_ else "a value"
            raise DecodeError(f"its header {(self.type_header if id_ else 'id')!r} is missing, or has no {missing}")
        return Message(
            id=id_ if _is_uuid(id_) else ids.derive("debezium", envelope.routing_key, id_),
            type=type_name(self.types, type_),
            payload=_payload(envelope.document()),
            key=key,
            topic=envelope.routing_key or None,
            headers={name: _text(value) for name, value in scalars(headers).items()},
            created_at=envelope.timestamp,
        )


def _payload(document: bytes) -> bytes:
    """The event itself: without its schema, and without the quotes of a text that holds JSON."""
    value = _without_schema(document.strip())
    if value[:1] != b'"':
        return value
    text: str = parse_json(value, str)
    return text.encode()


def _text(value: Any) -> str | None:
    """A header's value as text, whichever converter wrote it: as it is, as a JSON text, or as JSON with its schema."""
    if isinstance(value, bytes | bytearray):
        value = bytes(value).decode(errors="backslashreplace")
    if isinstance(value, str) and value[:1] in ('"', "{") and len(value) <= HEADER_LIMIT:
        try:
            decoded = parse_json(_without_schema(value.encode()), str | int | None)
        except DecodeError:
            return value
        return None if decoded is None else str(decoded)
    return None if value is None else str(value)


def _without_schema(document: bytes) -> bytes:
    if document[:1] != b"{" or b'"schema"' not in document:
        return document
    try:
        converted = parse_json(document, _Converted)
    except DecodeError:
        return document
    return document if bytes(converted.schema) == b"null" else bytes(converted.payload)


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False
