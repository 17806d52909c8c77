"""A real PgBouncer in front of PostgreSQL: in transaction mode no worker starts, and no row reaches another table."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import Engine, create_engine, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit import ConfigurationError, Message, event, inbox, inbox_handler, tables
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.consumer import Consumer
from outboxkit.consumer.attempts import UnusableSessions
from outboxkit.consumer.transactions import Transactions
from outboxkit.database import pooler
from outboxkit.database.engines import beside
from outboxkit.inbox import Handler, handler_of
from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.doctor.server import check_pooler
from outboxkit.operators.holding import read_holding
from outboxkit.operators.pausing import pause_process
from outboxkit.relay import Relay
from outboxkit.runtime import process
from outboxkit.runtime.outage import Outage
from outboxkit.runtime.pauses import read_pauses
from outboxkit.runtime.retention import Periods, Retention
from outboxkit.runtime.settings import load
from outboxkit.runtime.workers import RELAY, Presence
from tests.processes import COMMAND, run_to_end
from tests.servers import provide_pooler
from tests.servers.pgbouncer import Pgbouncer
from tests.support.night import by_night
from tests.support.polling import eventually_async

PUBLISH_TIMEOUT = timedelta(seconds=10)


@event("Ordered")
@dataclass(frozen=True)
class Ordered:
    number: int


@inbox_handler("Credit")
async def credit(session: AsyncSession, event: Ordered) -> None:
    await session.execute(text("INSERT INTO ledger_credit (number) VALUES (:number)"), {"number": event.number})


@inbox_handler("Debit")
async def debit(session: AsyncSession, event: Ordered) -> None:
    await session.execute(text("INSERT INTO ledger_debit (number) VALUES (:number)"), {"number": event.number})


@pytest.fixture
def pgbouncer(request: pytest.FixtureRequest, postgresql_url: str) -> Iterator[Pgbouncer]:
    """A PgBouncer in this mode with eight server sessions."""
    running = provide_pooler(postgresql_url, mode=request.param, size=8)
    try:
        running.start()
        yield running
    finally:
        running.close()


in_mode = partial(pytest.mark.parametrize, "pgbouncer", indirect=True)


@asynccontextmanager
async def engine_on(url: str, pool_size: int = 2) -> AsyncIterator[AsyncEngine]:
    engine = process.engine(url, name="test", pool_size=pool_size)
    try:
        yield engine
    finally:
        await engine.dispose()


@in_mode(argvalues=["transaction"])
async def test_no_worker_starts_behind_a_pooler_in_transaction_mode(pgbouncer: Pgbouncer):
    stop = asyncio.Event()
    relay_engine = process.relay_engine(pgbouncer.url, publish_timeout=PUBLISH_TIMEOUT)
    async with engine_on(pgbouncer.url) as engine:
        consumer = Consumer(engine, MemorySubscriber(MemoryBroker(), "q", [], ()), [handler_of(credit)], queue="q")
        for start in (
            Relay(relay_engine, MemoryPublisher(MemoryBroker())).run(stop),
            consumer.run(stop),
            Retention(engine, Periods(inbox=timedelta(days=7))).prune(),
        ):
            with pytest.raises(ConfigurationError, match="pooler in transaction mode"):
                await start
    await relay_engine.dispose()


@in_mode(argvalues=["transaction"])
@pytest.mark.parametrize("in_turn", [False, True])
async def test_an_idle_pooler_is_found_however_it_gives_sessions_out(pgbouncer: Pgbouncer, in_turn: bool):
    pgbouncer.configure(in_turn=in_turn)
    async with engine_on(pgbouncer.url) as engine, engine_on(pgbouncer.url, pool_size=8) as other:
        connections = [await other.connect() for _ in range(4)]
        await asyncio.gather(*(connection.execute(text("SELECT pg_sleep(0.05)")) for connection in connections))
        for connection in connections:
            await connection.close()  # now the pooler has several idle server sessions
        assert not await pooler.keeps_sessions(engine)


@in_mode(argvalues=["session"])
async def test_a_pooler_in_session_mode_keeps_sessions(pgbouncer: Pgbouncer, pg_engine: Engine):
    async with engine_on(pgbouncer.url) as engine:
        await pooler.check_sessions(engine)
    async with engine_on(pgbouncer.url) as engine:
        assert await check_pooler(Installation(load({"database_url": pgbouncer.url}), engine)) == []


@in_mode(argvalues=["session"])
async def test_a_pause_is_acknowledged_through_a_pooler_in_session_mode(pgbouncer: Pgbouncer, pg_engine: Engine):
    """The process ids are the server's: a pooler tells its clients others."""
    engine = process.relay_engine(pgbouncer.url, publish_timeout=PUBLISH_TIMEOUT)
    presence = Presence(engine, RELAY, "default")
    with pg_engine.begin() as connection:
        pause_process(connection, RELAY, "default", why="moved", by="ada")

    def holding() -> tuple[int, int]:
        with pg_engine.connect() as connection:
            (each,) = read_holding(connection, read_pauses(connection))
            return each.holders, len(each.others)

    async with engine.connect() as keeper, engine.connect():
        assert holding() == (0, 2)
        await keeper.execution_options(isolation_level="AUTOCOMMIT")
        await presence.write(keeper, rests=True)
        assert holding() == (1, 0)
    await presence.leave()
    assert holding() == (0, 2)
    await engine.dispose()


