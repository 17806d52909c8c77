"""Order in which the messages of a batch are sent, and the receipts of those without an answer. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from outboxkit.brokers import KeyGate, Receipt, Verdict
from outboxkit.errors import BrokerUnavailable
from outboxkit.message import Message


@dataclass(frozen=True, slots=True)
class Answered:
    """The outcome of a message that has a receipt.

    Attributes:
        receipt: for the message.
        responded: the receipt comes from a response, so the destination is up.
        unauthorized: the destination refuses the sender. It would refuse every other message as well.
    """

    receipt: Receipt
    responded: bool = True
    unauthorized: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """The outcome of a request that was sent, wholly or in part, without a response."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unreached:
    """The outcome of a request that could not be sent, for lack of a connection.

    Attributes:
        was_sent: it was sent before, on a kept-alive connection that was lost with it: the message may be the cause.
    """

    reason: str
    was_sent: bool = False


CallOutcome = Answered | Lost | Unreached


class SendOrder:
    """The messages of a batch in the order in which they may be sent: those of one key one after the other.

    A request without a response is ambiguous: either the message is bad or the destination is down. If any other
    request of the batch got a response, the destination is up and the message is rejected. Otherwise it is sent last in
    the next batch, so that such messages cannot use up all concurrent requests.

    Args:
        unclear: ids of messages to send last, because the batch before did not tell whether they are bad.
    """

    def __init__(self, batch: Sequence[Message], unclear: Collection[str] = ()) -> None:
        self._batch = batch
        self._unclear = unclear
        self._receipts: list[Receipt | None] = [None] * len(batch)
        self._lost: dict[int, str] = {}
        self._unreached: dict[int, str] = {}
        self._was_sent: set[int] = set()
        self._has_response = False
        self._refusals: dict[int, str] = {}
        self._is_accepted = False
        self._gate = KeyGate()
        self._successors: dict[int, int] = {}
        self._ready: list[tuple[bool, int]] = []
        last_of_key: dict[str, int] = {}
        for index, message in enumerate(batch):
            if message.key is not None and message.key in last_of_key:
                self._successors[last_of_key[message.key]] = index
            else:
                self._make_ready(index)
            if message.key is not None:
                last_of_key[message.key] = index

    def next(self) -> int | None:
        """The index of the next message to send; None if there is none, or the destination is away."""
        return heappop(self._ready)[1] if self._ready and not self._unreached and self.refusal is None else None

    @property
    def refusal(self) -> str | None:
        """The reason with which the destination refuses the sender; None if it does not.

        If it accepts other messages of this batch, a refusal of an unclear message does not count.
        """
        ignored = self._unclear if self._is_accepted else ()
        return next((reason for index, reason in self._refusals.items() if self._batch[index].id not in ignored), None)

    def trouble(self, before: str | None) -> str | None:
        """The reason for which no response takes the sender; `before`, the one until then, if no request was sent."""
        reasons = (*self._refusals.values(), *self._lost.values(), *self._unreached.values(), before)
        return None if self._is_accepted else reasons[0]

    def put(self, index: int, outcome: CallOutcome) -> None:
        """Record the outcome of a message. Unless it is confirmed, later messages of its key are not sent."""
        match outcome:
            case Answered(receipt, responded, unauthorized):
                self._receipts[index] = receipt
                self._has_response |= responded
                self._is_accepted |= responded and not unauthorized
                if unauthorized:
                    self._refusals[index] = receipt.reason or "the destination refuses the sender"
                if receipt.verdict is Verdict.CONFIRMED:
                    if index in self._successors:
                        self._make_ready(self._successors[index])
                    return
            case Lost(reason):
                self._lost[index] = reason
            case Unreached(reason, was_sent):
                self._unreached[index] = reason
                if was_sent:
                    self._was_sent.add(index)
                    if self._batch[index].id in self._unclear:  # for the second time
                        self._lost[index] = f"no answer came: {reason}"
        self._gate.fail(index, self._batch[index])

    def receipts(self) -> list[Receipt]:
        """A receipt for each message, once no more are sent.

        Raises:
            BrokerUnavailable: no request was sent, for lack of a connection.
        """
        if self._unreached and not self._lost and not self._has_response:
            raise BrokerUnavailable(next(iter(self._unreached.values())))
        return [self._receipts[index] or self._receipt_without_answer(index) for index in range(len(self._batch))]

    def unclear(self) -> frozenset[str]:
        """The ids of the messages that may be bad, for the next batch."""
        unknown = () if self._has_response else self._lost
        undecided = [
            index
            for index, receipt in enumerate(self._receipts)
            if receipt is None and index not in self._lost and self._gate.refuse(index, self._batch[index]) is None
        ]
        return frozenset(
            [self._batch[index].id for index in (*unknown, *self._refusals, *(self._was_sent - self._lost.keys()))]
            + [id_ for index in undecided if (id_ := self._batch[index].id) in self._unclear]
        )

    def _make_ready(self, index: int) -> None:
        heappush(self._ready, (self._batch[index].id in self._unclear, index))

    def _receipt_without_answer(self, index: int) -> Receipt:
        if (refused := self._gate.refuse(index, self._batch[index])) is not None:
            return refused
        if (reason := self._lost.get(index)) is not None:
            return Receipt(Verdict.REJECTED if self._has_response else Verdict.UNKNOWN, reason)
        if (reason := self._unreached.get(index)) is not None:
            return Receipt(Verdict.UNKNOWN, reason)
        if self.refusal is not None:
            return _not_sent("the destination refuses the sender")
        return _not_sent("the destination went away" if self._unreached else "there was no time left to send it")


def _not_sent(reason: str) -> Receipt:
    return Receipt(Verdict.NOT_SENT, reason)
