"""What became of the messages that left on one channel: acks, nacks, returns and the channel's end. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outboxkit.brokers import CONFIRMED, Receipt, Verdict

Receipts = list[Receipt | None]


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a channel is of no use any more. The code is AMQP's, 0 where the broker did not send one."""

    code: int
    reason: str


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
        self._receipts: Receipts = []
        self.refused: list[int] = []
        self.lost: Loss | None = None
        self.blocked_by: str | None = None

    @property
    def waiting(self) -> int:
        """How many messages have no answer yet."""
        return len(self._waiting)

    def begin(self, receipts: Receipts) -> None:
        """From now on answers are written here, and indexes mean its places; what was before is forgotten."""
        self._receipts = receipts
        self._waiting.clear()
        self._tags.clear()
        self.refused = []

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

    def ack(self, tag: int, *, multiple: bool) -> None:
        """The broker has it."""
        self._answer(tag, multiple, CONFIRMED)

    def nack(self, tag: int, *, multiple: bool) -> None:
        """The broker does not take it: a queue is full, or failed."""
        self._answer(tag, multiple, Receipt(Verdict.REJECTED, "nacked by the broker: is a queue full?"))

    def returned(self, message_id: str, reason: str) -> None:
        """It reached no queue. RabbitMQ says so before it acks, and that ack says nothing any more."""
        index = self._waiting.pop(self._tags.get(message_id, 0), None)
        if index is not None:
            self._receipts[index] = Receipt(Verdict.UNROUTABLE, reason)
            self.refused.append(index)
            self._on_news()

    def closed(self, code: int, text: str) -> None:
        """The channel or the connection ended; the first reason is the true one."""
        if self.lost is None:
            self.lost = Loss(code, text)
            self._on_news()

    def blocked(self, reason: str | None) -> None:
        """The broker takes no publishes, or does again."""
        self.blocked_by = reason
        self._on_news()

    def _answer(self, tag: int, multiple: bool, receipt: Receipt) -> None:
        last = self._next - 1
        tag = min(tag, last) or last  # 0 with `multiple` stands for all (section 1.8.3.13)
        first = self._lowest if multiple else tag
        for each in range(first, tag + 1):
            index = self._waiting.pop(each, None)
            if index is not None:
                self._receipts[index] = receipt
                if receipt is not CONFIRMED:
                    self.refused.append(index)
        if first <= self._lowest <= tag:
            self._lowest = tag + 1
        self._on_news()
