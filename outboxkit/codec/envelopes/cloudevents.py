"""CloudEvents 1.0 over AMQP and HTTP: the reader of both content modes, and what the relay writes in binary mode. Pure.

https://github.com/cloudevents/spec, version 1.0.2: the specification, its JSON format, its bindings to AMQP and HTTP.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from outboxkit import ids
from outboxkit.codec.envelopes.envelope import Envelope, moment_of, parse_json, scalars, storable_or_none
from outboxkit.codec.headers import HEADERS_LIMIT
from outboxkit.codec.payloads import JSON_TYPE
from outboxkit.errors import DecodeError
from outboxkit.message import TRACE_HEADERS, Message, changed

STRUCTURED = "application/cloudevents+json"
PREFIXES = ("cloudevents_", "cloudevents:", "ce-", "ce_")
"""Beginnings of the headers of attributes, in small letters. The binding to AMQP has the first two; Knative and others
that publish to RabbitMQ use those of HTTP and Kafka."""
WRITTEN_PREFIX = "cloudEvents_"
"""The beginning that is written, which that binding prefers."""
OWN_ID = "outboxkitid"
"""An extension attribute of outboxkit's own events, equal to `id`: it is the message's id without the source."""

_READ = ("id", "type", "specversion", "time", "datacontenttype", "data", "data_base64", "partitionkey", OWN_ID)
"""Attributes that become something else than a header."""
_CORRELATION, _CAUSATION = "correlationid", "causationid"
_VERSION = "dataversion"
"""An extension attribute: the version of the event's fields, unless it is 1. It is read of our own events alone."""
_Missing = msgspec.UnsetType


class _Event(msgspec.Struct):
    """The event of the structured mode, as far as its attributes are known."""

    specversion: str
    id: str
    source: str
    type: str
    datacontenttype: str | None = None
    data: msgspec.Raw | _Missing = msgspec.UNSET
    data_base64: str | None = None


@dataclass(frozen=True, slots=True)
class CloudEvents:
    """A reader of CloudEvents 1.0, in structured and in binary mode.

    The message's id is derived from `source` and `id`, since only the two together are unique. `time` is the message's
    time, `partitionkey` its key, and `correlationid` and `causationid` of these names. Every other attribute is a
    header: `ce-source`, `ce-subject` and so on.

    Args:
        types: the event's name for a CloudEvents `type`; any other type is the event's name itself.
    """

    types: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, envelope: Envelope) -> Message | None:
        """The message of a CloudEvent; None if the envelope is not one."""
        if envelope.media_type.startswith("application/cloudevents"):
            return self._structured(envelope)
        prefix = _prefix(envelope.headers)
        if prefix is not None:
            return self._binary(envelope, prefix)
        if envelope.type is None and b'"specversion"' in envelope.body and envelope.body.lstrip()[:1] == b"{":
            return self._structured(envelope)  # Dapr sends it as text/plain
        return None

    def _structured(self, envelope: Envelope) -> Message:
        if envelope.media_type.startswith("application/cloudevents") and envelope.media_type != STRUCTURED:
            raise DecodeError(f"its content type is {envelope.media_type!r}; {STRUCTURED} is read")
        document = envelope.document()
        event = parse_json(document, _Event)
        content_type = event.datacontenttype or JSON_TYPE
        payload, size = _content(event, content_type)
        if len(document) - size > HEADERS_LIMIT:
            raise DecodeError(f"its attributes have {len(document) - size} bytes; at most {HEADERS_LIMIT} are read")
        attributes = {name: _attribute(raw) for name, raw in parse_json(document, dict[str, msgspec.Raw]).items()}
        content = {"payload": payload, "content_type": content_type, "content_encoding": None}
        return self._message(envelope, attributes, dict(envelope.headers), content)

    def _binary(self, envelope: Envelope, prefix: str) -> Message:
        attributes: dict[str, Any] = {}
        headers: dict[str, object] = {}
        for name, value in envelope.headers.items():
            lowered = name.lower()
            if lowered.startswith(prefix):
                attributes[lowered.removeprefix(prefix)] = value
            else:
                headers[name] = value
        encoding = envelope.content_encoding if envelope.body else None
        content_type = envelope.content_type or JSON_TYPE
        content = {"payload": envelope.body or b"{}", "content_type": content_type, "content_encoding": encoding}
        return self._message(envelope, attributes, headers, content)

    def _message(
        self, envelope: Envelope, attributes: dict[str, Any], headers: dict[str, object], content: dict[str, Any]
    ) -> Message:
        version = attributes.get("specversion")
        if version != "1.0":
            raise DecodeError(f"its specversion is {version!r}; '1.0' is read")
        id_, source, type_ = (_required(attributes, name) for name in ("id", "source", "type"))
        rest = {name: value for name, value in attributes.items() if name not in _READ}
        headers |= {name: rest.pop(name) for name in TRACE_HEADERS if isinstance(rest.get(name), str)}
        correlation, causation = rest.pop(_CORRELATION, None), rest.pop(_CAUSATION, None)
        is_own = attributes.get(OWN_ID) == id_
        return Message(
            id=id_ if is_own else ids.derive("cloudevents", source, id_),
            version=_version(rest.pop(_VERSION, "1")) if is_own else 1,
            type=self.types.get(type_, type_),
            key=attributes.get("partitionkey") or None,
            topic=envelope.routing_key or None,
            headers=headers | scalars(rest, "ce-"),
            correlation_id=storable_or_none(correlation) or envelope.correlation_id,
            causation_id=storable_or_none(causation),
            created_at=moment_of(attributes.get("time")) or envelope.timestamp,
            **content,
        )


