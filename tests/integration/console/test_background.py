"""Operations in the background on real servers: their process is killed, and another one goes on."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import ids
from outboxkit.operators.audit import RunningAction
from outboxkit.operators.background import Background, Plan, begin_operation
from outboxkit.operators.replay import ReplaySelection
from outboxkit.runtime.settings import Settings
from outboxkit.tables import audit, operation, outbox, published
from tests.integration.operators.dead_rows import dead, fill
from tests.integration.operators.test_replay import fill as keep
from tests.processes import COMMAND
from tests.support.ledger_requests import waiting
from tests.support.plain_client import PlainClient
from tests.unit.console.test_operations import fields_of
from tests.unit.shop import NOW

MANY, KEPT = 4000, 1600


@contextlib.asynccontextmanager
async def started(environment: dict[str, str]) -> AsyncIterator[tuple[httpx.AsyncClient, int]]:
    """A console in a process of its own, a client that has logged in, and the process id."""
    command = [COMMAND, "console", "--operate", "--port", "0", "--by", "ann"]
    process = await asyncio.create_subprocess_exec(
        *command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        link = (await process.stdout.readline()).decode().split()[-1]
        async with httpx.AsyncClient(base_url=link.partition("/login")[0], timeout=30) as client:
            await client.get(link, follow_redirects=True)
            yield client, process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        assert await process.wait() in (0, -signal.SIGKILL)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.05)


async def begin(client: httpx.AsyncClient, path: str, **more: str) -> str:
    fields = fields_of((await client.get(path)).text) | more
    answer = await client.post(path.partition("?")[0], data=fields)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def expire_lease(engine: Engine) -> None:
    """What 15 seconds do."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE outboxkit_operation SET leased_until = now() - interval '1 second'"))


@pytest.fixture
def environment(postgresql_url: str, broker: PlainClient) -> dict[str, str]:
    return {"OUTBOXKIT_DATABASE_URL": postgresql_url, "OUTBOXKIT_BROKER_URL": broker.url}


async def test_a_killed_console_loses_no_dead_letter_and_repeats_none(pg_engine: Engine, environment: dict[str, str]):
    fill(pg_engine, [dead(number) for number in range(1, MANY + 1)])
    async with started(environment) as (client, pid):
        await begin(client, "/dead/plan?all=yes", rate="2000")
        await until(lambda: _affected(pg_engine) > 0)
        os.kill(pid, signal.SIGKILL)
    assert 0 < _affected(pg_engine) < MANY
    async with started(environment), started(environment):
        expire_lease(pg_engine)
        await until(lambda: _affected(pg_engine) == MANY)
        with pg_engine.connect() as connection:
            await until(lambda: connection.execute(select(func.count()).select_from(operation)).scalar_one() == 0)
    with pg_engine.connect() as connection:
        (row,) = connection.execute(select(audit)).all()
        assert (row.result, row.affected) == ("done", MANY)
        assert connection.execute(select(func.count()).select_from(outbox)).scalar_one() == MANY


async def test_kept_messages_reach_their_queue_although_a_console_is_killed(
    pg_engine: Engine, environment: dict[str, str], broker: PlainClient
):
    broker.bind("nothing")
    keep(pg_engine, range(1, KEPT + 1))

    def row() -> Any:
        with pg_engine.connect() as connection:
            return connection.execute(select(audit.c.affected, audit.c.result)).one()

    async with started(environment) as (client, pid):
        await begin(client, f"/replay?to_queue={broker.queue}", rate="400")
        await until(lambda: row().affected > 0)
        os.kill(pid, signal.SIGKILL)
    assert row().affected < KEPT
    expire_lease(pg_engine)
    async with started(environment):
        await until(lambda: row().result is not None)
    assert tuple(row()) == (KEPT, "done")
    ids = [one.properties.message_id for one in broker.take_all()]
    assert set(ids) == {f"m-{number}" for number in range(1, KEPT + 1)}
    assert len(ids) < KEPT + 1300
    with pg_engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(published)).scalar_one() == KEPT


async def test_a_form_that_is_sent_twice_at_once_replays_once(
    pg_engine: Engine, environment: dict[str, str], broker: PlainClient
):
    broker.bind("nothing")
    keep(pg_engine, range(1, 11))
    async with started(environment) as (client, _):
        fields = fields_of((await client.get(f"/replay?to_queue={broker.queue}")).text)
        with pg_engine.begin() as connection:  # both wait in their transactions
            connection.execute(text("LOCK TABLE outboxkit_operation"))
            sent = [asyncio.create_task(client.post("/replay", data=fields)) for _ in range(2)]
            await asyncio.sleep(1)
        (place,) = {answer.headers["location"] for answer in await asyncio.gather(*sent)}
        await until(lambda: _affected(pg_engine) == 10)
        assert (await client.post("/replay", data=fields)).headers["location"] == place
    with pg_engine.connect() as connection:
        assert connection.execute(select(audit.c.affected)).scalars().all() == [10]
    assert len(broker.take_all()) == 10


