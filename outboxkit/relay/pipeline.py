"""The relay's pipeline: while one batch is published, the previous one is settled and the next one claimed."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum
from types import TracebackType
from typing import Any, Self

import structlog
from sqlalchemy.exc import DBAPIError

from outboxkit.brokers import CONFIRMED, KeyGate, Publisher, Receipt, Verdict
from outboxkit.errors import BrokerUnavailable
from outboxkit.errors.failures import first_line, first_line_of
from outboxkit.message import Message
from outboxkit.relay.claim import ClaimedBatch, Claimer
from outboxkit.relay.decisions import RelayPolicy, Settlement, add_plan, settle
from outboxkit.relay.measurements import RelayMeasurements
from outboxkit.relay.order import ClaimedRow, drop_behind
from outboxkit.relay.settle import SettlementWriter
from outboxkit.runtime.outage import Clock, is_unexpected
from outboxkit.telemetry import tracing

LONGEST_AFTER = timedelta(days=365)
"""The maximum of the wait that a publisher may ask for before the next attempt."""


class Turn(Enum):
    """The result of one turn."""

    NOTHING = "no row was due"
    BLOCKED = "every row has to wait for another relay"
    MOVED = "rows were published, held or parked"
    CAUGHT_UP = "the last ready rows were published"


class Pipeline:
    """Takes batches through claim, publish and settle. At most two transactions are open at a time.

    A batch that is answered is settled while the next one is published: a crash in between publishes it again, under
    the same ids. Leaving the context gives back every batch that is not settled.

    Args:
        claimer: the source of batches.
        publisher: publishes their messages.
        writer: writes settlements.
        policy: the rules for messages that cannot be published.
        on_settled: called with each settlement that was committed.
        measurements: records steps and outcomes.
        clock: for tests.
    """

    def __init__(
        self,
        claimer: Claimer,
        publisher: Publisher,
        writer: SettlementWriter,
        *,
        policy: RelayPolicy,
        on_settled: Callable[[Settlement], None],
        clock: Clock,
        measurements: RelayMeasurements,
    ) -> None:
        self._claimer = claimer
        self._publisher = publisher
        self._place = tracing.Place(publisher.system, publisher.exchange or claimer.destination)
        self.publishing_since: float | None = None
        self._log = structlog.get_logger("outboxkit").bind(process="relay")
        self._writer = writer
        self._policy = policy
        self._on_settled = on_settled
        self._clock = clock
        self._measurements = measurements
        self._next: ClaimedBatch | None = None
        self._open: list[ClaimedBatch] = []
        self._answered: tuple[ClaimedBatch, Settlement] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._give_back()

    def sweep(self) -> None:
        """Have the next claim begin at position 0, below the floor."""
        self._claimer.sweep()

    async def rest(self) -> None:
        """Settle the batch that is answered, and give back the one that is only claimed: no row stays locked.

        Raises:
            sqlalchemy.exc.DBAPIError: the database is away, and the answered batch will be published again.
        """
        try:
            await self._settle_answered()
        finally:
            await self._give_back()

    @property
    def floor(self) -> int:
        """The position at or below which no row is ready."""
        return self._claimer.floor.value

    @property
    def floor_gap(self) -> int:
        """The number of positions between the floor and the highest position that was claimed."""
        return self._claimer.floor.gap

    async def turn(self, as_of: datetime, stop: asyncio.Event) -> Turn:
        """Publish one batch of rows that are due at `as_of`. Its settlement may be committed by the next turn only.

        Raises:
            BrokerUnavailable: no message of the batch got an answer.
            sqlalchemy.exc.DBAPIError: the database is away, or refused.
        """
        try:
            if self._publisher.trouble is not None:
                await self.rest()  # connecting may take long, and others can publish the rows meanwhile
            await self._connect()
            batch, self._next = self._next or await self._claim(as_of), None
            if not batch.plan.send:
                return await self._skip(batch)
            await self._advance(batch, as_of, stop)
        except (Exception, asyncio.CancelledError):
            self._claimer.reset()
            await self._give_back()
            raise
        return Turn.CAUGHT_UP if batch.is_last and self._next is None else Turn.MOVED

    async def _skip(self, batch: ClaimedBatch) -> Turn:
        """Settle the previous batch, and end this one, which has nothing to publish."""
        await self._settle_answered()
        moved = await self._end(batch)
        blocked = batch.rows or self._claimer.leaves_rows
        return Turn.MOVED if moved else Turn.BLOCKED if blocked else Turn.NOTHING

    async def _advance(self, batch: ClaimedBatch, as_of: datetime, stop: asyncio.Event) -> None:
        """Publish the batch, and meanwhile settle the previous one and claim the next one."""
        settlement, error = await asyncio.gather(
            self._publish(batch), self._settle_and_claim(batch, as_of, stop), return_exceptions=True
        )
        if isinstance(settlement, BaseException):
            raise settlement
        self._answered = batch, settlement
        if self._next is None or settlement.unknown:
            await self._settle_answered()
        if isinstance(error, BaseException):
            raise error
        if settlement.unknown:
            await self._give_back()
            if not settlement.answered:
                raise BrokerUnavailable(settlement.unknown[0])
        elif self._next is not None:
            drop_behind(self._next.plan, settlement.blocked, now=self._clock())

    async def _end(self, batch: ClaimedBatch) -> bool:
        """End a batch that has nothing to publish, which unlocks its rows. Returns whether any was held or parked."""
        settlement = Settlement()
        add_plan(batch.plan, settlement)
        if settlement.moves:
            await self._commit(batch, settlement)
        else:
            await self._close(batch)
        return settlement.moves

    async def _publish(self, batch: ClaimedBatch) -> Settlement:
        rows = batch.plan.send
        with self._measurements.publishing():
            receipts = await self._receipts(rows)
        now = self._clock()
        settlement = settle(rows, receipts, now=now, policy=self._policy)
        self._measurements.answered(rows, settlement, now=now)
        add_plan(batch.plan, settlement)
        return settlement

    async def _connect(self) -> None:
        self.publishing_since = time.monotonic()
        try:
            await self._publisher.connect()
        except asyncio.CancelledError as error:
            raise _as_outage(error) from error
        finally:
            self.publishing_since = None

    async def _receipts(self, rows: Sequence[ClaimedRow]) -> list[Receipt]:
        """A receipt for each row. Unreadable rows are rejected, and later ones of their keys are not sent.

        Raises:
            BrokerUnavailable: nothing got an answer, or the publisher failed.
        """
        receipts: list[Receipt | None] = [None] * len(rows)
        gate = KeyGate()
        for index, row in enumerate(rows if any(row.unreadable for row in rows) else ()):
            receipts[index] = gate.refuse(index, row.message)
            if receipts[index] is None and row.unreadable is not None:
                receipts[index] = Receipt(Verdict.REJECTED, row.unreadable, final=True)
                gate.fail(index, row.message)
        sent = [row.message for row, receipt in zip(rows, receipts, strict=True) if receipt is None]
        attempts = ((row.message.id, row.attempts + 1) for row in rows if row.attempts)
        with tracing.sending(sent, self._place, attempts) as span:
            answered = await self._answers(sent) if sent else []
            span.counts((receipt.verdict for receipt in answered), fine=(CONFIRMED.verdict,))
        answers = iter(answered)
        return [receipt or next(answers) for receipt in receipts]

    async def _answers(self, messages: Sequence[Message]) -> list[Receipt]:
        """The publisher's receipts. If it raises or answers for another number of messages, that is an outage."""
        self.publishing_since = time.monotonic()
        try:
            answers = list(await self._publisher.publish(messages))
        except BrokerUnavailable:
            raise
        except asyncio.CancelledError as error:
            raise _as_outage(error) from error
        except (Exception, BaseExceptionGroup) as error:
            self._log.error("the publisher failed", error=first_line(error), exc_info=error)
            await self._publisher.close()
            raise BrokerUnavailable(f"the publisher failed: {first_line(error)}") from error
        finally:
            self.publishing_since = None
        if len(answers) != len(messages):
            raise BrokerUnavailable(f"the publisher failed: {len(answers)} receipts for {len(messages)} messages")
        return [each if each is CONFIRMED else _checked(each) for each in answers]

    async def _settle_and_claim(self, batch: ClaimedBatch, as_of: datetime, stop: asyncio.Event) -> None:
        await self._settle_answered()
        if batch.is_last or not self._claimer.can_claim_ahead or stop.is_set():
            return
        following = await self._claim(as_of, batch)
        if following.plan.send:
            self._next = following
        else:
            await self._end(following)

    async def _claim(self, as_of: datetime, published: ClaimedBatch | None = None) -> ClaimedBatch:
        own_rows = [*published.plan.send, *published.plan.expired] if published else []
        started = time.perf_counter()
        blocked = published.plan.blocked if published else ()
        batch = await self._claimer.claim(as_of, now=self._clock(), own_rows=own_rows, blocked=blocked)
        self._open.append(batch)
        if batch.rows:
            self._measurements.claimed(time.perf_counter() - started)
        return batch

    async def _settle_answered(self) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            await self._commit(*answered)

    async def _commit(self, batch: ClaimedBatch, settlement: Settlement) -> None:
        started = time.perf_counter()
        self._open.remove(batch)
        await self._writer.commit(batch, settlement, now=self._clock())
        self._on_settled(settlement)
        self._measurements.settled(batch.plan.send, settlement, time.perf_counter() - started)

    async def _give_back(self) -> None:
        """Settle the answered batch if possible, and unlock the rows of all others."""
        self._next = None
        try:
            with suppress(DBAPIError):
                await self._settle_answered()
        finally:
            while self._open:
                await self._close(self._open[-1])

    async def _close(self, batch: ClaimedBatch) -> None:
        self._open.remove(batch)
        await batch.give_back()


def _checked(receipt: Any) -> Receipt:
    """The receipt, if it is one. A publisher may be an application's own, and one wrong receipt must stop no other."""
    if not isinstance(receipt, Receipt) or not isinstance(receipt.verdict, Verdict):
        return Receipt(Verdict.REJECTED, f"the publisher returned {first_line_of(receipt)!r}; a Receipt is accepted")
    after: Any = receipt.after
    if after is None or (isinstance(after, timedelta) and timedelta() < after <= LONGEST_AFTER):
        return receipt
    return replace(receipt, after=LONGEST_AFTER if isinstance(after, timedelta) and after > LONGEST_AFTER else None)


def _as_outage(error: asyncio.CancelledError) -> BaseException:
    """The error itself if this task is to end; otherwise the client library dropped a connection."""
    if is_unexpected(error):
        return BrokerUnavailable("the broker's client library cancelled the call")
    return error
