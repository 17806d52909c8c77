"""The relay's pipeline: while one batch is published, the last one is settled and the next one claimed."""

import asyncio
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Self

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.brokers import Publisher
from outboxkit.errors import BrokerUnavailable
from outboxkit.outage import Clock
from outboxkit.relay.batch import Batch, Batches
from outboxkit.relay.order import drop_behind
from outboxkit.relay.settlement import Policy, Settlement, expire, settle
from outboxkit.relay.settling import Settling


class Pipeline:
    """Takes batches through claim, publish and settle. At most two transactions are open at a time.

    A batch that is answered is settled while the next one is published: a crash in between publishes it again, under
    the same ids. Leaving the context gives back whatever is not settled.

    Args:
        engine: for the transactions.
        publisher: where messages go.
        batch_size: rows claimed at once.
        policy: what to do with messages that cannot be published.
        keep_published: move published rows to `outboxkit_published` instead of deleting them.
        clock: for tests.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        publisher: Publisher,
        *,
        batch_size: int,
        policy: Policy,
        keep_published: bool,
        clock: Clock,
    ) -> None:
        self._publisher = publisher
        self._policy = policy
        self._clock = clock
        self._batches = Batches(engine, batch_size)
        self._settling = Settling(engine.dialect.name, keep=keep_published)
        self._claims_ahead = engine.dialect.name != "sqlite"  # it has one writer at a time
        self._next: Batch | None = None
        self._answered: tuple[Batch, Settlement] | None = None
        self._log = structlog.get_logger("outboxkit").bind(process="relay")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._give_back()

    def sweep(self) -> None:
        """Have the next claim look everywhere."""
        self._batches.sweep()

    async def turn(self, as_of: datetime, stop: asyncio.Event) -> Settlement | None:
        """Publish a batch of what is due at `as_of`; None where there is nothing.

        What is returned is not committed in every case: what the next turn settles is nobody else's any more, and is
        published again if that fails. A settlement of nothing says that all rows wait for others.

        Raises:
            BrokerUnavailable: no message of the batch got an answer.
            sqlalchemy.exc.DBAPIError: the database is away, or refused.
        """
        try:
            await self._publisher.connect()
            batch, self._next = self._next or await self._claim(as_of), None
            if not batch.rows:
                await batch.give_back()
                return None
            return await self._pass(batch, as_of, stop)
        except BaseException:
            await self._give_back()
            raise

    async def _pass(self, batch: Batch, as_of: datetime, stop: asyncio.Event) -> Settlement:
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
            if not settlement.settled:
                raise BrokerUnavailable(settlement.unknown[0])
        elif self._next is not None:
            drop_behind(self._next.lineup, settlement.stuck, now=self._clock())
        return settlement

    async def _publish(self, batch: Batch) -> Settlement:
        sent = batch.lineup.send
        receipts = await self._publisher.publish([row.message for row in sent]) if sent else ()
        settlement = settle(sent, receipts, now=self._clock(), policy=self._policy)
        expire(batch.lineup.expired, settlement)
        return settlement

    async def _settle_and_claim(self, batch: Batch, as_of: datetime, stop: asyncio.Event) -> None:
        await self._settle_answered()
        if not self._claims_ahead or stop.is_set():
            return
        following = await self._claim(as_of, batch)
        if following.rows:
            self._next = following
        else:
            await following.give_back()

    async def _claim(self, as_of: datetime, published: Batch | None = None) -> Batch:
        mine = published.lineup.send if published else []
        return await self._batches.claim(as_of, now=self._clock(), mine=mine)

    async def _settle_answered(self) -> None:
        answered, self._answered = self._answered, None
        if answered is None:
            return
        batch, settlement = answered
        await self._settling.commit(batch, settlement, now=self._clock())
        self._report(settlement)

    async def _give_back(self) -> None:
        """Settle what is answered, if that can be, and unlock what is only claimed."""
        following, self._next = self._next, None
        try:
            with suppress(DBAPIError):
                await self._settle_answered()
        finally:
            if following is not None:
                await following.give_back()

    def _report(self, settlement: Settlement) -> None:
        for row in settlement.failed:
            self._log.warning(
                "message not published",
                message_id=row.message.id,
                type=row.message.type,
                attempts=row.attempts,
                reason=row.reason,
                due_at=row.due_at.isoformat(timespec="seconds"),
            )
        for dead in settlement.dead:
            self._log.error(
                "message set aside as a dead letter",
                message_id=dead.message.id,
                type=dead.message.type,
                key=dead.message.key,
                reason=str(dead.reason),
                error=dead.error,
                key_is_parked=dead.parked,
            )
        if settlement.published or settlement.discarded:
            self._log.debug("batch published", messages=len(settlement.published), discarded=len(settlement.discarded))