@in_mode(argvalues=["transaction"])
async def test_doctor_finds_a_pooler_in_transaction_mode(pgbouncer: Pgbouncer):
    engine = process.engine(pgbouncer.url, name="outboxkit doctor")
    (finding,) = await check_pooler(Installation(load({"database_url": pgbouncer.url}), engine))
    await engine.dispose()
    assert (finding.code, finding.severity) == ("pooler-transaction-mode", "problem")


async def test_connections_prepare_under_names_of_their_own(postgresql_url: str):
    """Also those of handlers in threads. A relay prepares nothing."""
    relay_engine = process.relay_engine(postgresql_url, publish_timeout=PUBLISH_TIMEOUT)
    names = []
    async with engine_on(postgresql_url) as engine:
        twin = await beside(engine, pool_size=2)
        async with engine.connect() as one, engine.connect() as other, relay_engine.connect() as relays:
            for connection in (one, other, relays):
                for _ in range(8):
                    await connection.execute(text("SELECT 1"))
                prepared = await connection.execute(text("SELECT name FROM pg_prepared_statements"))
                names.append(set(prepared.scalars()))
        with twin.connect() as connection:
            for _ in range(8):
                connection.execute(text("SELECT 1"))
            names.append(set(connection.execute(text("SELECT name FROM pg_prepared_statements")).scalars()))
        twin.dispose()
    await relay_engine.dispose()
    assert [bool(each) for each in names] == [True, True, False, True]
    assert len(set().union(*names)) == sum(map(len, names))


@in_mode(argvalues=["session"])
async def test_no_effect_reaches_another_table_if_the_poolers_mode_changes(
    pgbouncer: Pgbouncer, postgresql_url: str, pg_engine: Engine
):
    """Two handlers with equal columns: the consumers go on, or end with the reason. No attempt is burnt."""
    with pg_engine.begin() as connection:
        for name in ("credit", "debit"):
            connection.execute(text(f"CREATE TABLE ledger_{name} (number int)"))
    count = by_night(600, else_=120)
    prefix = secrets.token_hex(4)
    messages = [Message(f"{prefix}-{n}", "Ordered", b'{"number":%d}' % n) for n in range(count)]
    async with engine_on(pgbouncer.url) as one, engine_on(pgbouncer.url) as other:
        workers = [(one, handler_of(credit)), (other, handler_of(debit))]
        await asyncio.gather(*(handle(engine, handler, messages[:40]) for engine, handler in workers))
        pgbouncer.configure(mode="transaction")
        async with engine_on(pgbouncer.url) as third:
            await eventually_async(partial(pooler.keeps_sessions, third), lambda kept: not kept)
        ended = await asyncio.gather(*(handle(engine, handler, messages) for engine, handler in workers))
    assert any(ended)
    async with engine_on(postgresql_url) as direct:
        for handler in (credit, debit):
            assert not await handle(direct, handler_of(handler), messages)
    with pg_engine.connect() as connection:
        for name in ("credit", "debit"):
            numbers = connection.execute(text(f"SELECT number FROM ledger_{name} ORDER BY number")).scalars().all()
            assert list(numbers) == list(range(count))
        assert set(connection.execute(select(tables.inbox.c.attempts)).scalars()) == {1}


async def handle(engine: AsyncEngine, handler: Handler, messages: list[Message]) -> bool:
    """Handle messages, two at a time, as a consumer does. Whether that ended because of the pooler."""
    stop, transactions = asyncio.Event(), Transactions(engine, Outage("consumer"))
    waiting = iter(messages)

    async def work() -> None:
        for message in waiting:
            await transactions.run(partial(inbox.run_once, message=message, handler=handler), stop)

    errors = await asyncio.gather(*(work() for _ in range(2)), return_exceptions=True)
    others = [error for error in errors if error is not None and not isinstance(error, UnusableSessions)]
    assert not others, others
    return any(errors)


@pytest.mark.night
@in_mode(argvalues=["session"])
def test_a_command_says_that_a_full_pool_may_be_what_it_waits_for(pgbouncer: Pgbouncer):
    engine = create_engine(pgbouncer.url)
    with ExitStack() as others:
        others.callback(engine.dispose)
        for _ in range(8):
            others.enter_context(engine.connect()).execute(text("SELECT 1"))
        status = run_to_end([COMMAND, "status"], {"OUTBOXKIT_DATABASE_URL": pgbouncer.url})
        doctor = run_to_end([COMMAND, "doctor", "--only", "database"], {"OUTBOXKIT_DATABASE_URL": pgbouncer.url})
    assert status.returncode == doctor.returncode == 1
    assert "cannot be used: it did not answer in time" in " ".join(status.stdout.split())
    assert "database-away" in doctor.stdout
    assert "at a pooler, whose pool may be full" in " ".join(doctor.stdout.split())
