"""Destinations with a fault each, and the case of the suite that is there to find it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from outboxkit.brokers import CONFIRMED, Publisher, Receipt, Verdict
from outboxkit.message import Message
from outboxkit.testing.conformance import publishing

REFUSED = Receipt(Verdict.REJECTED, "refused")


class Called:
    """A destination inside the process, with a publisher that may be faulty."""

    def __init__(self, publisher: "Callable[[Called], Publisher] | None" = None) -> None:
        self.make_publisher = publisher or Calls
        self.refused: set[str] = set()
        self.taken: list[Message] = []

    def publisher(self) -> Publisher:
        return self.make_publisher(self)

    def refuse(self, id: str) -> None:  # noqa: A002
        self.refused.add(id)

    def arrived(self) -> Sequence[Message]:
        return self.taken

    def take(self, message: Message) -> Receipt:
        if message.id in self.refused:
            return REFUSED
        self.taken.append(message)
        return CONFIRMED


class Calls(Publisher):
    def __init__(self, destination: Called) -> None:
        self.destination = destination

    async def connect(self) -> None: ...

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        failed: set[str | None] = set()
        receipts = []
        for message in batch:
            held = message.key is not None and message.key in failed
            receipt = Receipt(Verdict.NOT_SENT, "held") if held else self.destination.take(message)
            failed |= {message.key} if receipt is REFUSED else set()
            receipts.append(receipt)
        return receipts

    async def close(self) -> None: ...


class ForgetsTheKey(Calls):
    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        return await super().publish([replace(message, key=None) for message in batch])


class GoesWhereItIsTold(Calls):
    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        here = [message for message in batch if "//" not in (message.topic or "")]
        await super().publish(here)
        return [CONFIRMED] * len(batch)


class MixesUpTheOrder(Calls):
    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        return await super().publish(batch[::-1])


class HoldsNothingBack(Calls):
    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        return [self.destination.take(message) for message in batch]


class AnswersOncePerId(Calls):
    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        return await super().publish(list({message.id: message for message in batch}.values()))


class CutsBodies(Calls):
    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        return await super().publish([replace(message, payload=message.payload[:65_536]) for message in batch])


class SharesOneBatch(Calls):
    batches: dict[int, Sequence[Message]] = {}  # noqa: RUF012

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        first = self.batches.setdefault(id(self.destination), batch)
        return await super().publish(first)


class CannotBeClosedTwice(Calls):
    closed = False

    async def close(self) -> None:
        assert not self.closed
        self.closed = True


CALL_FAULTS = {
    publishing.a_confirmed_message_arrives_as_it_was: Called(ForgetsTheKey),
    publishing.wherever_a_message_wants_to_go_it_comes_here: Called(GoesWhereItIsTold),
    publishing.messages_of_a_key_arrive_in_order_among_others: Called(MixesUpTheOrder),
    publishing.a_failed_message_holds_back_the_rest_of_its_key_only: Called(HoldsNothingBack),
    publishing.one_id_twice_in_a_batch_has_two_receipts: Called(AnswersOncePerId),
    publishing.a_large_batch_of_large_messages_arrives_whole: Called(CutsBodies),
    publishing.publishers_do_not_get_into_each_others_way: Called(SharesOneBatch),
    publishing.a_closed_publisher_can_connect_again: Called(CannotBeClosedTwice),
}
