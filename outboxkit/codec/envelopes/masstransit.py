"""Messages of MassTransit, in its JSON envelope: a reader. Pure.

https://masstransit.io/documentation/concepts/messages and /configuration/serialization
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from outboxkit.codec.envelopes.envelope import Envelope, moment_of, parse_json, scalars, storable_or_none, type_name
from outboxkit.codec.headers import LIMIT
from outboxkit.errors import DecodeError
from outboxkit.message import Message

MASSTRANSIT = "application/vnd.masstransit+json"
TYPES_LIMIT = 16 * 1024
"""The maximum bytes of the list of a message's types."""
_NO_HEADERS = msgspec.Raw(b"{}")


class _Sent(msgspec.Struct, rename="camel"):
    """The envelope, as far as it is read. Its `host` and its addresses are not."""

    message: msgspec.Raw
    message_type: msgspec.Raw
    message_id: str | None = None
    conversation_id: str | None = None
    correlation_id: str | None = None
    initiator_id: str | None = None
    source_address: str | None = None
    sent_time: str | None = None
    headers: msgspec.Raw = _NO_HEADERS


@dataclass(frozen=True, slots=True)
class MassTransit:
    """A reader of MassTransit's JSON envelope.

    `messageId` is the message's id, `conversationId` the correlation id and `initiatorId` the causation id. `sentTime`
    is the message's time, and the URN of the first type is the event's name. The envelope's headers are the message's,
    with `mt-correlation-id` and `mt-source-address` beside them. `MT-Activity-Id` is read as `traceparent`.

    Args:
        types: the event's name for a URN, such as `urn:message:Shop.Contracts:OrderConfirmed`. A message has a URN for
            each of its types, also for interfaces: the first one that is found here counts.
    """

    types: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, envelope: Envelope) -> Message | None:
        """The message of such an envelope; None if it is another one.

        Raises:
            DecodeError: it is not valid.
        """
        if envelope.media_type != MASSTRANSIT:
            return None
        sent = parse_json(envelope.document(), _Sent)
        urns = parse_json(sent.message_type, list[str], limit=TYPES_LIMIT)
        id_ = sent.message_id or envelope.message_id
        if not id_ or not urns:
            raise DecodeError(f"it has no {'messageType' if id_ else 'messageId'}")
        headers = dict(scalars(parse_json(sent.headers, dict[str, Any] | None, limit=LIMIT) or {}))
        beside = {"mt-correlation-id": sent.correlation_id, "mt-source-address": sent.source_address}
        headers |= {name: value for name, value in beside.items() if value is not None}
        activity = headers.get("MT-Activity-Id")
        if isinstance(activity, str) and activity.startswith("00-"):
            headers.setdefault("traceparent", activity)
        conversation = storable_or_none(sent.conversation_id) or storable_or_none(sent.correlation_id)
        return Message(
            id=id_,
            type=type_name(self.types, *urns),
            payload=bytes(sent.message),
            topic=envelope.routing_key or None,
            headers=headers,
            correlation_id=conversation or envelope.correlation_id,
            causation_id=storable_or_none(sent.initiator_id),
            created_at=moment_of(sent.sent_time) or envelope.timestamp,
        )
