"""A relay on SQLite, a broker inside the process whose answers can be chosen, and a clock that stands."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outboxkit import BrokerUnavailable, Message, outbox, tables
from outboxkit.brokers import Receipt, Verdict
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.relay import Drained, Relay, RelayPolicy
from outboxkit.relay.claim import Claimer
from outboxkit.relay.decisions import Settlement
from outboxkit.relay.pipeline import Pipeline
from outboxkit.relay.report import RelayMeasurements
from outboxkit.relay.settle import SettlementWriter
from outboxkit.retry import Backoff
from tests.unit.shop import NOW, message, rows

SECOND = timedelta(seconds=1)
BACKOFF = Backoff(base=10 * SECOND, cap=timedelta(hours=1), jitter=lambda: 1.0)
POLICY = RelayPolicy(max_attempts=4, backoffs={Verdict.UNROUTABLE: BACKOFF, Verdict.REJECTED: BACKOFF})


class Clock:
    """A clock that stands until it is told otherwise."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


class Seconds:
    """A clock of seconds that stands, too."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Publisher(MemoryPublisher):
    """The memory broker's publisher, whose connection can be lost and whose answers can be replaced."""

    trouble: str | None = None

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.broker = broker
        self.batches: list[list[str]] = []
        self.answer: Callable[[Message], Verdict | Receipt | None] = lambda message: None
        self.refuse_to_connect = 0
        self.closed = 0

    async def connect(self) -> None:
        if self.refuse_to_connect:
            self.refuse_to_connect -= 1
            raise BrokerUnavailable("refused")

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        self.batches.append([sent.id for sent in batch])
        receipts, stuck = [], set()
        for sent in batch:
            if sent.key in stuck:
                receipts.append(Receipt(Verdict.NOT_SENT))
                continue
            chosen = self.answer(sent)
            told = Receipt(chosen, "told so") if isinstance(chosen, Verdict) else chosen
            receipt = self.broker.route(sent) if told is None else told
            if receipt.verdict is not Verdict.CONFIRMED and sent.key is not None:
                stuck.add(sent.key)
            receipts.append(receipt)
        return receipts

    async def close(self) -> None:
        self.closed += 1


class Bench:
    """What a test needs to have rows published."""

    def __init__(self, engine: Engine, async_engine: AsyncEngine, url: str) -> None:
        self.engine, self.async_engine, self.url = engine, async_engine, url
        self.clock = Clock()
        broker = MemoryBroker()
        broker.queue("billing", ["OrderConfirmed"])
        self.publisher = Publisher(broker)
        self.policy = POLICY
        self.keep_published = False
        self.destination = DEFAULT_DESTINATION
        self.settled: list[Settlement] = []
        self.stop = asyncio.Event()

    def relay(self, batch_size: int = 3) -> Relay:
        return Relay(
            self.async_engine,
            self.publisher,
            destination=self.destination,
            batch_size=batch_size,
            poll_interval=SECOND / 1000,
            policy=self.policy,
            keep_published=self.keep_published,
            clock=self.clock,
        )

    def pipeline(self, batch_size: int = 3) -> Pipeline:
        return Pipeline(
            Claimer(self.async_engine, batch_size, destination=self.destination, keeps_locks=not self.publisher.slow),
            self.publisher,
            SettlementWriter("sqlite", keep=self.keep_published, destination=self.destination),
            policy=self.policy,
            on_settled=self.settled.append,
            clock=self.clock,
            measurements=RelayMeasurements(self.publisher, self.destination),
        )

    async def drain(self, batch_size: int = 3) -> Drained:
        """What is due now; a relay that does not come to an end is stopped."""
        asyncio.get_running_loop().call_later(10, self.stop.set)
        return await self.relay(batch_size).drain(self.stop)

    def add(self, *ids: str, deliver_at: datetime | None = None, columns: dict[str, Any] | None = None, **more: Any):
        """Messages of these ids; `columns` are set in their rows as they are."""
        with Session(self.engine) as session, session.begin():
            outbox.add_all(session, [message(id=id_, **more) for id_ in ids], deliver_at=deliver_at)
            if columns:
                session.flush()
                session.execute(update(tables.outbox).where(tables.outbox.c.message_id.in_(ids)).values(columns))

    def add_messages(self, *messages: Message) -> None:
        with Session(self.engine) as session, session.begin():
            outbox.add_all(session, messages)

    def rows(self) -> list[dict[str, Any]]:
        return rows(self.url, tables.outbox)

    def left(self) -> list[object]:
        return [row["message_id"] for row in self.rows()]

    def dead(self) -> list[dict[str, Any]]:
        return rows(self.url, tables.dead_letter)

    def arrived(self) -> list[str]:
        return [kept.message.id for kept in self.publisher.broker.queue("billing", []).ready]


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


@pytest.fixture
def bench(engine: Engine, async_engine: AsyncEngine, database_url: str) -> Bench:
    return Bench(engine, async_engine, database_url)
