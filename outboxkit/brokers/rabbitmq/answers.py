"""The broker's answers to publishes, taken out of the bytes that arrive on a connection. Pure.

Acks, nacks and returns of one channel are handed to a `Listener` and go no further; everything else is passed on. Why
they do not take the client's own way is in docs/decisions/0013-one-buffer-for-a-batch.md.
"""

from struct import Struct
from typing import Protocol

from pamqp import commands, frame
from pamqp.header import ContentHeader

from outboxkit.brokers.rabbitmq.frames import BODY, END, FRAME_OVERHEAD, HEADER, METHOD

HEARTBEAT = bytes((8, 0, 0, 0, 0, 0, 0, END))
FRAME_TYPES = (METHOD, HEADER, BODY, HEARTBEAT[0])
CONFIRM_SIZE = 13
"""Bytes of an ack's or a nack's payload (section 1.8.3.13): class, method, delivery tag, bits."""
_FRAME, _CONFIRM, _METHOD = Struct(">BHI"), Struct(">HHQB"), Struct(">I")
_ACK, _NACK, _RETURN = (60, 80), (60, 120), 60 << 16 | 50
_CHANNEL_CLOSE, _CONNECTION_CLOSE = 20 << 16 | 40, 10 << 16 | 50
_BLOCKED, _UNBLOCKED = 10 << 16 | 60, 10 << 16 | 61


class Listener(Protocol):
    """Who hears what the broker says of the messages of a channel."""

    def ack(self, tag: int, *, multiple: bool) -> None:
        """It has the message of this delivery tag; with `multiple` also all earlier ones."""

    def nack(self, tag: int, *, multiple: bool) -> None:
        """It does not take it."""

    def returned(self, message_id: str, reason: str) -> None:
        """No queue wants it; its ack follows."""

    def closed(self, code: int, text: str, *, connection_too: bool) -> None:
        """The broker closes the channel or the whole connection."""

    def blocked(self, reason: str | None) -> None:
        """The broker takes no publishes of this connection now; None: it does again."""


class Answers:
    """What arrives on one connection."""

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._channel = 0
        self._rest = b""
        self._returned: commands.Basic.Return | None = None
        self._returned_id = ""
        self._returned_body = 0

    def hand_to(self, listener: Listener, *, channel: int) -> None:
        """From now on `listener` hears of the publishes on this channel."""
        self._listener, self._channel, self._returned = listener, channel, None

    def feed(self, arrived: bytes) -> bytes:
        """What of the bytes is for others, whole frames only; the beginning of one is kept until its end arrives."""
        data = self._rest + arrived if self._rest else arrived
        position, passed, kept, end = 0, 0, [], len(data)
        while end - position >= FRAME_OVERHEAD:
            kind, channel, size = _FRAME.unpack_from(data, position)
            if kind not in FRAME_TYPES:  # no AMQP: the client will say so
                position = end
                break
            after = position + size + FRAME_OVERHEAD
            if after > end:
                break
            if self._take(kind, channel, size, data, position):
                kept.append(data[passed:position])
                passed = after
            position = after
        kept.append(data[passed:position])
        self._rest = data[position:]
        return b"".join(kept)

    def _take(self, kind: int, channel: int, size: int, data: bytes, start: int) -> bool:
        """Whether the frame is an answer to a publish; the listener has heard of it then."""
        listener = self._listener
        if listener is None:
            return False
        if kind == METHOD:
            if channel == self._channel and size == CONFIRM_SIZE:
                class_, method, tag, bits = _CONFIRM.unpack_from(data, start + 7)
                if (class_, method) == _ACK:
                    listener.ack(tag, multiple=bool(bits & 1))
                    return True
                if (class_, method) == _NACK:
                    listener.nack(tag, multiple=bool(bits & 1))
                    return True
            ours = channel in (0, self._channel)
            return ours and self._take_method(listener, data[start : start + size + FRAME_OVERHEAD])
        if channel != self._channel or self._returned is None:
            return False
        if kind == HEADER:
            self._open_return(data[start : start + size + FRAME_OVERHEAD])
        else:
            self._returned_body -= size
        if self._returned_body <= 0:
            self._end_return(listener)
        return True

    def _take_method(self, listener: Listener, data: bytes) -> bool:
        (method,) = _METHOD.unpack_from(data, 7)
        if method not in (_RETURN, _CHANNEL_CLOSE, _CONNECTION_CLOSE, _BLOCKED, _UNBLOCKED):
            return False
        found = frame.unmarshal(data)[2]
        match found:
            case commands.Basic.Return():
                self._returned = found
                return True
            case commands.Channel.Close():
                listener.closed(found.reply_code or 0, found.reply_text or "", connection_too=False)
            case commands.Connection.Close():
                listener.closed(found.reply_code or 0, found.reply_text or "", connection_too=True)
            case commands.Connection.Blocked():
                listener.blocked(found.reason or "")
            case commands.Connection.Unblocked():
                listener.blocked(None)
        return False

    def _open_return(self, data: bytes) -> None:
        header = frame.unmarshal(data)[2]
        if isinstance(header, ContentHeader):
            self._returned_body, self._returned_id = header.body_size, header.properties.message_id or ""

    def _end_return(self, listener: Listener) -> None:
        found, self._returned = self._returned, None
        if found is not None:
            listener.returned(
                self._returned_id,
                f"{found.reply_text}: no queue is bound to exchange {found.exchange!r} "
                f"for routing key {found.routing_key!r}",
            )
