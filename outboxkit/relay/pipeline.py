"""The relay's pipeline: while one batch is published, the last one is settled and the next one claimed."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from enum import Enum
from types import TracebackType
from typing import Self

from sqlalchemy.exc import DBAPIError

from outboxkit.brokers import Publisher
from outboxkit.errors import BrokerUnavailable
from outboxkit.outage import Clock
from outboxkit.relay.claim import ClaimedBatch, Claimer
from outboxkit.relay.decisions import Policy, Settlement, settle, take_over
from outboxkit.relay.order import drop_behind
from outboxkit.relay.publishing import Publishing
from outboxkit.relay.settle import SettlementWriter


class Turn(Enum):
    """What a turn has done."""

    NOTHING = "nothing was there"
    BLOCKED = "every row has to wait for another relay"
    MOVED = "rows were published, or moved to where they wait"


class Pipeline:
    """Takes batches through claim, publish and settle. At most two transactions are open at a time.

    A batch that is answered is settled while the next one is published: a crash in between publishes it again, under
    the same ids. Leaving the context gives back whatever is not settled.

    Args:
        batches: where rows come from.
        publisher: where their messages go.
        settling: what writes down what became of them.
        policy: what to do with messages that cannot be published.
        on_settled: called with each settlement that was committed.
        clock: for tests.
    """

    def __init__(
        self,
        batches: Claimer,
        publisher: Publisher,
        settling: SettlementWriter,
        *,
        policy: Policy,
        on_settled: Callable[[Settlement], None],
        clock: Clock,
    ) -> None:
        self._batches = batches
        self._publishing = Publishing(publisher)
        self._settling = settling
        self._policy = policy
        self._on_settled = on_settled
        self._clock = clock
        self._next: ClaimedBatch | None = None
        self._answered: tuple[ClaimedBatch, Settlement] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._give_back()

    def sweep(self) -> None:
        """Have the next claim look everywhere."""
        self._batches.sweep()

    @property
    def floor(self) -> int:
        """The position at or below which nothing is ready."""
        return self._batches.floor.value

    async def turn(self, as_of: datetime, stop: asyncio.Event) -> Turn:
        """Publish a batch of what is due at `as_of`. What becomes of it may be committed by the next turn only.

        Raises:
            BrokerUnavailable: no message of the batch got an answer.
            sqlalchemy.exc.DBAPIError: the database is away, or refused.
        """
        try:
            await self._publishing.connect()
            batch, self._next = self._next or await self._claim(as_of), None
            if not batch.lineup.send:
                return await self._pass_over(batch)
            await self._pass(batch, as_of, stop)
        except BaseException:
            self._batches.start_over()
            await self._give_back()
            raise
        return Turn.MOVED

    async def _pass_over(self, batch: ClaimedBatch) -> Turn:
        """Settle the batch before this one, and leave this one, of which nothing is to be published."""
        try:
            await self._settle_answered()
        except BaseException:
            await batch.give_back()
            raise
        moved = await self._leave(batch)
        blocked = batch.rows or self._batches.is_avoiding
        return Turn.MOVED if moved else Turn.BLOCKED if blocked else Turn.NOTHING

    async def _pass(self, batch: ClaimedBatch, as_of: datetime, stop: asyncio.Event) -> None:
        """Publish the batch, and meanwhile settle the one before it and claim the one behind it."""
        try:
            settlement, trouble = await asyncio.gather(
                self._publish(batch), self._settle_and_claim(batch, as_of, stop), return_exceptions=True
            )
        except BaseException:
            await batch.give_back()
            raise
        if isinstance(settlement, BaseException):
            await batch.give_back()
            raise settlement
        self._answered = batch, settlement
        if self._next is None or settlement.unknown:
            await self._settle_answered()
        if isinstance(trouble, BaseException):
            raise trouble
        if settlement.unknown:
            await self._give_back()
            if not settlement.answered:
                raise BrokerUnavailable(settlement.unknown[0])
        elif self._next is not None:
            drop_behind(self._next.lineup, settlement.stuck, now=self._clock())

    async def _leave(self, batch: ClaimedBatch) -> bool:
        """End a batch of which nothing is to be published: its rows are locked no longer. Whether any was moved."""
        settlement = Settlement()
        take_over(batch.lineup, settlement)
        if settlement.moves:
            await self._commit(batch, settlement)
        else:
            await batch.give_back()
        return settlement.moves

    async def _publish(self, batch: ClaimedBatch) -> Settlement:
        sent = batch.lineup.send
        receipts = await self._publishing.receipts(sent)
        settlement = settle(sent, receipts, now=self._clock(), policy=self._policy)
        take_over(batch.lineup, settlement)
        return settlement

    async def _settle_and_claim(self, batch: ClaimedBatch, as_of: datetime, stop: asyncio.Event) -> None:
        await self._settle_answered()
        if not self._batches.may_be_ahead or stop.is_set():
            return
        following = await self._claim(as_of, batch)
        if following.lineup.send:
            self._next = following
        else:
            await self._leave(following)

    async def _claim(self, as_of: datetime, published: ClaimedBatch | None = None) -> ClaimedBatch:
        mine = [*published.lineup.send, *published.lineup.expired] if published else []
        return await self._batches.claim(as_of, now=self._clock(), mine=mine)

    async def _settle_answered(self) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            await self._commit(*answered)

    async def _commit(self, batch: ClaimedBatch, settlement: Settlement) -> None:
        await self._settling.commit(batch, settlement, now=self._clock())
        self._on_settled(settlement)

    async def _give_back(self) -> None:
        """Settle what is answered, if that can be, and unlock what is only claimed."""
        following, self._next = self._next, None
        try:
            with suppress(DBAPIError):
                await self._settle_answered()
        finally:
            if following is not None:
                await following.give_back()
