"""The gauges of the tables: what they say, on PostgreSQL and SQLite, and what they do without an answer."""

import asyncio
import socket
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outboxkit import Message, outbox
from outboxkit.brokers import Receipt
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher
from outboxkit.database import engines
from outboxkit.operators.pausing import pause_process
from outboxkit.relay import Relay
from outboxkit.runtime.workers import CONSUMER, RELAY
from outboxkit.tables import PARKED, dead_letter, pause
from outboxkit.tables import outbox as outbox_table
from outboxkit.telemetry import catalogue, table_gauges
from outboxkit.telemetry.catalogue import Metric
from outboxkit.telemetry.table_gauges import TableReader
from tests.integration.schema import test_grants
from tests.support.measured import measuring

roles = test_grants.roles
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Tables:
    """The tables of a database, and a reader whose clocks stand."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seconds = 0.0
        self.reader = TableReader(engine, now=lambda: NOW, monotonic=lambda: self.seconds)

    def add(self, **columns: Any) -> None:
        row = {"message_id": "m", "type": "T", "payload": b"", "headers": b"{}", "content_type": "x"}
        with self.engine.begin() as connection:
            connection.execute(outbox_table.insert().values(row | {"created_at": NOW - MINUTE} | columns))

    def bury(self, **columns: Any) -> None:
        row = {"side": "outbox", "reason": "rejected", "payload": b"", "headers": b"{}", "content_type": "x"}
        with self.engine.begin() as connection:
            connection.execute(dead_letter.insert().values(row | {"attempts": 1} | columns))

    def of(self, metric: Metric) -> dict[tuple[str, ...], float]:
        return {tuple(attributes.values()): value for value, attributes in self.reader.read(metric)}


def some(counts: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """Those that are not 0."""
    return {names: count for names, count in counts.items() if count}


@pytest.fixture
def stored(engine: Engine) -> Tables:
    return Tables(engine)


NONE = {("default", state): 0 for state in ("ready", "waiting", "parked")}


def test_gauges_of_an_empty_database_are_0(stored: Tables):
    assert stored.of(catalogue.OUTBOX_MESSAGES) == NONE
    assert stored.of(catalogue.OLDEST_AGE) == {("default",): 0}
    assert stored.of(catalogue.PARKED_KEYS) == {(): 0}
    assert set(stored.of(catalogue.DEAD_OPEN).values()) == {0}
    assert stored.of(catalogue.DEAD_OPEN).keys() > {("outbox", "unroutable"), ("inbox", "failed"), ("inbox", "stale")}


def test_messages_are_counted_by_destination_and_state(stored: Tables):
    stored.add()
    stored.add(created_at=NOW - 2 * MINUTE)
    stored.add(due_at=NOW + MINUTE)
    stored.add(due_at=NOW + MINUTE, held=True)
    stored.add(due_at=PARKED, held=True, key="k", destination="mail")
    assert stored.of(catalogue.OUTBOX_MESSAGES) == {
        ("default", "ready"): 2,
        ("default", "waiting"): 2,
        ("default", "parked"): 0,
        ("mail", "ready"): 0,
        ("mail", "waiting"): 0,
        ("mail", "parked"): 1,
    }
    assert stored.of(catalogue.OLDEST_AGE) == {("default",): 120, ("mail",): 0}


def test_a_delayed_message_has_an_age_once_it_is_due(stored: Tables):
    stored.add(due_at=NOW + MINUTE)
    assert stored.of(catalogue.OLDEST_AGE) == {("default",): 0}
    stored.add(due_at=NOW - MINUTE / 2)
    stored.seconds = table_gauges.KEPT_SECONDS
    assert stored.of(catalogue.OLDEST_AGE) == {("default",): 30}


def test_dead_letters_are_counted_by_side_and_reason(stored: Tables):
    stored.bury()
    stored.bury(key="a", parked=True)
    stored.bury(key="a", parked=True)
    stored.bury(key="b", parked=True, side="inbox", reason="failed")
    stored.bury(resolution="discarded")
    assert some(stored.of(catalogue.DEAD_OPEN)) == {("outbox", "rejected"): 3, ("inbox", "failed"): 1}
    assert stored.of(catalogue.PARKED_KEYS) == {(): 2}


def test_pauses_have_an_age_by_destination_or_queue(stored: Tables):
    with stored.engine.begin() as connection:
        for process, name in ((RELAY, "default"), (CONSUMER, "billing"), (CONSUMER, "over")):
            pause_process(connection, process, name, why="moved", by="ada")
        ours = pause.update().values(since=NOW - MINUTE)
        connection.execute(ours)
        connection.execute(ours.where(pause.c.name == "over").values(until=NOW))
        connection.execute(ours.where(pause.c.name == "billing").values(since=NOW + MINUTE))
    assert stored.of(catalogue.PAUSE_AGE) == {("default", ""): 60, ("", "billing"): 0}


def test_a_table_that_may_not_be_read_leaves_the_others(pg_engine: Engine):
    stored = Tables(pg_engine)
    stored.add()
    with stored.engine.begin() as connection:
        connection.execute(text("ALTER TABLE outboxkit_dead_letter RENAME COLUMN reason TO cause"))
    assert stored.of(catalogue.OUTBOX_MESSAGES)[("default", "ready")] == 1
    assert stored.of(catalogue.DEAD_OPEN) == {}
    assert stored.of(catalogue.PARKED_KEYS) == {(): 0}


def test_the_documented_roles_may_read_the_gauges(pg_engine: Engine, postgresql_url: str, roles: dict[str, str]):
    stored = Tables(pg_engine)
    stored.add()
    stored.bury(side="outbox", reason="unroutable")
    stored.bury(side="inbox", reason="stale")
    with pg_engine.begin() as connection:
        pause_process(connection, RELAY, "default", why="moved", by="ada")
    for role, ready, parked in (("shop_relay", 1, {(): 0}), ("shop_consumer", None, {})):
        theirs = Tables(create_engine(f"{postgresql_url}?options=-crole%3D{roles[role]}"))
        assert some(theirs.of(catalogue.DEAD_OPEN)) == {("outbox", "unroutable"): 1, ("inbox", "stale"): 1}
        assert theirs.of(catalogue.PARKED_KEYS) == parked
        assert theirs.of(catalogue.OUTBOX_MESSAGES).get(("default", "ready")) == ready
        assert theirs.of(catalogue.PAUSE_AGE).keys() == {("default", "")}
        theirs.engine.dispose()


def test_a_database_that_is_away_has_no_readings():
    reader = TableReader(create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none"))
    assert [list(reader.read(metric)) for metric in table_gauges.GAUGES] == [[]] * len(table_gauges.GAUGES)


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"postgresql+psycopg://nobody@127.0.0.1:{listener.getsockname()[1]}/none"


def test_nobody_waits_for_a_database_that_says_nothing(silent: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_gauges, "PATIENCE_SECONDS", 0.01)
    engine = create_engine(silent, connect_args={"connect_timeout": 300})
    reader = TableReader(engine)
    assert [list(reader.read(metric)) for metric in table_gauges.GAUGES] == [[]] * len(table_gauges.GAUGES)


async def test_a_writer_does_not_hold_up_the_reader(async_engine: AsyncEngine, engine: Engine):
    with engine.connect() as writer:
        writer.execute(dead_letter.delete())
        reader = await engines.reader_beside(async_engine)
        assert list(TableReader(reader).read(catalogue.PARKED_KEYS)) == [(0, {})]
        reader.dispose()


class Hanging(MemoryPublisher):
    """A publisher that never returns."""

    def __init__(self) -> None:
        super().__init__(MemoryBroker())
        self.began = asyncio.Event()

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        self.began.set()
        await asyncio.Event().wait()
        return []


async def test_the_age_grows_while_the_relay_hangs(
    async_pg_engine: AsyncEngine, pg_engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    """The gauges are read here while even the relay's event loop stands still."""
    monkeypatch.setattr(table_gauges, "KEPT_SECONDS", 0)
    publisher = Hanging()
    with measuring() as measured:
        with Session(pg_engine) as session, session.begin():
            outbox.add(session, Message(id="m", type="T", payload=b"{}"))
        running = asyncio.create_task(Relay(async_pg_engine, publisher).run(asyncio.Event()))
        await publisher.began.wait()
        first, second = (measured.of(catalogue.OLDEST_AGE, "destination")["default"] for _ in range(2))
        assert 0 < first < second
        running.cancel()
        await asyncio.wait([running])
