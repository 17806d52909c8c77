"""Messages as the bytes of AMQP 0-9-1, many in one buffer (sections 2.3.5 and 4.2). Pure.

The properties of a delivery are written again for a copy of it.
"""

from collections.abc import Mapping
from struct import Struct, error
from typing import Any

from pamqp import encode

from outboxkit.brokers.rabbitmq import decode
from outboxkit.brokers.rabbitmq.decode import BROKERS_OWN, CAUSATION, EPOCH, KEY, PERSISTENT, TOPIC
from outboxkit.brokers.reserved import OWN, QUEUE, DeliveryHeaders, addressed_to
from outboxkit.message import NAME_LIMIT, Message

METHOD, HEADER, BODY, END = 1, 2, 3, 0xCE
FRAME_OVERHEAD = 8
"""Bytes of a frame beside its payload: type, channel, size, end."""
HEADER_OVERHEAD = 14
"""Bytes of a content header beside its properties: class, weight, body size, flags."""
BASIC, PUBLISH, MANDATORY = 60, 40, 1
REMEMBERED = 1024
"""Routes and header names that are remembered; where there are more, remembering starts anew."""

_CONTENT_TYPE, _ENCODING, _HEADERS, _DELIVERY_MODE = 0x8000, 0x4000, 0x2000, 0x1000
_CORRELATION, _ID, _TIMESTAMP, _TYPE, _APP = 0x0400, 0x0080, 0x0040, 0x0020, 0x0008
_ALWAYS = _CONTENT_TYPE | _DELIVERY_MODE | _ID | _TYPE | _APP
_FRAME, _PUBLISH = Struct(">BHI"), Struct(">HHH")
_ENDED_AND_CONTENT, _ENDED_AND_FRAME = Struct(">BBHIHHQH"), Struct(">BBHI")
_LONG, _TIME, _DOUBLE = Struct(">I"), Struct(">Q"), Struct(">Bd")
_NOT_THE_USERS = frozenset((KEY, CAUSATION, TOPIC, QUEUE))
_SIZE = [bytes((number,)) for number in range(NAME_LIMIT + 1)]
_MODE, _END = bytes((PERSISTENT,)), bytes((END,))
_Route = tuple[bytes, int, bytes, bytes]
_RouteKey = tuple[str | None, str | None, str, str, str | None]


class Unwritable(ValueError):
    """A message that AMQP cannot carry; the text says why."""


class Encoder:
    """Writes messages as mandatory, persistent publishes to one exchange, on one channel.

    One that is addressed to a queue is published to that alone, through the exchange that has no name.

    Args:
        exchange: its name.
        app_id: the property of that name.
        channel: the channel's number.
        frame_max: bytes of the largest frame that the peer takes; larger bodies are split.
    """

    def __init__(self, exchange: str, *, app_id: str, channel: int, frame_max: int) -> None:
        self._exchange = _short(exchange)
        self._app_id = _short(app_id)
        self._channel = channel
        self._room = frame_max - FRAME_OVERHEAD
        self._routes: dict[_RouteKey, _Route] = {}
        self._names: dict[str, bytes] = {}

    def write(self, message: Message, pieces: list[bytes]) -> int:
        """Append the frames of a message, in pieces to be joined; returns their bytes, roughly.

        Raises:
            Unwritable: AMQP cannot carry it; nothing was appended.
        """
        try:
            queue = addressed_to(message.headers) if message.headers else None
            route = (queue, message.topic, message.type, message.content_type, message.content_encoding)
            method, flags, before, after = self._routes.get(route) or self._remember(route)
            properties = [before]
            if message.headers or message.key is not None or message.causation_id is not None:
                flags |= _HEADERS
                self._write_table(message, properties)
            properties.append(_MODE)
            if message.correlation_id is not None:
                flags |= _CORRELATION
                properties += _pair(message.correlation_id)
            properties += _pair(message.id)
            if message.created_at is not None and message.created_at >= EPOCH:
                flags |= _TIMESTAMP
                properties.append(_TIME.pack(int(message.created_at.timestamp())))
            properties.append(after)
            written = b"".join(properties)
        except (IndexError, ValueError, TypeError, OverflowError, error) as cause:
            raise Unwritable(_explain(cause)) from cause
        size = len(written) + HEADER_OVERHEAD
        if size > self._room:
            raise Unwritable(f"its properties and headers are {len(written)} bytes long; a frame holds {self._room}")
        length = len(message.payload)
        content = _ENDED_AND_CONTENT.pack(END, HEADER, self._channel, size, BASIC, 0, length, flags)
        pieces += (method, content, written)
        self._write_body(message.payload, length, pieces)
        return length + len(written) + len(method)

    def _write_body(self, payload: bytes, length: int, pieces: list[bytes]) -> None:
        if 0 < length <= self._room:
            pieces += (_ENDED_AND_FRAME.pack(END, BODY, self._channel, length), payload, _END)
            return
        for start in range(0, length, self._room):
            part = payload[start : start + self._room]
            pieces += (_ENDED_AND_FRAME.pack(END, BODY, self._channel, len(part)), part)
        pieces.append(_END)

    def _write_table(self, message: Message, properties: list[bytes]) -> None:
        """The headers: the user's, then ours (section 4.2.5.5)."""
        fields: list[bytes] = []
        for name, value in message.headers.items():
            if name not in _NOT_THE_USERS:
                self._write_field(name, value, fields)
        if addressed_to(message.headers) is not None:  # its consumer is to see it as it was
            self._write_field(TOPIC, message.routing_key, fields)
        if message.key is not None:
            self._write_field(KEY, message.key, fields)
        if message.causation_id is not None:
            self._write_field(CAUSATION, message.causation_id, fields)
        table = b"".join(fields)
        properties += (_LONG.pack(len(table)), table)

    def _write_field(self, name: str, value: object, fields: list[bytes]) -> None:
        written = self._names.get(name) or self._remember_name(name)
        if type(value) is str:
            text = value.encode()
            fields += (written, b"S", _LONG.pack(len(text)), text)
        elif value is None:
            fields += (written, b"V")
        elif type(value) is float:  # pamqp would round it to 32 bits
            fields += (written, _DOUBLE.pack(ord("d"), value))
        else:
            fields += (written, encode.encode_table_value(value))  # type: ignore[arg-type]

    def _remember_name(self, name: str) -> bytes:
        if len(self._names) >= REMEMBERED:
            self._names.clear()
        written = self._names[name] = _short(name)
        return written

    def _remember(self, route: _RouteKey) -> _Route:
        """What all messages of a route have in common: their first frame, without its end, and some properties."""
        queue, topic, type_, content_type, encoding = route
        exchange, key = (self._exchange, topic) if queue is None else (_short(""), queue)
        routing_key = _short(type_ if key is None else key)
        arguments = b"".join((_PUBLISH.pack(BASIC, PUBLISH, 0), exchange, routing_key, bytes((MANDATORY,))))
        method = _FRAME.pack(METHOD, self._channel, len(arguments)) + arguments
        before, flags = _short(content_type), _ALWAYS
        if encoding is not None:
            before, flags = before + _short(encoding), flags | _ENCODING
        if len(self._routes) >= REMEMBERED:
            self._routes.clear()
        made = self._routes[route] = (method, flags, before, _short(type_) + self._app_id)
        return made


