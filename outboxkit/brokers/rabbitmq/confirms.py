"""What became of the messages that left on one channel: acks, nacks, returns and the channel's end. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outboxkit.brokers import CONFIRMED, Receipt, Verdict

Receipts = list[Receipt | None]

NACKED = Receipt(Verdict.POSTPONED, "nacked by the broker")
"""Says nothing of the message itself."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a channel is of no use any more, and whether its connection is not either.

    The code is AMQP's, 0 where the broker did not send one.
    """

    code: int
    reason: str
    connection_too: bool


class Tracker:
    """The delivery tags of one channel in confirm mode, which start at 1, and the messages that they stand for.

    Args:
        on_news: called whenever something was answered or changed.
    """

    def __init__(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news
        self._waiting: dict[int, int] = {}
        self._tags: dict[str, int] = {}
        self._next, self._lowest = 1, 1
        self._forgotten = 0
        self._receipts: Receipts = []
        self._refused: list[int] = []
        self.lost: Loss | None = None
        self.blocked_by: str | None = None

    @property
    def waiting(self) -> int:
        """How many messages have no answer yet."""
        return len(self._waiting)

    @property
    def may_blame(self) -> bool:
        """Whether a loss can be about what is waiting: not while something of an earlier batch is on its way, too."""
        return self._forgotten == 0

    def begin(self, receipts: Receipts) -> None:
        """From now on answers are written here, and indexes mean its places; what was before is forgotten."""
        if self._waiting:
            self._forgotten = self._next - 1
        self._receipts = receipts
        self._waiting.clear()
        self._tags.clear()
        self._refused = []

    def sent(self, ids: Sequence[str], indexes: Sequence[int]) -> None:
        """These messages, in this order, are on their way. No id may be on its way twice."""
        tags = range(self._next, self._next + len(ids))
        self._waiting.update(zip(tags, indexes, strict=True))
        self._tags.update(zip(ids, tags, strict=True))
        self._next = tags.stop

    def unanswered(self) -> list[int]:
        """The indexes of what has no answer, in the order in which they were sent; they are forgotten."""
        found = list(self._waiting.values())
        self._waiting.clear()
        return found

    def refused(self) -> list[int]:
        """The indexes of what was returned or nacked since this was last asked."""
        found, self._refused = self._refused, []
        return found

    def ack(self, tag: int, *, multiple: bool) -> None:
        """The broker has it."""
        self._answer(tag, CONFIRMED, multiple=multiple)

    def nack(self, tag: int, *, multiple: bool) -> None:
        """The broker does not take it: a queue is full, or has no leader that this connection knows."""
        self._answer(tag, NACKED, multiple=multiple)

    def returned(self, message_id: str, reason: str) -> None:
        """It reached no queue. RabbitMQ says so before it acks, and that ack says nothing any more."""
        index = self._waiting.pop(self._tags.get(message_id, 0), None)
        if index is not None:
            self._receipts[index] = Receipt(Verdict.UNROUTABLE, reason)
            self._refused.append(index)
            self._on_news()

    def closed(self, code: int, text: str, *, connection_too: bool) -> None:
        """The channel, or the whole connection, ended; the first reason is the true one."""
        if self.lost is None:
            self.lost = Loss(code, text, connection_too)
            self._on_news()

    def blocked(self, reason: str | None) -> None:
        """The broker takes no publishes, or does again."""
        self.blocked_by = reason
        self._on_news()

    def _answer(self, tag: int, receipt: Receipt, *, multiple: bool) -> None:
        last = self._next - 1
        if multiple:
            first, tag = self._lowest, min(tag, last) or last  # 0 stands for all (section 1.8.3.13)
        else:
            first = tag
        for each in range(first, min(tag, last) + 1):
            index = self._waiting.pop(each, None)
            if index is not None:
                self._receipts[index] = receipt
                if receipt is not CONFIRMED:
                    self._refused.append(index)
        if tag > self._forgotten:  # a channel is handled in order: the broker is past all that was before
            self._forgotten = 0
        if first <= self._lowest <= min(tag, last):
            self._lowest = tag + 1
        self._on_news()
