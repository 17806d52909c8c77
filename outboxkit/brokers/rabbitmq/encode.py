"""Encoder of messages as AMQP 0-9-1 frames, and of the properties of a delivery's copy (sections 2.3.5, 4.2). Pure."""

from collections.abc import Iterable, Mapping
from struct import Struct, error
from typing import Any
from zlib import crc32

from pamqp import encode

from outboxkit.brokers.rabbitmq import decode
from outboxkit.brokers.rabbitmq.decode import BROKERS_OWN, EPOCH, PERSISTENT
from outboxkit.codec.headers import (
    ALIASES,
    BUCKET,
    EXTRA_ROUTES,
    FIELD_HEADERS,
    HIDDEN_ROUTES,
    OWN,
    TOPIC,
    DeliveryHeaders,
    field_headers,
)
from outboxkit.codec.rows import aliases_of
from outboxkit.message import NAME_LIMIT, Message
from outboxkit.runtime.sources import BUCKETS

METHOD, HEADER, BODY, END = 1, 2, 3, 0xCE
FRAME_OVERHEAD = 8
"""Bytes of a frame beside its payload: type, channel, size, end."""
HEADER_OVERHEAD = 14
"""Bytes of a content header beside its properties: class, weight, body size, flags."""
BASIC, PUBLISH, MANDATORY = 60, 40, 1
CACHE_SIZE = 1024
"""Limit of the cached routes and of the cached header names. A full cache is emptied."""

_CONTENT_TYPE, _ENCODING, _HEADERS, _DELIVERY_MODE = 0x8000, 0x4000, 0x2000, 0x1000
_CORRELATION, _ID, _TIMESTAMP, _TYPE, _APP = 0x0400, 0x0080, 0x0040, 0x0020, 0x0008
_ALWAYS = _CONTENT_TYPE | _DELIVERY_MODE | _ID | _TYPE | _APP
_FRAME, _PUBLISH = Struct(">BHI"), Struct(">HHH")
_ENDED_AND_CONTENT, _ENDED_AND_FRAME = Struct(">BBHIHHQH"), Struct(">BBHI")
_LONG, _TIME, _DOUBLE = Struct(">I"), Struct(">Q"), Struct(">Bd")
_OWN_NAMES = frozenset((*FIELD_HEADERS.values(), TOPIC, BUCKET, ALIASES))
_SIZE = [bytes((number,)) for number in range(NAME_LIMIT + 1)]
_MODE, _END = bytes((PERSISTENT,)), bytes((END,))
_Route = tuple[bytes, int, bytes, bytes]
_RouteKey = tuple[str | None, str | None, str, str, str | None]


class Unwritable(ValueError):
    """A message cannot be encoded as AMQP; the text says why."""