def _pair(text: str) -> tuple[bytes, bytes]:
    """A short string (section 4.2.5.3) as its size and its bytes; IndexError where it is too long."""
    written = text.encode()
    return _SIZE[len(written)], written


def _short(text: str) -> bytes:
    return b"".join(_pair(text))


def _explain(cause: Exception) -> str:
    if isinstance(cause, IndexError):
        return f"one of its properties or header names is over {NAME_LIMIT} bytes long"
    return " ".join(str(cause).split()) or type(cause).__name__


ROUTES_MORE = ("CC", "BCC")
"""Headers by which a publisher sends to further queues: it has happened, and would again at each copy."""
_LEFT_OUT = ("expiration", "user_id", "cluster_id")
"""The expiry was meant for the first queue: it would cut the wait in another one short, and the message be dropped. The
user id is compared with ours by the broker, and AMQP 0-9-1 no longer has the cluster id."""
_KEPT_LAST = (KEY, CAUSATION)
_LONG = Struct(">I")


def rewritten(
    flags: int, written: bytes, marks: DeliveryHeaders, topic: str, *, room: int
) -> tuple[int, bytes, list[str]]:
    """The flags and the bytes of a copy's properties, and the names of headers that had to be left out.

    All is kept but what would lose the copy; the marks and the first topic are added. If that is more than `room`, the
    most that a frame holds, the sender's largest headers are left out.

    Raises:
        Unwritable: it is too much without them.
    """
    parts = decode.parts(flags, written)
    kept = [
        (name, field)
        for name, field in decode.fields(parts.pop("headers", b""))
        if name in _KEPT_LAST or not (name.startswith((OWN, *BROKERS_OWN)) or name in ROUTES_MORE)
    ]
    ours = _table({TOPIC: topic, **marks.headers()})
    parts = {name: part for name, part in parts.items() if name not in _LEFT_OUT}
    parts["delivery_mode"] = bytes((PERSISTENT,))
    excess = HEADER_OVERHEAD + _LONG.size + len(ours) - room
    excess += sum(map(len, parts.values())) + sum(len(field) for _, field in kept)
    left_out: dict[int, str] = {}
    for index in sorted(range(len(kept)), key=lambda index: (kept[index][0] in _KEPT_LAST, -len(kept[index][1]))):
        if excess <= 0:
            break
        excess -= len(kept[index][1])
        left_out[index] = kept[index][0]
    if excess > 0:
        raise Unwritable(f"its properties and marks are {excess} bytes more than a frame holds")
    table = b"".join(field for index, (_, field) in enumerate(kept) if index not in left_out) + ours
    parts["headers"] = _LONG.pack(len(table)) + table
    return *decode.joined(parts), list(left_out.values())


def _table(headers: Mapping[str, Any]) -> bytes:
    """These headers as fields of a table, without its size."""
    try:
        return encode.field_table(dict(headers))[_LONG.size :]
    except (ValueError, TypeError, OverflowError, error) as cause:
        raise Unwritable(f"its marks cannot be written: {' '.join(str(cause).split())}") from cause
