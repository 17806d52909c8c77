"""The relay's pipeline: while one batch is published, the previous one is settled and the next one claimed."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from enum import Enum
from types import TracebackType
from typing import Self

import structlog
from sqlalchemy.exc import DBAPIError

from outboxkit.brokers import CONFIRMED, KeyGate, Publisher, Receipt, Verdict
from outboxkit.errors import BrokerUnavailable
from outboxkit.errors.failures import first_line
from outboxkit.message import Message
from outboxkit.relay.claim import Claimer
from outboxkit.relay.decisions import RelayPolicy, Settlement, settlement_of
from outboxkit.relay.order import Batch, ClaimedRow
from outboxkit.relay.report import RelayMeasurements
from outboxkit.relay.settle import SettlementWriter
from outboxkit.runtime.outage import Clock, is_unexpected
from outboxkit.telemetry import tracing


class Turn(Enum):
    """The result of one turn."""

    NOTHING = "no row was due"
    BLOCKED = "every row has to wait: another session, usually a relay, has it or an earlier one of its key locked"
    MOVED = "rows were published, held or parked"
    CAUGHT_UP = "the last rows of a claim that had room for more were moved"


class Pipeline:
    """Takes batches through claim, publish and settle. At most two transactions are open at a time.

    A batch that is answered is settled while the next one is published: a crash in between publishes it again, under
    the same ids. Leaving the context settles the batch that is answered, if the database can be reached, and gives back
    every other.

    Args:
        on_settled: called with each settlement that was committed.
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
        self._endpoint = tracing.Endpoint(publisher.system, publisher.exchange or claimer.destination)
        self.publishing_since: float | None = None
        self._log = structlog.get_logger("outboxkit").bind(process="relay")
        self._writer = writer
        self._policy = policy
        self._on_settled = on_settled
        self._clock = clock
        self._measurements = measurements
        self._next: Batch | None = None
        self._open: list[Batch] = []
        self._answered: tuple[Batch, Settlement] | None = None
        self._most: int | None = None
        """The size of the next batch after a settlement could not be written: 1, and twice as much after each that can.
        Else each try would publish a whole batch again."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._give_back()

    async def release(self) -> None:
        """Settle the batch that is answered, and give back the one that is only claimed: no row stays locked.

        Raises:
            sqlalchemy.exc.DBAPIError: the database is away, and the answered batch will be published again.
        """
        try:
            await self._settle_answered()
        finally:
            await self._give_back()

    async def turn(self, as_of: datetime, stop: asyncio.Event) -> Turn:
        """Publish one batch of rows that are due at `as_of`. Its settlement may be committed by the next turn only.

        Raises:
            BrokerUnavailable: no message of the batch got an answer.
        """
        try:
            if self._publisher.trouble is not None:
                await self.release()  # connecting may take long, and others can publish the rows meanwhile
            await self._connect()
            ahead, self._next = self._next, None
            if ahead is not None:
                ahead.expire(now=self._clock())
            batch = ahead or await self._claim(as_of)
            if not batch.send:
                return await self._skip(batch)
            await self._advance(batch, as_of, stop)
        except (Exception, asyncio.CancelledError):
            self._claimer.reset()
            await self._give_back()
            raise
        return Turn.CAUGHT_UP if batch.is_last and self._next is None else Turn.MOVED

    async def _skip(self, batch: Batch) -> Turn:
        """Settle the previous batch, and end this one, which has nothing to publish."""
        await self._settle_answered()
        moved = await self._end(batch)
        blocked = batch.rows or self._claimer.leaves_rows
        return Turn.MOVED if moved else Turn.BLOCKED if blocked else Turn.NOTHING

    async def _advance(self, batch: Batch, as_of: datetime, stop: asyncio.Event) -> None:
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
            self._next.drop_behind(settlement.blocked_until, now=self._clock())

    async def _end(self, batch: Batch) -> bool:
        """End a batch that has nothing to publish, which unlocks its rows. Returns whether any was held or parked."""
        settlement = settlement_of(batch, (), now=self._clock(), policy=self._policy)
        if settlement.moves:
            await self._commit(batch, settlement)
        else:
            await self._close(batch)
        return settlement.moves

    async def _publish(self, batch: Batch) -> Settlement:
        with self._measurements.publishing():
            receipts = await self._receipts(batch.send)
        now = self._clock()
        settlement = settlement_of(batch, receipts, now=now, policy=self._policy)
        self._measurements.answered(batch.send, settlement, now=now)
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
        """A receipt for each row. Unreadable rows are rejected, and later ones of their keys are not sent."""
        receipts: list[Receipt | None] = [None] * len(rows)
        gate = KeyGate()
        for index, row in enumerate(rows if any(row.unreadable for row in rows) else ()):
            receipts[index] = gate.refuse(index, row.message)
            if receipts[index] is None and row.unreadable is not None:
                receipts[index] = Receipt(Verdict.REJECTED, row.unreadable, final=True)
                gate.fail(index, row.message)
        sent = [row.message for row, receipt in zip(rows, receipts, strict=True) if receipt is None]
        attempts = ((row.message.id, row.attempts + 1) for row in rows if row.attempts)
        with tracing.sending(sent, self._endpoint, attempts) as span:
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
        except Exception as error:
            self._log.error("the publisher failed", error=first_line(error), exc_info=error)
            await self._publisher.close()
            raise BrokerUnavailable(f"the publisher failed: {first_line(error)}") from error
        finally:
            self.publishing_since = None
        if len(answers) != len(messages):
            raise BrokerUnavailable(f"the publisher failed: {len(answers)} receipts for {len(messages)} messages")
        return answers

    async def _settle_and_claim(self, batch: Batch, as_of: datetime, stop: asyncio.Event) -> None:
        await self._settle_answered()
        if batch.is_last or self._most is not None or not self._claimer.can_claim_ahead or stop.is_set():
            return
        following = await self._claim(as_of, batch)
        if following.send:
            self._next = following
        else:
            await self._end(following)

    async def _claim(self, as_of: datetime, beside: Batch | None = None) -> Batch:
        started = time.perf_counter()
        batch = await self._claimer.claim(as_of, now=self._clock(), beside=beside, most=self._most)
        self._open.append(batch)
        if batch.rows:
            self._measurements.claimed(time.perf_counter() - started)
        return batch

    async def _settle_answered(self) -> None:
        """Commit the settlement of the batch before, if it has its answers: usually while the next one is published."""
        answered, self._answered = self._answered, None
        if answered is not None:
            await self._commit(*answered)

    async def _commit(self, batch: Batch, settlement: Settlement) -> None:
        started = time.perf_counter()
        self._open.remove(batch)
        most, self._most = self._most, 1
        await self._writer.commit(batch, settlement, now=self._clock())
        self._most = most * 2 if most is not None and len(batch.rows) >= most else None
        self._on_settled(settlement)
        self._measurements.settled(batch.send, settlement, time.perf_counter() - started)

    async def _give_back(self) -> None:
        """Settle the answered batch if possible, and unlock the rows of all others."""
        self._next = None
        try:
            with suppress(DBAPIError):
                await self._settle_answered()
        finally:
            while self._open:
                await self._close(self._open[-1])

    async def _close(self, batch: Batch) -> None:
        """End its transaction without a change: every row stays as it was. A session that is gone has ended it."""
        self._open.remove(batch)
        with suppress(DBAPIError):
            await batch.connection.close()


def _as_outage(error: asyncio.CancelledError) -> BaseException:
    """The error itself if this task is to end; otherwise the client library dropped a connection."""
    if is_unexpected(error):
        return BrokerUnavailable("the broker's client library cancelled the call")
    return error