class Encoder:
    """An encoder of messages as mandatory, persistent publishes to one exchange on one channel.

    A message that is addressed to a queue is published to that queue alone, through the default exchange.

    Args:
        frame_max: bytes of the largest frame that the broker accepts. Larger bodies are split.

    Attributes:
        room: the bytes of a frame's payload.
    """

    def __init__(self, exchange: str, *, app_id: str, channel: int, frame_max: int) -> None:
        self._exchange = _short(exchange)
        self._app_id = _short(app_id)
        self._channel = channel
        self.room = frame_max - FRAME_OVERHEAD
        self._routes: dict[_RouteKey, _Route] = {}
        self._names: dict[str, bytes] = {}

    def write(self, message: Message, pieces: list[bytes]) -> int:
        """Append the frames of a message to `pieces`, which are to be joined. Returns roughly how many bytes they have.

        Raises:
            Unwritable: AMQP cannot carry the message. Nothing was appended.
        """
        try:
            queue = message.queue
            route = (queue, message.topic, message.type, message.content_type, message.content_encoding)
            method, flags, before, after = self._routes.get(route) or self._encode_route(route)
            properties = [before]
            fields = field_headers(message)
            if fields or message.headers or queue is not None:
                flags |= _HEADERS
                self._write_table(message, fields, properties)
            properties.append(_MODE)
            if message.correlation_id is not None:
                flags |= _CORRELATION
                properties += _pair(message.correlation_id)
            properties += _pair(message.id)
            if message.created_at is not None and message.created_at >= EPOCH:
                flags |= _TIMESTAMP
                properties.append(_TIME.pack(int(message.created_at.timestamp())))
            properties.append(after)
            properties_bytes = b"".join(properties)
        except (IndexError, ValueError, TypeError, OverflowError, error) as cause:
            raise Unwritable(_explain(cause)) from cause
        if len(properties_bytes) + HEADER_OVERHEAD > self.room:
            raise Unwritable(
                f"its properties and headers are {len(properties_bytes)} bytes long; a frame holds {self.room}"
            )
        self._write(method, flags, properties_bytes, message.payload, pieces)
        return len(message.payload) + len(properties_bytes) + len(method)

    def frames(self, exchange: str, routing_key: str, flags: int, properties: bytes, body: bytes) -> bytes:
        """The frames of one mandatory publish whose properties are encoded, and fit into `room`."""
        pieces: list[bytes] = []
        self._write(self._method(_short(exchange), routing_key), flags, properties, body, pieces)
        return b"".join(pieces)

    def _method(self, exchange: bytes, routing_key: str) -> bytes:
        """The method frame of a mandatory publish, without its end."""
        arguments = b"".join((_PUBLISH.pack(BASIC, PUBLISH, 0), exchange, _short(routing_key), bytes((MANDATORY,))))
        return _FRAME.pack(METHOD, self._channel, len(arguments)) + arguments

    def _write(self, method: bytes, flags: int, properties: bytes, payload: bytes, pieces: list[bytes]) -> None:
        """Append all frames of one publish."""
        length, size = len(payload), len(properties) + HEADER_OVERHEAD
        content = _ENDED_AND_CONTENT.pack(END, HEADER, self._channel, size, BASIC, 0, length, flags)
        pieces += (method, content, properties)
        if 0 < length <= self.room:
            pieces += (_ENDED_AND_FRAME.pack(END, BODY, self._channel, length), payload, _END)
            return
        for start in range(0, length, self.room):
            part = payload[start : start + self.room]
            pieces += (_ENDED_AND_FRAME.pack(END, BODY, self._channel, len(part)), part)
        pieces.append(_END)

    def _write_table(self, message: Message, own: Iterable[tuple[str, Any]], properties: list[bytes]) -> None:
        """Append the table of headers, the user's before outboxkit's (section 4.2.5.5)."""
        fields: list[bytes] = []
        for name, value in message.headers.items():
            if name not in _OWN_NAMES:
                self._write_field(name, value, fields)
        if message.queue is not None:  # its consumer is to see it as it was
            self._write_field(TOPIC, message.routing_key, fields)
        if ALIASES in message.headers and (aliases := aliases_of(message)):
            self._write_field(HIDDEN_ROUTES, aliases, fields)
        for name, value in own:
            self._write_field(name, value, fields)
        if message.key is not None:
            fields.append(_BUCKET_FIELDS[crc32(message.key.encode()) % BUCKETS])
        table = b"".join(fields)
        properties += (_LONG.pack(len(table)), table)

    def _write_field(self, name: str, value: object, fields: list[bytes]) -> None:
        name_bytes = self._names.get(name) or self._encode_name(name)
        if type(value) is str:
            text = value.encode()
            fields += (name_bytes, b"S", _LONG.pack(len(text)), text)
        elif value is None:
            fields += (name_bytes, b"V")
        elif type(value) is float:  # pamqp would round it to 32 bits
            fields += (name_bytes, _DOUBLE.pack(ord("d"), value))
        else:
            fields += (name_bytes, encode.encode_table_value(value))  # type: ignore[arg-type]

    def _encode_name(self, name: str) -> bytes:
        if len(self._names) >= CACHE_SIZE:
            self._names.clear()
        name_bytes = self._names[name] = _short(name)
        return name_bytes

    def _encode_route(self, route: _RouteKey) -> _Route:
        """The bytes that all messages of a route have in common: the method frame without its end, some properties."""
        queue, topic, type_, content_type, encoding = route
        exchange, key = (self._exchange, topic) if queue is None else (_short(""), queue)
        method = self._method(exchange, type_ if key is None else key)
        before, flags = _short(content_type), _ALWAYS
        if encoding is not None:
            before, flags = before + _short(encoding), flags | _ENCODING
        if len(self._routes) >= CACHE_SIZE:
            self._routes.clear()
        route_bytes = self._routes[route] = (method, flags, before, _short(type_) + self._app_id)
        return route_bytes