def attributes_of(message: Message, source: str) -> dict[str, str]:
    """The attributes of the CloudEvent that a message is, as texts, without `datacontenttype`."""
    trace = {name: message.headers.get(name) for name in TRACE_HEADERS}
    optional: dict[str, object] = {
        "time": utc_text(message.created_at),
        "partitionkey": message.key,
        _CORRELATION: message.correlation_id,
        _CAUSATION: message.causation_id,
        _VERSION: str(message.version) if message.version != 1 else None,
        **trace,
    }
    required = {"specversion": "1.0", "id": message.id, "type": message.type, "source": source, OWN_ID: message.id}
    return required | {name: value for name, value in optional.items() if isinstance(value, str)}


def as_cloud_event(message: Message, source: str) -> Message:
    """The message as a CloudEvent over AMQP, in binary mode: with the attributes as headers.

    A message that is addressed to one queue goes back to a consumer of outboxkit, and stays as it is.
    """
    if message.queue is not None:
        return message
    attributes = {WRITTEN_PREFIX + name: value for name, value in attributes_of(message, source).items()}
    return changed(message, headers={**message.headers, **attributes})


def utc_text(moment: datetime | None) -> str | None:
    """The moment as RFC 3339 has it, in UTC."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _prefix(headers: Mapping[str, Any]) -> str | None:
    lowered = {name.lower() for name in headers}
    return next((prefix for prefix in PREFIXES if f"{prefix}specversion" in lowered), None)


def _required(attributes: Mapping[str, Any], name: str) -> str:
    value = attributes.get(name)
    if not isinstance(value, str) or not value:
        raise DecodeError(f"its {name} is {str(value)[:40]!r}; a text that is not empty is accepted")
    return value


def _version(value: object) -> int:
    if not isinstance(value, str) or not re.fullmatch(r"[1-9][0-9]{0,9}", value):
        raise DecodeError(f"its {_VERSION} is {str(value)[:40]!r}; a whole number from 1 is accepted")
    return int(value)


def _attribute(raw: msgspec.Raw) -> Any:
    """The value of an attribute of the structured mode, which is a text, a number or a boolean."""
    text = bytes(raw)
    if text[:1] in b"[{" or len(text) > HEADERS_LIMIT:
        return ...
    return parse_json(text, object)


def _content(event: _Event, content_type: str) -> tuple[bytes, int]:
    """The payload of the structured mode, and its size in the document.

    Data of another type than JSON is a JSON text that holds it (JSON format, section 3.1.1).
    """
    if event.data_base64 is not None:
        try:
            return base64.b64decode(event.data_base64, validate=True), len(event.data_base64)
        except (binascii.Error, ValueError):
            raise DecodeError("its data_base64 is not base64") from None
    data = b"" if isinstance(event.data, _Missing) else bytes(event.data)
    if data[:1] == b'"' and not _is_json(content_type):
        text: str = parse_json(data, str)
        return text.encode(), len(data)
    return data or b"{}", len(data)


def _is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type.endswith(("/json", "+json"))
