"""The relay: claim → publish → settle, one batch and one transaction at a time."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog
from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import codec, migrations, statements
from outboxkit.brokers import Publisher, Receipt, Verdict
from outboxkit.errors import BrokerUnavailable
from outboxkit.message import Message, storable
from outboxkit.outage import Clock, Outage, jittered, pause, utc_now
from outboxkit.retry import Backoff
from outboxkit.statements import ClaimedRow


@dataclass(frozen=True, slots=True)
class Claimed:
    """A row of the outbox that this relay holds locked."""

    position: int
    attempts: int
    message: Message


@dataclass(frozen=True, slots=True)
class Failure:
    """A row to settle as failed: due again later, for this reason."""

    position: int
    attempts: int
    message: Message
    reason: str
    due_at: datetime


@dataclass(frozen=True, slots=True)
class Settlement:
    """What to do with each row of a batch. A row that is in neither list keeps its place, and no attempt is counted."""

    published: list[int] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Drained:
    """What `drain` did.

    Attributes:
        published: messages that the broker confirmed.
        failed: how often each type could not be published, with the last reason.
        held: due rows that another relay holds, or that came back to wait.
        later: rows that wait for a later time.
    """

    published: int = 0
    failed: dict[str, tuple[int, str]] = field(default_factory=dict)
    held: int = 0
    later: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether everything that was due has been published."""
        return not self.failed and not self.held


class Relay:
    """Publishes what transactions have left in the outbox, and deletes what the broker has confirmed.

    Any number of relays may run at once: their batches are disjoint, because the rows of a batch stay locked until
    it is settled. The lock is the lease: it ends with the connection, and no clock is compared.

    Args:
        engine: for the relay's own connections.
        publisher: where messages go.
        batch_size: rows claimed at once.
        poll_interval: how long an idle relay sleeps.
        backoff: when a message that the broker refused is due again.
        clock: for tests.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        publisher: Publisher,
        *,
        batch_size: int = 500,
        poll_interval: timedelta = timedelta(milliseconds=250),
        backoff: Backoff | None = None,
        clock: Clock = utc_now,
    ) -> None:
        self._engine = engine
        self._publisher = publisher
        self._batch_size = batch_size
        self._poll_interval = poll_interval.total_seconds()
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._log = structlog.get_logger("outboxkit").bind(process="relay")

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until `stop` is set; the batch in flight is settled first. Outages are waited out.

        Raises:
            SchemaError: the tables are missing or old.
        """
        outage = Outage("relay")
        await outage.ride_out(self._check_schema, stop)
        self._log.info("relay started", batch_size=self._batch_size)
        while not stop.is_set():
            settled = await outage.ride_out(lambda: self._connect_and_publish(self._clock()), stop)
            if settled is not None and not settled.published and not settled.failed:
                await pause(stop, jittered(self._poll_interval))
        await self._publisher.close()
        self._log.info("relay stopped")

    async def drain(self, stop: asyncio.Event, *, patience: timedelta = timedelta(seconds=10)) -> Drained:
        """Publish all that is due, then return. A message that fails is tried once; `stop` ends it early.

        Raises:
            SchemaError: the tables are missing or old.
            BrokerUnavailable, sqlalchemy.exc.DBAPIError: away for longer than `patience`.
        """
        outage = Outage("relay", patience=patience.total_seconds())
        await outage.ride_out(self._check_schema, stop)
        done, as_of = Drained(), self._clock()
        waiting_since = self._clock()
        while not stop.is_set():
            settled = await outage.ride_out(lambda: self._connect_and_publish(as_of), stop) or Settlement()
            _add(done, settled)
            if settled.published or settled.failed:
                waiting_since = self._clock()
                continue
            done.held, done.later = await outage.ride_out(lambda: self._count(as_of), stop) or (0, 0)
            if not done.held or self._clock() - waiting_since > patience:
                break
            await pause(stop, jittered(self._poll_interval))
        if stop.is_set():
            done.held, done.later = await outage.ride_out(lambda: self._count(as_of), stop) or (0, 0)
        await self._publisher.close()
        return done

    async def publish_batch(self, as_of: datetime) -> Settlement:
        """Claim one batch of what is due at `as_of`, publish it and settle it, in one transaction.

        Raises:
            BrokerUnavailable: no message of the batch got an answer.
            sqlalchemy.exc.DBAPIError: the transaction failed: the rows stay as they were.
        """
        async with self._engine.begin() as connection:
            claimed = await self._claim(connection, as_of)
            if not claimed:
                return Settlement()
            receipts = await self._publisher.publish([row.message for row in claimed])
            settlement = settle(claimed, receipts, now=self._clock(), backoff=self._backoff)
            await self._settle(connection, settlement)
        self._report(settlement)
        if settlement.unknown and not settlement.published and not settlement.failed:
            raise BrokerUnavailable(settlement.unknown[0])
        return settlement

    async def _connect_and_publish(self, as_of: datetime) -> Settlement:
        await self._publisher.connect()
        return await self.publish_batch(as_of)

    async def _claim(self, connection: AsyncConnection, as_of: datetime) -> list[Claimed]:
        """Rows whose later time has come first, then rows that never had to wait, up to the batch size."""
        due = (await connection.execute(statements.claim_due(as_of, self._batch_size))).all()
        left = self._batch_size - len(due)
        ready = (await connection.execute(statements.claim_ready(left))).all() if left else []
        return sorted((_claimed(row) for row in (*due, *ready)), key=lambda row: row.position)

    async def _settle(self, connection: AsyncConnection, settlement: Settlement) -> None:
        if settlement.published:
            await connection.execute(statements.delete_published(settlement.published))
        if settlement.failed:
            rows = [
                {"at_position": row.position, "error": storable(row.reason), "due": row.due_at}
                for row in settlement.failed
            ]
            await connection.execute(statements.reschedule(), rows)

    async def _check_schema(self) -> None:
        async with self._engine.begin() as connection:
            await connection.run_sync(migrations.check)

    async def _count(self, as_of: datetime) -> tuple[int, int]:
        async with self._engine.connect() as connection:
            held = (await connection.execute(statements.count_due(as_of))).scalar_one()
            later = (await connection.execute(statements.count_later(as_of))).one()[0]
        return held, later

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
        if settlement.published:
            self._log.debug("batch published", messages=len(settlement.published))


