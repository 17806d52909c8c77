"""Publisher confirms of one channel: acks, nacks, returns, and the end of the channel. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from outboxkit.brokers import CONFIRMED, Receipt, Verdict

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