def _pair(text: str) -> tuple[bytes, bytes]:
    """The size and the bytes of a short string (section 4.2.5.3). IndexError if it is too long."""
    text_bytes = text.encode()
    return _SIZE[len(text_bytes)], text_bytes


def _short(text: str) -> bytes:
    return b"".join(_pair(text))


_BUCKET_FIELDS = [
    b"".join((*_pair(BUCKET), b"S", _LONG.pack(len(number)), number))
    for number in (str(bucket).encode() for bucket in range(BUCKETS))
]


def _explain(cause: Exception) -> str:
    if isinstance(cause, IndexError):
        return f"one of its properties or header names is over {NAME_LIMIT} bytes long"
    return " ".join(str(cause).split()) or type(cause).__name__


_LEFT_OUT = ("expiration", "user_id", "cluster_id")
"""Properties that a copy does not have.

The expiration would end the wait in a retry queue early, and the message would be dropped. The broker compares the user
id with the user of this connection. AMQP 0-9-1 no longer has the cluster id.
"""
_ESSENTIAL = tuple(FIELD_HEADERS.values())


def copy_properties(
    flags: int, properties_bytes: bytes, delivery_headers: DeliveryHeaders, topic: str, *, room: int
) -> tuple[int, bytes, list[str]]:
    """The flags and the bytes of a copy's properties, and the names of the headers for which there was no room.

    The copy has those properties of the delivery that can be read and could not lose the message. It always has the
    delivery headers, so that its attempts are counted, and the first topic. If they exceed `room`, the bytes of a
    frame, the sender's largest headers are left out.

    Raises:
        Unwritable: even without those headers they do not fit.
    """
    parts = decode.split(flags, properties_bytes)
    headers = [
        (name, field)
        for name, field in decode.fields(parts.pop("headers", b""))
        if name in _ESSENTIAL or not (name.startswith((OWN, *BROKERS_OWN)) or name in EXTRA_ROUTES)
    ]
    own_headers = _table({TOPIC: topic, **delivery_headers.headers()})
    parts = {name: part for name, part in parts.items() if name not in _LEFT_OUT}
    parts["delivery_mode"] = bytes((PERSISTENT,))
    excess = HEADER_OVERHEAD + _LONG.size + len(own_headers) - room
    excess += sum(map(len, parts.values())) + sum(len(field) for _, field in headers)
    left_out: dict[int, str] = {}
    for index in sorted(range(len(headers)), key=lambda i: (headers[i][0] in _ESSENTIAL, -len(headers[i][1]))):
        if excess <= 0:
            break
        excess -= len(headers[index][1])
        left_out[index] = headers[index][0]
    if excess > 0:
        raise Unwritable(f"its properties and delivery headers are {excess} bytes more than a frame holds")
    table = b"".join(field for index, (_, field) in enumerate(headers) if index not in left_out) + own_headers
    parts["headers"] = _LONG.pack(len(table)) + table
    return *decode.join(parts), list(left_out.values())


def _table(headers: Mapping[str, Any]) -> bytes:
    """These headers as the fields of a table, without its size."""
    try:
        return encode.field_table(dict(headers))[_LONG.size :]
    except (ValueError, TypeError, OverflowError, error) as cause:
        raise Unwritable(f"its delivery headers cannot be encoded: {' '.join(str(cause).split())}") from cause
