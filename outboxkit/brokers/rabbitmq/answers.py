"""The broker's answers to publishes, taken out of the bytes that arrive on a connection. Pure.

Acks, nacks and returns of one channel are handed to a `ConfirmListener` and go no further; everything else is passed on. Why
they do not take the client's own way is in docs/decisions/0013-one-buffer-for-a-batch.md.
"""

from struct import Struct
from typing import Protocol

from pamqp import commands, frame
from pamqp.header import ContentHeader

from outboxkit.brokers.rabbitmq.cutting import PAYLOAD, Cutter
from outboxkit.brokers.rabbitmq.frames import FRAME_OVERHEAD, HEADER, METHOD

CONFIRM_SIZE = 13
"""Bytes of an ack's or a nack's payload (section 1.8.3.13): class, method, delivery tag, bits."""
_CONFIRM, _METHOD = Struct(">HHQB"), Struct(">I")
_ACK, _NACK, _RETURN = (60, 80), (60, 120), 60 << 16 | 50
_CHANNEL_CLOSE, _CONNECTION_CLOSE = 20 << 16 | 40, 10 << 16 | 50
_BLOCKED, _UNBLOCKED = 10 << 16 | 60, 10 << 16 | 61


class ConfirmListener(Protocol):
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
        self._listener: ConfirmListener | None = None
        self._channel = 0
        self._cutter = Cutter(self._take)
        self._returned: commands.Basic.Return | None = None
        self._returned_id = ""
        self._returned_body = 0

    def hand_to(self, listener: ConfirmListener, *, channel: int) -> None:
        """From now on `listener` hears of the publishes on this channel."""
        self._listener, self._channel, self._returned = listener, channel, None

    def feed(self, arrived: bytes) -> bytes:
        """What of the bytes is for others, whole frames only; the beginning of one is kept until its end arrives."""
        return self._cutter.feed(arrived)

    def _take(self, kind: int, channel: int, size: int, data: bytes, start: int) -> bool:
        """Whether the frame is an answer to a publish; the listener has heard of it then."""
        listener = self._listener
        if listener is None:
            return False
        if kind == METHOD:
            if channel == self._channel and size == CONFIRM_SIZE:
                class_, method, tag, bits = _CONFIRM.unpack_from(data, start + PAYLOAD)
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

    def _take_method(self, listener: ConfirmListener, data: bytes) -> bool:
        (method,) = _METHOD.unpack_from(data, PAYLOAD)
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

    def _end_return(self, listener: ConfirmListener) -> None:
        found, self._returned = self._returned, None
        if found is not None:
            bound = f"no queue is bound to exchange {found.exchange!r} for routing key {found.routing_key!r}"
            gone = f"there is no queue {found.routing_key!r}"
            listener.returned(self._returned_id, f"{found.reply_text}: {bound}" if found.exchange else gone)