async def test_a_console_that_lost_its_lease_changes_nothing_more(pg_engine: Engine, environment: dict[str, str]):
    fill(pg_engine, [dead(number) for number in range(1, MANY + 1)])
    async with started(environment) as (client, _):
        place = await begin(client, "/dead/plan?all=yes", rate="100")
        await until(lambda: _affected(pg_engine) > 0)
        with pg_engine.begin() as connection:  # as if another one had taken it while this one was frozen
            connection.execute(
                text("UPDATE outboxkit_operation SET worker = 'other', leased_until = now() + interval '1 hour'")
            )
        before = _affected(pg_engine)
        await until(lambda: "running" in httpx.get(str(client.base_url.join(place)), cookies=client.cookies).text)
        await asyncio.sleep(3)
        assert _affected(pg_engine) == before


class Leaving(Background):
    """Publishes five messages when it may, and then takes long."""

    may = asyncio.Event()

    async def _do(self, _: Plan, __: int | None, running: RunningAction, ___: asyncio.Event) -> None:
        await self.may.wait()
        running.uncounted, running.place = 5, (NOW, 5)
        await asyncio.Event().wait()


async def test_a_console_that_stops_while_it_renews_its_lease_counts_once(
    pg_engine: Engine, async_pg_engine: AsyncEngine, postgresql_url: str
):
    with pg_engine.begin() as connection:
        plan = Plan("republish", "ann", kept=ReplaySelection(), to_queue="q")
        begin_operation(connection, plan, total=10, form=ids.new())
    leaving = Leaving(async_pg_engine, async_pg_engine, Settings(database_url=SecretStr(postgresql_url)))
    leaving.wake()
    with pg_engine.connect() as holder:
        await until(lambda: _leased(pg_engine))
        # in a thread: the row may be locked by a renewal, which needs this event loop to commit
        await asyncio.to_thread(holder.execute, select(operation).with_for_update())
        leaving.may.set()
        await until(lambda: waiting(pg_engine) > 0)
        closing = asyncio.create_task(leaving.close())
        await asyncio.sleep(0.5)
    await closing
    assert (_affected(pg_engine), _leased(pg_engine)) == (5, False)


class Ending(Background):
    """Fails, or has done all, when it may."""

    def __init__(self, *engines: AsyncEngine, error: Exception | None) -> None:
        super().__init__(*engines, Settings(database_url=SecretStr("postgresql://")))
        self.error, self.may, self.ended = error, asyncio.Event(), asyncio.Event()

    async def _do(self, _: Plan, __: int | None, ___: RunningAction, ____: asyncio.Event) -> None:
        await self.may.wait()
        if self.error is not None:
            raise self.error

    def _done(self, task: asyncio.Task[None]) -> None:
        super()._done(task)
        self.ended.set()


@pytest.mark.parametrize("error", [None, ValueError("boom")])
async def test_a_console_that_lost_its_lease_does_not_end_the_operation(
    pg_engine: Engine, async_pg_engine: AsyncEngine, error: Exception | None
):
    with pg_engine.begin() as connection:
        begin_operation(connection, Plan("republish", "ann", kept=ReplaySelection()), total=10, form=ids.new())
    ending = Ending(async_pg_engine, async_pg_engine, error=error)
    ending.wake()
    await until(lambda: _leased(pg_engine))
    with pg_engine.begin() as connection:  # as if another one had taken it while this one was frozen
        connection.execute(text("UPDATE outboxkit_operation SET worker = 'other', leased_until = now() + '1 hour'"))
    ending.may.set()
    await ending.ended.wait()
    await ending.close()
    with pg_engine.connect() as connection:
        assert connection.execute(select(operation.c.worker)).scalars().all() == ["other"]
        assert connection.execute(select(audit.c.result)).scalars().all() == [None]


def _leased(engine: Engine) -> bool:
    with engine.connect() as connection:
        return connection.execute(select(operation.c.leased_until)).scalar_one() is not None


def _affected(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(select(audit.c.affected)).scalar_one())


async def test_a_second_signal_ends_the_console_without_a_traceback(environment: dict[str, str]):
    process = await asyncio.create_subprocess_exec(
        *(COMMAND, "console", "--port", "0"),
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    link = (await process.stdout.readline()).decode().split()[-1]
    async with httpx.AsyncClient() as client:
        await client.get(link)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, said = await process.communicate()
    assert "Traceback" not in said.decode()
