"""The pytest plugin, in suites of its own: fixtures, failures as they are printed, and the cost of not using it."""

import subprocess
import sys
from pathlib import Path

from tests.processes.client import run_to_end
from tests.support.plain_client import PlainClient

SUITE = """
from dataclasses import dataclass

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import outboxkit
from outboxkit import event, inbox_handler, outbox
from outboxkit.testing import assert_effects_once, outbox_messages


@event("Placed")
@dataclass(frozen=True)
class Placed:
    number: int


@pytest.fixture
def session():
    engine = create_engine("sqlite://")
    outboxkit.metadata.create_all(engine)
    with Session(engine) as session:
        yield session
    engine.dispose()


def test_fails(session):
    outbox.add(session, Placed(1), key="order-1")
    outbox.add(session, Placed(2))
    assert outbox_messages(session) == [Placed(1), Placed(3)]


def test_one(session):
    outbox_messages(session).one(Placed(3))


SEEN = []


@inbox_handler("kit.See")
def see(session, event: Placed) -> None:
    SEEN.append(event)


def test_once(session):
    assert_effects_once(see, Placed(1), engine=session.get_bind())


def test_server(outboxkit_database):
    engine = create_engine(outboxkit_database)
    with Session(engine) as session:
        assert outbox_messages(session) == []
    engine.dispose()
"""


def test_fixtures_and_a_failure_as_it_is_printed(tmp_path: Path, postgresql_url: str):
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", str(tmp_path)]
    done = run_to_end(command, {"OUTBOXKIT_TEST_DATABASE_URL": postgresql_url}, folder=tmp_path)
    assert "1 passed" in done.stdout, done.stdout
    assert "3 failed" in done.stdout, done.stdout
    assert "outboxkit/testing/" not in done.stdout, "the lines of the test are told, and not those of the kit"
    printed = [line[1:].strip() for line in done.stdout.splitlines() if line.startswith("E ")]
    assert """At index 1 diff: <Placed {"number":2}> != Placed(number=3)""" in printed


def test_the_plugin_imports_nothing_that_pytest_does_not():
    program = "import sys, pytest; import outboxkit.testing.plugin; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = {name.partition(".")[0] for name in done.stdout.split()}
    assert modules & {"sqlalchemy", "msgspec", "psycopg", "structlog", "httpx", "alembic", "asyncio", "uuid_utils"} <= {
        "asyncio"
    }


SERVERS = """
import asyncio
from dataclasses import dataclass

import pika
import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outboxkit import event, inbox_handler, outbox
from outboxkit.testing import deliver_all, outbox_messages


@event("Placed")
@dataclass(frozen=True)
class Placed:
    number: int


@inbox_handler("kit.Take")
def take(session, event: Placed) -> None:
    if event.number == 1:
        outbox.add(session, Placed(2))


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_session(outboxkit_database, driver):
    engine = create_engine(make_url(outboxkit_database).set(drivername=f"postgresql+{driver}"))
    with Session(engine) as session:
        outbox.add(session, Placed(1))
        assert outbox_messages(session) == [Placed(1)]
        assert len(deliver_all(session, take)) == 2
        session.commit()
    engine.dispose()


def test_async_session(outboxkit_database):
    async def add():
        engine = create_async_engine(make_url(outboxkit_database).set(drivername="postgresql+asyncpg"))
        async with AsyncSession(engine) as session:
            outbox.add(session, Placed(1))
            assert await session.run_sync(outbox_messages) == [Placed(1)]
            assert len(await session.run_sync(deliver_all, take)) == 2
            await session.commit()
        await engine.dispose()

    asyncio.run(add())


def test_broker(outboxkit_broker):
    with pika.BlockingConnection(pika.URLParameters(outboxkit_broker)) as connection:
        connection.channel().queue_declare("", exclusive=True)
"""


def test_its_servers_serve_every_driver(tmp_path: Path, postgresql_url: str, broker: PlainClient):
    (tmp_path / "test_suite.py").write_text(SERVERS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", str(tmp_path)]
    urls = {"OUTBOXKIT_TEST_DATABASE_URL": postgresql_url, "OUTBOXKIT_TEST_BROKER_URL": broker.url}
    done = run_to_end(command, urls, folder=tmp_path)
    assert "4 passed" in done.stdout, done.stdout
