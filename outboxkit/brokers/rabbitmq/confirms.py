"""Publisher confirms of one channel: acks, nacks, returns, and the end of the channel, from the bytes on. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Protocol

from pamqp import commands, frame

from outboxkit.brokers import CONFIRMED, Receipt, Verdict
from outboxkit.brokers.rabbitmq import decode
from outboxkit.brokers.rabbitmq.encode import FRAME_OVERHEAD, HEADER, METHOD
from outboxkit.brokers.rabbitmq.taps import (
    CHANNEL_CLOSE,
    CONNECTION_CLOSE,
    CONTENT_HEADER,
    METHOD_NUMBER,
    PAYLOAD,
    FrameSplitter,
)

Receipts = list[Receipt | None]

FORGOTTEN_IDS = 1024
"""Ids of answered messages are forgotten when there are so many more of them than twice the unanswered ones."""

NACKED = Receipt(Verdict.POSTPONED, "nacked by the broker")
"""The receipt of a nacked message until the plan has a better one. A nack says nothing about the message itself."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The end of a channel.

    Attributes:
        code: AMQP's reply code; 0 if the broker sent none.
        reason: the reply text, or the error of the client library.
        connection_too: the connection has ended as well.
    """

    code: int
    reason: str
    connection_too: bool


class ReceiptTaker(Protocol):
    """Takes the receipts of messages by their indexes: a list, for example."""

    def __setitem__(self, index: int, receipt: Receipt, /) -> None:
        """The receipt of the message with this index has come."""


class ConfirmTracker:
    """The delivery tags of one channel in confirm mode, and the messages that they stand for. Tags start at 1.

    Args:
        on_change: called after every answer of the broker.

    Attributes:
        lost: the end of the channel; None as long as it works.
        blocked_by: why the broker accepts no publishes at the moment; None if it does.
        block_changes: the number of times that a block has begun or ended.
        on_blocked: called with the reason of a block, and with None at its end.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._unconfirmed: dict[int, int] = {}
        self._tags: dict[str, int] = {}
        self._next, self._lowest = 1, 1
        self._last_abandoned = 0
        self._receipts: ReceiptTaker = Receipts()
        self._refused: list[int] = []
        self.lost: Loss | None = None
        self.blocked_by: str | None = None
        self.block_changes = 0
        self.on_blocked: Callable[[str | None], None] = lambda _: None

    @property
    def unconfirmed(self) -> int:
        """The number of messages without an answer."""
        return len(self._unconfirmed)

    @property
    def may_blame(self) -> bool:
        """Whether the channel's end can be the fault of this batch: nothing of an earlier one is still unanswered."""
        return self._last_abandoned == 0

    def is_unanswered(self, message_id: str) -> bool:
        """Whether a message with this id was sent and has no answer."""
        return self._tags.get(message_id) in self._unconfirmed

    def begin(self, receipts: ReceiptTaker) -> None:
        """Start a batch: answers become receipts in it. Unanswered messages of the last batch are abandoned."""
        if self._unconfirmed:
            self._last_abandoned = self._next - 1
        self._receipts = receipts
        self._unconfirmed.clear()
        self._tags.clear()
        self._refused = []

    def sent(self, ids: Sequence[str], indexes: Sequence[int]) -> None:
        """Record that these messages were written in this order. No id may be unconfirmed twice."""
        tags = range(self._next, self._next + len(ids))
        if len(self._tags) > 2 * len(self._unconfirmed) + FORGOTTEN_IDS:
            self._tags = {id_: tag for id_, tag in self._tags.items() if tag in self._unconfirmed}
        self._unconfirmed.update(zip(tags, indexes, strict=True))
        self._tags.update(zip(ids, tags, strict=True))
        self._next = tags.stop

    def take_unanswered(self) -> list[int]:
        """The indexes of the messages without an answer, in the order of sending. They are no longer tracked."""
        indexes = list(self._unconfirmed.values())
        self._unconfirmed.clear()
        return indexes

    def take_refused(self) -> list[int]:
        """The indexes of the messages that were returned or nacked since the last call."""
        indexes, self._refused = self._refused, []
        return indexes

    def ack(self, tag: int, *, multiple: bool) -> None:
        """Basic.Ack: the message is in its queues."""
        self._answer(tag, CONFIRMED, multiple=multiple)

    def nack(self, tag: int, *, multiple: bool) -> None:
        """Basic.Nack: a queue is full, or has no leader that this connection knows."""
        self._answer(tag, NACKED, multiple=multiple)

    def returned(self, message_id: str, reason: str) -> None:
        """Basic.Return: the message reached no queue. RabbitMQ acks it afterwards, which then means nothing."""
        index = self._unconfirmed.pop(self._tags.get(message_id, 0), None)
        if index is not None:
            self._receipts[index] = Receipt(Verdict.UNROUTABLE, reason)
            self._refused.append(index)
            self._on_change()

    def closed(self, code: int, text: str, *, connection_too: bool) -> None:
        """The channel or the whole connection has ended. The first reason counts, later ones only follow from it."""
        if self.lost is None:
            self.lost = Loss(code, text, connection_too)
            self._on_change()

    def blocked(self, reason: str | None) -> None:
        """Connection.Blocked with its reason, or with None Connection.Unblocked."""
        self.blocked_by = reason
        self.block_changes += 1
        self._on_change()
        self.on_blocked(reason)

    def _answer(self, tag: int, receipt: Receipt, *, multiple: bool) -> None:
        last = self._next - 1
        if multiple:
            first, tag = self._lowest, min(tag, last) or last  # 0 stands for all (section 1.8.3.13)
        else:
            first = tag
        for each in range(first, min(tag, last) + 1):
            index = self._unconfirmed.pop(each, None)
            if index is not None:
                self._receipts[index] = receipt
                if receipt is not CONFIRMED:
                    self._refused.append(index)
        if tag > self._last_abandoned:  # a channel is handled in order: the broker is past everything abandoned
            self._last_abandoned = 0
        if first <= self._lowest <= min(tag, last):
            self._lowest = tag + 1
        self._on_change()


