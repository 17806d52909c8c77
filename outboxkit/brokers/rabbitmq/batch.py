"""The plan of one batch: what leaves together, what is held, which message a broken channel is blamed on. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from outboxkit.brokers import CONFIRMED, Receipt, Verdict
from outboxkit.brokers.rabbitmq.caution import Caution, route
from outboxkit.brokers.rabbitmq.confirms import Loss, Receipts
from outboxkit.message import Message

CAREFUL_WAVES = 64
"""How many messages of one key a batch publishes one by one, at most; the others come with a later batch."""
INTERNAL_ERROR = 541
BLAMED_ON_CONTENT = frozenset({311, 406, 501, 502, 503, 505, 540, INTERNAL_ERROR})
"""With which the broker closes a channel or a connection because of what it was sent (section 1.2)."""


def blames_a_message(loss: Loss) -> bool:
    """Whether the broker closed because of a message; access to a topic, unlike to an exchange, is about one."""
    return loss.code in BLAMED_ON_CONTENT or (loss.code == 403 and "access to topic" in loss.reason)


@dataclass(frozen=True, slots=True)
class Suspects:
    """Ids at one of which the broker closed a channel or a connection, and whether other messages pass."""

    ids: frozenset[str] = frozenset()
    others_pass: bool = False


NOBODY = Suspects()


class Batch:
    """The messages of one `publish` and their receipts, so far.

    A wave is what may be on its way at the same time: no id twice, because a returned message is told apart by its id
    alone; and nothing behind one of its key that is handled with care.

    Args:
        messages: in order.
        caution: of the publisher, for longer than one batch.
        suspects: what an earlier batch has found out and could not finish.
    """

    def __init__(self, messages: Sequence[Message], caution: Caution, suspects: Suspects = NOBODY) -> None:
        self.messages = messages
        self.receipts: Receipts = [None] * len(messages)
        self._caution = caution
        self._suspects = suspects
        self._failed: set[str] = set()
        self._routes = {route(message) for message in messages if message.key is not None}
        self._careful: set[str] = set()
        self._wave: list[int] = []
        self._waves = 0
        every = range(len(messages))
        found = [index for index in every if messages[index].id in self._suspects.ids] if suspects.ids else []
        # The last group is the next one. Parts of a batch that follow each other keep the order of every key.
        self._groups: list[Sequence[int]] = [every]
        if found:
            first, stop = found[0], found[-1] + 1
            self._groups = [every[stop:], *_halves(every[first:stop]), every[:first]]

    def next_wave(self) -> list[int]:
        """The indexes of what is to be sent now, in order; none where everything is decided."""
        self._learn()
        self._careful = self._caution.doubts(self._routes)
        self._waves += 1
        wave: list[int] = []
        while self._groups and not wave:
            wave, later = self._split(self._groups.pop())
            if later:
                self._groups.append(later)
        self._wave = wave
        return wave

    def refuse(self, index: int, receipt: Receipt) -> None:
        """This message failed by itself: what is behind it, of its key, is held."""
        self.receipts[index] = receipt
        key = self.messages[index].key
        if key is not None:
            self._failed.add(key)

    def refused_by_broker(self, indexes: Sequence[int]) -> None:
        """The broker returned or nacked these."""
        for index in indexes:
            receipt = self.receipts[index]
            if receipt is not None:
                self.refuse(index, receipt)
                self._caution.refused(self.messages[index], receipt.verdict)

    def is_held(self, index: int) -> bool:
        """Whether an earlier message of its key has failed; it has its receipt then."""
        key = self.messages[index].key
        if key is None or key not in self._failed:
            return False
        self.receipts[index] = Receipt(Verdict.HELD, f"an earlier message of key {key!r} has failed")
        return True

    def broke(self, loss: Loss, unanswered: Sequence[int], unsent: Sequence[int]) -> None:
        """The broker ended the channel or connection because of one of these: find out of which."""
        if unsent:
            self._groups.append(unsent)
        if len(unanswered) > 1:
            self._suspects = Suspects(frozenset(self.messages[index].id for index in unanswered))
            self._groups += _halves(unanswered)
        elif unanswered and (loss.code != INTERNAL_ERROR or self._others_pass()):
            self.refuse(unanswered[0], Receipt(Verdict.REJECTED, f"the broker closed: {loss.reason}"))
        elif unanswered:
            self.refuse(unanswered[0], Receipt(Verdict.UNKNOWN, f"the broker closed: {loss.reason}"))

    def still_suspect(self) -> Suspects:
        """What the next batch should know."""
        unsettled = {
            message.id
            for message, receipt in zip(self.messages, self.receipts, strict=True)
            if receipt is None or receipt.verdict is Verdict.UNKNOWN
        }
        ids = self._suspects.ids & unsettled if self._suspects.ids else frozenset()
        return Suspects(ids, others_pass=self._others_pass()) if ids else NOBODY

    def _others_pass(self) -> bool:
        return self._suspects.others_pass or CONFIRMED in self.receipts

    def give_up(self, reason: str) -> list[Receipt]:
        """All receipts; what has none is unknown, for this reason."""
        unknown = Receipt(Verdict.UNKNOWN, reason)
        return [unknown if receipt is None else receipt for receipt in self.receipts]

    def _learn(self) -> None:
        """Every routing key of which the last wave has brought a message into a queue is proven."""
        for index in self._wave if self._careful else ():
            if self.receipts[index] is CONFIRMED and (found := route(self.messages[index])) in self._careful:
                self._caution.proven(found)

    def _split(self, group: Sequence[int]) -> tuple[list[int], list[int]]:
        messages = self.messages
        ids = {messages[index].id for index in group}
        if len(ids) == len(group) and not self._careful and not self._failed:
            return list(group), []
        wave: list[int] = []
        later: list[int] = []
        waiting: set[str] = set()
        seen: set[str] = set()
        for index in group:
            message = messages[index]
            if self.receipts[index] is not None or self.is_held(index):
                continue
            if message.id in seen or message.key in waiting:
                if message.key is not None:
                    waiting.add(message.key)
                later.append(index)
                continue
            seen.add(message.id)
            wave.append(index)
            if message.key is not None and route(message) in self._careful:
                waiting.add(message.key)
        return wave, later if self._waves < CAREFUL_WAVES else self._put_off(later)

    def _put_off(self, later: list[int]) -> list[int]:
        """Leave the keys of these to a later batch; the rest of them."""
        for index in later:
            if self.messages[index].key is not None:
                self.receipts[index] = Receipt(Verdict.HELD, "its key is published with care, and goes on later")
        return [index for index in later if self.receipts[index] is None]


def _halves(group: Sequence[int]) -> list[Sequence[int]]:
    """The second half and the first."""
    middle = (len(group) + 1) // 2
    return [group[middle:], group[:middle]]
