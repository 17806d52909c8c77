"""A PostgreSQL that is silent while its network acknowledges: a proxy swallows what open connections send and get."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, event, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import inbox_handler, outbox
from outboxkit.database import connections, engines, silence
from outboxkit.database.connections import Connection, ThreadConnection
from outboxkit.operators.doctor.examine import examine
from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.findings import Limits
from outboxkit.runtime import process, settings
from outboxkit.runtime.outage import what_is_away
from tests.faults.tripwire import Step, Stop, Tripwire
from tests.integration.consumer.running_consumer import Billed, Ordered, publish, starter
from tests.integration.operators.doctoring import role
from tests.integration.relay.recording import behind_proxy
from tests.servers import provide_pooler
from tests.support.pages import libpq
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async
from tests.support.tcp_proxy import TcpProxy

SOON = silence.Patience(asks=0.4, limit=3)
ONE = text("SELECT 1")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch):
    """Doubts come in a moment, and in handlers as well."""
    monkeypatch.setattr(Connection, "patience", SOON)
    monkeypatch.setattr(ThreadConnection, "patience", SOON)
    monkeypatch.setattr(silence, "HANDLER_PATIENCE", SOON)


@pytest.fixture
def said() -> Any:
    """What a command would say of its waits."""
    lines: list[str] = []
    silence.announce(lines.append)
    yield lines
    silence.announce(None)


@pytest.fixture
async def proxied(postgresql_url: str) -> AsyncIterator[tuple[TcpProxy, AsyncEngine]]:
    async with behind_proxy(postgresql_url) as (proxy, url):
        engine = process.engine(url, name="outboxkit test")
        yield proxy, engine
        await engine.dispose()


async def test_a_statement_on_a_silent_connection_is_an_outage_and_the_next_one_gets_another_connection(
    proxied: tuple[TcpProxy, AsyncEngine],
):
    proxy, engine = proxied
    async with engine.connect() as first, engine.connect() as second:
        await first.execute(ONE)
        await second.execute(ONE)
        proxy.silence()
        with pytest.raises(OperationalError, match=r"silent for .* while the server had nothing") as away:
            await first.execute(ONE)
        assert what_is_away(away.value) == "database"
        with pytest.raises(OperationalError, match="the connection was silent"):
            await second.commit()
    proxy.unsilence()
    async with engine.connect() as third:  # no connection of that time is left in the pool
        assert (await third.execute(ONE)).scalar() == 1


async def test_a_statement_of_which_a_part_has_arrived_is_noticed_too(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
):
    """The server counts as active then: it reads, and waits for the rest."""
    monkeypatch.setattr(silence, "AGAIN_SECONDS", 0.2)
    target = make_url(postgresql_url)
    wire = Tripwire("postgresql", target.host or "", target.port or 0)
    engine = process.engine(
        target.set(host="127.0.0.1", port=wire.port).render_as_string(hide_password=False), name="outboxkit test"
    )
    async with asyncio.timeout(30), engine.connect() as connection:
        await connection.execute(ONE)
        wire.wait_for(Step("postgresql", "is_lost"), Stop.SILENT)
        with pytest.raises(OperationalError, match=r"silent for .* while the server had nothing"):
            await connection.execute(text("SELECT CAST(:number AS integer) AS is_lost"), {"number": 1})
    await engine.dispose()
    wire.close()


async def test_what_a_silent_connection_has_locked_is_free_at_once(
    proxied: tuple[TcpProxy, AsyncEngine], pg_engine: Engine
):
    proxy, engine = proxied
    async with engine.connect() as connection:
        await connection.execute(text("LOCK TABLE outboxkit_outbox"))
        proxy.silence()
        with pytest.raises(OperationalError):
            await connection.execute(ONE)
    with pg_engine.begin() as other:
        other.execute(text("SET LOCAL lock_timeout = '5s'"))
        other.execute(text("LOCK TABLE outboxkit_outbox"))


async def test_a_statement_that_got_lost_in_a_moment_of_silence_is_noticed_too(proxied: tuple[TcpProxy, AsyncEngine]):
    proxy, engine = proxied
    async with engine.connect() as connection:
        await connection.execute(ONE)
        proxy.silence()
        asking = asyncio.ensure_future(connection.execute(ONE))
        await eventually_async(lambda: swallowed(proxy))
        proxy.unsilence()
        with pytest.raises(OperationalError) as away:
            await asking
        assert what_is_away(away.value) == "database"


async def swallowed(proxy: TcpProxy) -> int:
    return proxy.lost_bytes


async def test_a_thread_notices_it_as_well(proxied: tuple[TcpProxy, AsyncEngine]):
    proxy, engine = proxied
    twin = await engines.beside(engine, pool_size=2)

    def work() -> None:
        with twin.connect() as one, twin.connect() as other:
            one.execute(ONE)
            other.execute(ONE)
            proxy.silence()
            with pytest.raises(OperationalError, match="the connection was silent") as away:
                one.execute(ONE)
            assert what_is_away(away.value) == "database"
            with pytest.raises(OperationalError, match="the connection was silent"):
                other.commit()
        with twin.connect() as another:
            assert another.execute(ONE).scalar() == 1

    await asyncio.to_thread(work)
    twin.dispose()


async def test_a_statement_on_which_the_server_works_goes_on(
    proxied: tuple[TcpProxy, AsyncEngine], said: list[str], pg_engine: Engine
):
    _, engine = proxied
    async with engine.begin() as connection:
        await connection.execute(text("SELECT pg_sleep(1.2)"))
    assert said
    assert all(line.endswith("it works on the statement") for line in said)
    with pg_engine.begin() as holder:
        holder.execute(text("SET application_name = 'a long report'"))
        holder.execute(text("LOCK TABLE outboxkit_outbox"))
        asking = asyncio.create_task(locked(engine))
        held = await eventually_async(lambda: matching(said, "lock"))
        assert "(a long report) holds" in held[0]
    await asking


async def locked(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("LOCK TABLE outboxkit_outbox"))


async def matching(lines: list[str], word: str) -> list[str]:
    return [line for line in lines if word in line]


async def test_if_nobody_answers_the_time_is_limited(proxied: tuple[TcpProxy, AsyncEngine], monkeypatch: Any):
    proxy, engine = proxied
    monkeypatch.setattr("outboxkit.database.connections.PROBE_SECONDS", 2)
    monkeypatch.setattr(Connection, "patience", silence.Patience(asks=0.2, limit=4))
    async with engine.connect() as connection:
        await connection.execute(ONE)
        proxy.swallow()
        with pytest.raises(OperationalError, match=r"silent for .* and a new connection got no answer"):
            await connection.execute(ONE)
    proxy.release()


async def test_a_server_without_a_free_connection_is_not_silent(postgresql_url: str, monkeypatch: Any):
    """It answers the question with a refusal, and works on the statement meanwhile."""
    monkeypatch.setattr(Connection, "patience", silence.Patience(asks=0.1, limit=0.5))
    with role(postgresql_url) as (name, url), psycopg.connect(libpq(postgresql_url), autocommit=True) as owner:
        owner.execute(f"ALTER ROLE {name} CONNECTION LIMIT 1")
        engine = process.engine(url, name="test", pool_size=1)
        async with engine.connect() as connection:
            assert (await connection.execute(text("SELECT pg_sleep(2) IS NOT NULL"))).scalar_one()
        await engine.dispose()


async def test_a_command_that_connects_for_long_says_so(
    proxied: tuple[TcpProxy, AsyncEngine], said: list[str], monkeypatch: Any
):
    proxy, engine = proxied
    monkeypatch.setattr("outboxkit.database.connections.SLOW_SECONDS", 0.1)
    proxy.swallow()
    connecting = asyncio.create_task(connected(engine))
    (line,) = await eventually_async(lambda: matching(said, "takes long"))
    assert line == f"connecting to the database at 127.0.0.1:{proxy.port} takes long. {silence.CAUSES}"
    proxy.release()
    await connecting


async def test_a_worker_that_gets_no_session_of_a_pooler_logs_for_what_it_waits(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
):
    """The pooler has two, and the third is for the thread of a handler."""
    monkeypatch.setattr("outboxkit.database.connections.SLOW_SECONDS", 0.1)
    pooler = provide_pooler(postgresql_url, mode="session", size=2)
    pooler.start()
    engine = process.engine(pooler.url, name="outboxkit test")
    try:
        twin = await engines.beside(engine, pool_size=1)
        async with engine.connect(), engine.connect():
            with capture_logs() as logs:
                connecting = asyncio.create_task(asyncio.to_thread(twin.connect))
                (line,) = await eventually_async(lambda: matching([each["event"] for each in logs], "takes long"))
        assert silence.CAUSES in line
        await engine.dispose()
        (await connecting).close()
        twin.dispose()
    finally:
        pooler.close()


async def connected(engine: AsyncEngine) -> None:
    async with engine.connect():
        pass


async def test_doctor_does_not_wait_for_a_silent_server_in_each_of_its_checks(proxied: tuple[TcpProxy, AsyncEngine]):
    proxy, engine = proxied
    url = engine.url.render_as_string(hide_password=False)
    proxy.swallow()
    installation = Installation(settings.load({"database_url": url}), engine, limits=Limits(check_seconds=0.2))
    report = await examine(installation, ["database"])
    assert [(each.code, each.severity) for each in report.findings] == [("database-away", "problem")]
    assert report.passed == ()


@pytest.mark.parametrize(
    ("where", "in_loop"),
    [
        ("statement", True),
        ("commit", False),
        pytest.param("statement", False, marks=pytest.mark.night),
        pytest.param("commit", True, marks=pytest.mark.night),
    ],
)
async def test_a_silent_connection_is_no_failure_of_the_message(
    proxied: tuple[TcpProxy, AsyncEngine], broker: PlainClient, where: str, in_loop: bool
):
    proxy, engine = proxied
    ran: list[int] = []

    @inbox_handler("FallSilent")
    def fall_silent(session: Session, event: Ordered) -> None:
        outbox.add(session, Billed(event.number))
        session.flush()
        ran.append(event.number)
        if len(ran) == 1:
            proxy.silence()
            if where == "statement":
                session.execute(ONE)

    async with starter(engine, broker, in_loop=in_loop)(fall_silent) as running:
        publish(broker, 7, "m")
        await running.reaches(processed=1)
    assert ran == [7, 7]


@pytest.mark.parametrize("is_slow", [False, True])
async def test_a_connection_that_was_just_opened_is_used_whatever_another_one_did(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch, is_slow: bool
):
    """Also if it took long to set its session up, over a slow network."""
    monkeypatch.setattr(silence, "last_end", lambda: float("inf"))
    if is_slow:
        monkeypatch.setattr(connections, "JUST_SECONDS", 0)
    engine = process.engine(postgresql_url, name="test")
    async with engine.connect() as connection:
        assert (await connection.execute(ONE)).scalar_one() == 1
    await engine.dispose()


async def test_new_connections_that_end_before_their_first_use_are_an_outage(postgresql_url: str):
    engine = process.engine(postgresql_url, name="test")
    event.listen(engine.sync_engine, "connect", lambda connection, _: connection.driver_connection.pgconn.finish())
    with pytest.raises(OperationalError) as caught:
        await engine.connect()
    assert what_is_away(caught.value) == "database"
    await engine.dispose()