CONFIRM_SIZE = 13
"""Bytes of an ack's or a nack's payload (section 1.8.3.13): class, method, delivery tag, bits."""
_CONFIRM = Struct(">HHQB")
_ACK, _NACK, _RETURN = (60, 80), (60, 120), 60 << 16 | 50
_BLOCKED, _UNBLOCKED = 10 << 16 | 60, 10 << 16 | 61


class ConfirmParser:
    """A parser of the publisher confirms on one channel of a connection."""

    def __init__(self) -> None:
        self._tracker: ConfirmTracker | None = None
        self._channel = 0
        self._return: commands.Basic.Return | None = None
        self._return_id = ""
        self._return_bytes = 0
        self.feed = FrameSplitter(self._take).feed

    def report_to(self, tracker: ConfirmTracker, *, channel: int) -> None:
        """Report the confirms on this channel to `tracker` from now on."""
        self._tracker, self._channel, self._return = tracker, channel, None

    def _take(self, kind: int, channel: int, size: int, buffer: bytes, offset: int) -> bool:
        """The frame handler: it takes acks, nacks and returned messages, and only looks at closes and blocks."""
        tracker = self._tracker
        if tracker is None:
            return False
        if kind == METHOD:
            if channel == self._channel and size == CONFIRM_SIZE:
                class_, method, tag, bits = _CONFIRM.unpack_from(buffer, offset + PAYLOAD)
                if (class_, method) == _ACK:
                    tracker.ack(tag, multiple=bool(bits & 1))
                    return True
                if (class_, method) == _NACK:
                    tracker.nack(tag, multiple=bool(bits & 1))
                    return True
            is_ours = channel in (0, self._channel)
            return is_ours and self._take_method(tracker, buffer[offset : offset + size + FRAME_OVERHEAD])
        if channel != self._channel or self._return is None:
            return False
        if kind == HEADER:
            self._begin_return(buffer[offset + PAYLOAD : offset + PAYLOAD + size])
        else:
            self._return_bytes -= size
        if self._return_bytes <= 0:
            self._end_return(tracker)
        return True

    def _take_method(self, tracker: ConfirmTracker, data: bytes) -> bool:
        (number,) = METHOD_NUMBER.unpack_from(data, PAYLOAD)
        if number not in (_RETURN, CHANNEL_CLOSE, CONNECTION_CLOSE, _BLOCKED, _UNBLOCKED):
            return False
        method = frame.unmarshal(data)[2]
        match method:
            case commands.Basic.Return():
                self._return = method
                return True
            case commands.Channel.Close():
                tracker.closed(method.reply_code or 0, method.reply_text or "", connection_too=False)
            case commands.Connection.Close():
                tracker.closed(method.reply_code or 0, method.reply_text or "", connection_too=True)
            case commands.Connection.Blocked():
                tracker.blocked(method.reason or "")
            case commands.Connection.Unblocked():
                tracker.blocked(None)
        return False

    def _begin_return(self, payload: bytes) -> None:
        _, _, self._return_bytes, flags = CONTENT_HEADER.unpack_from(payload)
        self._return_id = decode.read_properties(flags, payload[CONTENT_HEADER.size :]).message_id or ""

    def _end_return(self, tracker: ConfirmTracker) -> None:
        method, self._return = self._return, None
        if method is not None:
            unbound = f"no queue is bound to exchange {method.exchange!r} for routing key {method.routing_key!r}"
            missing = f"there is no queue {method.routing_key!r}"
            tracker.returned(self._return_id, f"{method.reply_text}: {unbound}" if method.exchange else missing)