def settle(claimed: Sequence[Claimed], receipts: Sequence[Receipt], *, now: datetime, backoff: Backoff) -> Settlement:
    """Decide what becomes of each row, from the broker's answers alone: only a confirm lets a row go."""
    settlement = Settlement()
    for row, receipt in zip(claimed, receipts, strict=True):
        if receipt.verdict is Verdict.CONFIRMED:
            settlement.published.append(row.position)
        elif receipt.verdict is Verdict.UNKNOWN:
            settlement.unknown.append(receipt.reason or "the broker did not answer")
        else:
            attempts, reason = row.attempts + 1, f"{receipt.verdict}: {receipt.reason}"
            settlement.failed.append(
                Failure(row.position, attempts, row.message, reason, now + backoff.after(attempts))
            )
    return settlement


def _claimed(row: Row[*ClaimedRow]) -> Claimed:
    position, id_, type_, topic, key, payload, headers, correlation, causation, mime, encoding, created, attempts = row
    message = Message(
        id=id_,
        type=type_,
        payload=bytes(payload),
        key=key,
        topic=topic,
        headers=codec.decode_headers(headers),
        correlation_id=correlation,
        causation_id=causation,
        created_at=created,
        content_type=mime,
        content_encoding=encoding,
    )
    return Claimed(position, attempts, message)


def _add(done: Drained, settled: Settlement) -> None:
    done.published += len(settled.published)
    for row in settled.failed:
        count, _ = done.failed.get(row.message.type, (0, ""))
        done.failed[row.message.type] = (count + 1, row.reason)
