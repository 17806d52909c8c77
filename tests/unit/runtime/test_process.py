"""Engines, brokers and the log of a process."""

import asyncio
import json
import logging
import sqlite3
import sys
from base64 import b64encode
from datetime import timedelta
from pathlib import Path

import pytest
import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from outboxkit import ConfigurationError
from outboxkit.brokers import http
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.brokers.rabbitmq import RabbitPublisher, RabbitSubscriber
from outboxkit.consumer import Consumer
from outboxkit.relay import Relay
from outboxkit.runtime import process

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("postgresql://db/x", "postgresql+psycopg"),
        ("postgresql+psycopg2://db/x", "postgresql+psycopg"),
        ("postgresql+asyncpg://db/x", "postgresql+psycopg"),
        ("sqlite:///a.db", "sqlite+aiosqlite"),
        ("sqlite://", "sqlite+aiosqlite"),
    ],
)
async def test_an_engine_has_our_driver_whatever_the_url_names(url: str, driver: str):
    made = process.engine(url, name="unit tests", idle_in_transaction=SECOND)
    assert made.url.drivername == driver
    await made.dispose()


def test_a_worker_takes_an_engine_of_its_own_driver_only():
    engine = create_async_engine("postgresql+asyncpg://app:hunter2@db/shop")
    accepted = r"got an engine of postgresql\+asyncpg, and needs postgresql\+psycopg: outboxkit\.runtime\.process"
    with pytest.raises(ConfigurationError, match=f"a relay {accepted}"):
        Relay(engine, MemoryPublisher(MemoryBroker()))
    with pytest.raises(ConfigurationError, match=f"a consumer {accepted}"):
        Consumer(engine, MemorySubscriber(MemoryBroker(), "q", [], []), [], queue="q")


def test_another_database_is_refused():
    with pytest.raises(ConfigurationError, match="'mysql' is not supported; postgresql and sqlite are"):
        process.engine("mysql://shop:hunter2@db/x", name="unit tests")


async def test_readers_of_sqlite_are_not_held_up_by_the_writer(empty_url: str):
    made = process.engine(empty_url, name="unit tests")
    async with made.begin() as connection:
        assert (await connection.execute(text("PRAGMA journal_mode"))).scalar() == "wal"
        await connection.execute(text("CREATE TABLE a (b)"))
    await made.dispose()


async def test_a_new_file_of_sqlite_waits_for_the_writer_that_another_process_has_begun(tmp_path: Path):
    writer = sqlite3.connect(tmp_path / "new.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    asyncio.get_running_loop().call_later(0.05, writer.rollback)
    made = process.engine(f"sqlite:///{tmp_path / 'new.db'}", name="unit tests")
    async with made.begin() as connection:
        assert (await connection.execute(text("PRAGMA journal_mode"))).scalar() == "wal"
    await made.dispose()
    writer.close()


async def test_a_reader_in_the_same_event_loop_is_not_locked_out_of_a_new_file_of_sqlite(tmp_path: Path):
    reader = sqlite3.connect(tmp_path / "new.db", timeout=0.3)
    reader.execute("CREATE TABLE a (b)")
    made = process.engine(f"sqlite:///{tmp_path / 'new.db'}", name="unit tests")

    async def use() -> None:
        async with made.begin() as connection:
            await connection.execute(text("SELECT * FROM a"))

    using = asyncio.create_task(use())
    while not using.done():
        reader.execute("SELECT * FROM a").fetchall()  # "database is locked" if it waits for a turn of this loop
        await asyncio.sleep(0)
    await using
    await made.dispose()
    reader.close()


async def test_a_transaction_that_waits_for_sqlite_and_is_cancelled_twice_leaves_no_task_behind(tmp_path: Path):
    made = process.engine(f"sqlite:///{tmp_path / 'shop.db'}", name="unit tests")
    async with made.begin():
        pass
    writer = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    waiting = asyncio.ensure_future(made.begin().__aenter__())
    for _ in range(2):
        await asyncio.wait([waiting], timeout=0.1)
        waiting.cancel()
    writer.close()
    await asyncio.wait([waiting])
    if left := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(left, timeout=2)
    assert all(task.done() for task in left)
    await made.dispose()


async def test_a_sqlite_transaction_can_be_rolled_back_whole(empty_url: str):
    made = process.engine(empty_url, name="unit tests")
    async with AsyncSession(made) as session:
        await session.execute(text("CREATE TABLE a (b)"))
        await session.rollback()
        assert (await session.execute(text("SELECT count(*) FROM sqlite_master"))).scalar() == 0
    await made.dispose()


async def test_a_broker_url_chooses_the_broker():
    for url in ("amqp://mq/", "amqps://mq/"):
        assert isinstance(process.publisher(url, exchange="e", timeout=SECOND), RabbitPublisher)
        assert isinstance(process.subscriber(url, "q", exchange="e", topics=["T"]), RabbitSubscriber)
    assert isinstance(process.publisher("memory://", exchange="e", timeout=SECOND), MemoryPublisher)
    assert isinstance(process.subscriber("memory://", "q", exchange="e", topics=["T"]), MemorySubscriber)


SIGNING = "whsec_" + b64encode(b"0123456789" * 3).decode()


def test_an_http_destination_gets_its_publisher_with_all_that_was_asked_for(monkeypatch: pytest.MonkeyPatch):
    told: dict[str, object] = {}
    monkeypatch.setattr(http, "HttpPublisher", lambda url, **more: told.update(more, url=url))
    asked = {"timeout": SECOND, "concurrency": 3, "authorization": "Bearer hunter2", "secret": SIGNING}
    process.publisher("https://pay.example/", exchange="e", **asked)
    assert told == asked | {"url": "https://pay.example/"}


def test_without_httpx_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("outboxkit.brokers.http")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs an extra: httpx .*: pip install 'outboxkit\[http\]'"):
        process.publisher("https://pay.example/", exchange="e", timeout=SECOND)


def test_one_queue_is_published_to_on_rabbitmq_alone():
    publisher = process.queue_publisher("amqp://mq/", "q", timeout=SECOND)
    assert isinstance(publisher, RabbitPublisher)
    assert (publisher.queue, publisher.exchange) == ("q", "")
    with pytest.raises(ConfigurationError, match="memory://"):
        process.queue_publisher("memory://", "q", timeout=SECOND)


def test_the_log_is_json_on_standard_error_where_nobody_watches(capsys: pytest.CaptureFixture[str]):
    process.configure_log(level="info")
    log = structlog.get_logger("outboxkit")
    log.info("relay started", batch_size=500)
    log.debug("not shown")
    written = capsys.readouterr()
    (line,) = written.err.splitlines()
    assert written.out == ""
    said = json.loads(line)
    assert said.pop("timestamp").endswith("Z")
    assert said == {"event": "relay started", "level": "info", "batch_size": 500}


def test_the_libraries_below_say_nothing_of_an_outage():
    process.configure_log(level="debug")
    for library in ("aio_pika", "aiormq", "pamqp"):
        assert not logging.getLogger(library).isEnabledFor(logging.ERROR)


@pytest.mark.parametrize(
    ("destination", "name"), [("default", "outboxkit relay"), ("payments", "outboxkit relay payments")]
)
def test_sessions_of_a_relay_have_its_destination_in_their_name(destination: str, name: str) -> None:
    assert process.relay_name(destination) == name
