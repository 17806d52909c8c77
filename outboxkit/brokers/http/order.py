"""What of a batch may be sent when, and what is said of what nobody answered for. Pure."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from outboxkit.brokers import Receipt, Verdict
from outboxkit.errors import BrokerUnavailable
from outboxkit.message import Message


@dataclass(frozen=True, slots=True)
class Answered:
    """There is a receipt.

    Attributes:
        receipt: for the message.
        heard: the destination has given it, so it is there and works.
        unauthorized: the destination refuses the sender; it would refuse every other message as well.
    """

    receipt: Receipt
    heard: bool = True
    unauthorized: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """The request has left, wholly or in part, and no response came."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unreached:
    """Nothing has left: there is no connection."""

    reason: str


Outcome = Answered | Lost | Unreached


class SendOrder:
    """Hands out messages in the order of the batch, those of one key one after the other.

    A message that nobody answers may be to blame, or the destination may be away. Only what the destination does with
    others tells: it is to blame if any of the batch got a response. So that there are others, one of which that is not
    known goes last in the next batch: else some that never get an answer would take every request there is.

    Args:
        batch: the messages.
        suspects: ids of those that go last, with what is behind them of their key.
    """

    def __init__(self, batch: Sequence[Message], suspects: Collection[str] = ()) -> None:
        self._batch = batch
        self._suspects = suspects
        self._receipts: list[Receipt | None] = [None] * len(batch)
        self._lost: dict[int, str] = {}
        self._unreached: dict[int, str] = {}
        self._heard = False
        self._refusals: dict[int, str] = {}
        self._is_accepted = False
        self._behind: dict[int, int] = {}
        self._ready: list[tuple[bool, int]] = []
        last: dict[str, int] = {}
        for index, message in enumerate(batch):
            if message.key is not None and message.key in last:
                self._behind[last[message.key]] = index
            else:
                self._offer(index)
            if message.key is not None:
                last[message.key] = index

    def next(self) -> int | None:
        """The index of the next message to send; None: there is none, or the destination is of no use now."""
        return heappop(self._ready)[1] if self._ready and not self._unreached and self.refusal is None else None

    @property
    def refusal(self) -> str | None:
        """Why the destination refuses the sender; None: it does not.

        One that it refused before and that goes last says nothing, if others of this batch were accepted.
        """
        known = self._suspects if self._is_accepted else ()
        return next((reason for index, reason in self._refusals.items() if self._batch[index].id not in known), None)

    def put(self, index: int, outcome: Outcome) -> None:
        """Note what came of a message. Unless it is confirmed, what is behind it of its key is held."""
        match outcome:
            case Answered(receipt, heard, unauthorized):
                self._receipts[index] = receipt
                self._heard |= heard
                self._is_accepted |= heard and not unauthorized
                if unauthorized:
                    self._refusals[index] = receipt.reason or "the destination refuses the sender"
                if receipt.verdict is Verdict.CONFIRMED:
                    if index in self._behind:
                        self._offer(self._behind[index])
                    return
            case Lost(reason):
                self._lost[index] = reason
            case Unreached(reason):
                self._unreached[index] = reason
        for held in self._all_behind(index):
            self._receipts[held] = _held(f"an earlier message of key {self._batch[index].key!r} has failed")

    def receipts(self) -> list[Receipt]:
        """One for each message, when nothing more is sent.

        Raises:
            BrokerUnavailable: nothing has left, because there was no connection.
        """
        if self._unreached and not self._lost and not self._heard:
            raise BrokerUnavailable(next(iter(self._unreached.values())))
        return [self._receipts[index] or self._unanswered(index) for index in range(len(self._batch))]

    def still_suspect(self) -> frozenset[str]:
        """The ids of what may be to blame, for the next batch."""
        unknown = () if self._heard else self._lost
        undecided = [
            index for index, receipt in enumerate(self._receipts) if receipt is None and not self._is_lost(index)
        ]
        return frozenset(
            [self._batch[index].id for index in (*unknown, *self._refusals)]
            + [id_ for index in undecided if (id_ := self._batch[index].id) in self._suspects]
        )

    def _offer(self, index: int) -> None:
        heappush(self._ready, (self._batch[index].id in self._suspects, index))

    def _is_lost(self, index: int) -> bool:
        return index in self._lost

    def _all_behind(self, index: int) -> Iterator[int]:
        while (following := self._behind.get(index)) is not None:
            yield following
            index = following

    def _unanswered(self, index: int) -> Receipt:
        if (reason := self._lost.get(index)) is not None:
            return Receipt(Verdict.REJECTED if self._heard else Verdict.UNKNOWN, reason)
        if (reason := self._unreached.get(index)) is not None:
            return Receipt(Verdict.UNKNOWN, reason)
        if self.refusal is not None:
            return _held("the destination refuses the sender")
        return _held("the destination went away" if self._unreached else "there was no time left to send it")


def _held(reason: str) -> Receipt:
    return Receipt(Verdict.NOT_SENT, reason)
