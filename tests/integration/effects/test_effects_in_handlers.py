"""Effects of handlers that a real consumer runs: messages that come twice, that fail, and that run out of time."""

import asyncio
import smtplib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from outboxkit import Message, effects, inbox, inbox_handler, tables
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.consumer import Consumer, ConsumerPolicy
from outboxkit.runtime import process
from tests.integration.consumer.running_consumer import Ordered, Start, dead_letters, publish, starter
from tests.integration.effects.conftest import MailSink
from tests.support.databases import migrate
from tests.support.plain_client import PlainClient

MAIL = "Subject: your receipt\r\n\r\nthank you\r\n"


@pytest.fixture
def start(async_pg_engine: AsyncEngine, broker: PlainClient) -> Start:
    return starter(async_pg_engine, broker)


@pytest.fixture
async def own_sessions(postgresql_url: str) -> AsyncIterator[async_sessionmaker[Any]]:
    """Sessions for effects, beside those of the consumer."""
    engine = process.engine(postgresql_url, name="effects")
    yield async_sessionmaker(engine)
    await engine.dispose()


def send(port: int) -> str:
    with smtplib.SMTP("127.0.0.1", port, timeout=30) as client:
        client.sendmail("shop@example.com", "ann@example.com", MAIL)
    return "sent"


def known(engine: Engine) -> list[tuple[str, str]]:
    with engine.connect() as connection:
        found = connection.execute(select(tables.effect.c.key, tables.effect.c.state))
        return sorted((key, state) for key, state in found)


async def test_an_async_handler_that_fails_and_duplicates_sends_one_mail(
    start: Start, pg_engine: Engine, own_sessions: async_sessionmaker[Any], broker: PlainClient, sink: MailSink
):
    found: list[str] = []

    @inbox_handler("SendReceipt")
    async def send_receipt(session: AsyncSession, event: Ordered) -> None:
        sent = await effects.once(own_sessions, call=lambda: asyncio.to_thread(send, sink.port), on_unknown="skip")
        found.append(f"{sent.outcome} {sent.result}")
        if len(found) < 3:
            raise ValueError("after the mail")

    async with start(send_receipt) as consumer:
        publish(broker, 7, "m")
        await consumer.reaches(retried=2, processed=1)
        publish(broker, 7, "m")
        await consumer.reaches(retried=2, processed=1, duplicate=1)
    assert found == ["made sent", "remembered sent", "remembered sent"]
    assert len(sink.mails) == 1
    assert known(pg_engine) == [("11:SendReceipt:m", "done")]


async def test_a_handler_that_runs_out_of_time_leaves_it_unknown_and_the_next_attempt_decides(
    start: Start, pg_engine: Engine, own_sessions: async_sessionmaker[Any], broker: PlainClient
):
    found: list[str] = []

    async def hang() -> None:
        await asyncio.Event().wait()

    @inbox_handler("SendReceipt", timeout=3)
    async def send_receipt(session: AsyncSession, event: Ordered) -> None:
        found.append((await effects.once(own_sessions, call=hang, on_unknown="skip")).outcome)

    async with start(send_receipt) as consumer:
        publish(broker, 7, "m")
        await consumer.reaches(retried=1, processed=1)
    assert found == ["skipped"]
    assert known(pg_engine) == [("11:SendReceipt:m", "skipped")]


async def test_while_another_run_is_busy_the_message_comes_back(
    start: Start, pg_engine: Engine, own_sessions: async_sessionmaker[Any], broker: PlainClient
):
    busy, may_end = asyncio.Event(), asyncio.Event()
    found: list[str] = []

    async def slowly() -> str:
        busy.set()
        await may_end.wait()
        return "by the other"

    @inbox_handler("SendReceipt")
    async def send_receipt(session: AsyncSession, event: Ordered) -> None:
        sent = await effects.once(own_sessions, "receipt-7", slowly, on_unknown="skip")
        found.append(f"{sent.outcome} {sent.result}")

    other = asyncio.ensure_future(effects.once(own_sessions, "receipt-7", slowly, on_unknown="skip"))
    await busy.wait()
    async with start(send_receipt) as consumer:
        publish(broker, 7, "m")
        await consumer.reaches(retried=1)
        may_end.set()
        await other
        await consumer.reaches(retried=1, processed=1)
    assert found == ["remembered by the other"]


@pytest.fixture
async def embedded(sqlite_url: str) -> AsyncIterator[AsyncEngine]:
    engine = process.engine(sqlite_url, name="test")
    yield engine
    await engine.dispose()


async def drained(engine: AsyncEngine, *functions: Any) -> dict[str, int]:
    """What becomes of one message that comes twice, on an embedded database and broker."""
    broker = MemoryBroker()
    subscriber = MemorySubscriber(broker, "q", ["Ordered"])
    await subscriber.connect()
    ordered = Message(id="m", type="Ordered", payload=b'{"number":7}')
    await MemoryPublisher(broker).publish([ordered, ordered])
    consumer = Consumer(
        engine,
        subscriber,
        [inbox.handler_of(one) for one in functions],
        queue="q",
        policy=ConsumerPolicy(max_attempts=1),
    )
    await consumer.drain(asyncio.Event())
    return {str(outcome): count for outcome, count in consumer.outcomes.items()}


async def test_on_sqlite_effects_have_a_file_of_their_own(embedded: AsyncEngine, tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'effects.db'}"
    migrate(url)
    own, plain, made = process.engine(url, name="effects"), create_engine(url), []

    async def call() -> None:
        made.append("async")

    @inbox_handler("Async")
    async def asynchronous(session: AsyncSession, event: Ordered) -> None:
        await effects.once(async_sessionmaker(own), call=call, on_unknown="skip")

    @inbox_handler("Plain")
    def blocking(session: Session, event: Ordered) -> None:
        effects.once(sessionmaker(plain), call=lambda: made.append("plain"), on_unknown="skip")

    assert await drained(embedded, asynchronous, blocking) == {"processed": 2, "duplicate": 2}
    assert sorted(made) == ["async", "plain"]
    assert known(plain) == [("5:Async:m", "done"), ("5:Plain:m", "done")]
    plain.dispose()
    await own.dispose()


async def test_on_sqlite_the_handlers_own_file_is_refused_at_once(embedded: AsyncEngine, sqlite_url: str):
    plain = create_engine(sqlite_url)
    made: list[str] = []

    @inbox_handler("SendReceipt")
    async def send_receipt(session: AsyncSession, event: Ordered) -> None:
        await session.execute(insert(tables.listener).values(name="a row of the handler", until=tables.PARKED))
        await effects.once(async_sessionmaker(embedded), call=made.append, on_unknown="skip")

    assert await drained(embedded, send_receipt) == {"dead": 2}
    refusal = (
        f"ConfigurationError: effects.once: handler 'SendReceipt' is writing to {embedded.url.database!r}, and SQLite "
        "has one writer at a time: the intention could not be committed before the handler ends. Give effects.once a "
        "file of its own, with outboxkit's tables: `outboxkit migrate --database-url sqlite:///effects.db`"
    )
    assert [letter.error for letter in dead_letters(plain)] == [refusal]
    assert made == []
    assert known(plain) == []
    plain.dispose()
