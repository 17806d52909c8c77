"""What the admin port tells of a worker: whether it is live and ready, also while the worker's event loop hangs."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.database import silence
from outboxkit.runtime import admin, process, settings
from outboxkit.runtime.admin import pages
from outboxkit.runtime.admin.pages import Heartbeat, pages_of, why_stuck
from outboxkit.runtime.health import Health
from outboxkit.runtime.settings import Settings
from outboxkit.runtime.urls import ListenAddress
from outboxkit.telemetry import scrape
from tests.support.admin_client import Answered, get
from tests.support.polling import eventually

FREE = {"admin_port": "0"}
FINE = Health("relay", publishing=1.0, without_turn=2.0, servers={"broker": None})


@dataclass
class Stub:
    """A worker whose health a test chooses."""

    engine: AsyncEngine
    state: Health = field(default_factory=lambda: FINE)

    def health(self) -> Health:
        return self.state


def chosen(database_url: str, **options: Any) -> Settings:
    return settings.load({"database_url": database_url, "broker_url": "amqp://user:SECRET@mq/", **FREE, **options})


async def asked(address: ListenAddress | None, path: str) -> Answered:
    assert address is not None
    return await asyncio.to_thread(get, address, path)


@pytest.fixture
async def stub(database_url: str) -> Any:
    engine = process.engine(database_url, name="test")
    yield Stub(engine)
    await engine.dispose()


@pytest.mark.parametrize(
    ("health", "age", "told"),
    [
        (FINE, 9.9, None),
        (FINE, 10.1, "the event loop has not turned for 10 s"),
        (Health("relay", publishing=25.1), 0.0, "one publish has lasted 25 s; 25 s are the limit"),
        (Health("relay", publishing=24.9), 0.0, None),
        (Health("relay", without_turn=85.1), 0.0, "the relay has begun no turn for 85 s"),
        (Health("relay", without_turn=84.9), 0.0, None),
        (Health("retention"), 0.0, None),
    ],
)
def test_a_worker_is_stuck_after_its_limits(health: Health, age: float, told: str | None):
    found = why_stuck(health, age, 25.0)
    assert (found is None) if told is None else str(found).startswith(told)


async def test_a_heartbeat_ages_while_the_loop_hangs_and_survives_a_handler_that_cancels_all_tasks():
    now = 0.0
    heartbeat = Heartbeat(asyncio.get_running_loop(), clock=lambda: now)
    heartbeat.start()
    now = 12.0
    assert heartbeat.age == 12.0
    heartbeat.start()
    assert heartbeat.age == 0.0
    timer = heartbeat._timer
    assert timer is not None
    assert not any("Heartbeat" in repr(task) for task in asyncio.all_tasks())
    heartbeat.stop()
    assert timer.cancelled()


STUCK = "one publish has lasted 26 s; 25 s are the limit"


@pytest.mark.parametrize(
    ("health", "live", "ready"),
    [
        (FINE, ["live"], ["ready", "database: connected", "broker: connected"]),
        (
            Health("consumer", servers={"broker": "not connected"}),
            ["live"],
            ["not ready", "database: connected", "broker: not connected"],
        ),
        (
            Health("relay", servers={"broker": None, "database": "it is read-only"}),
            ["live"],
            ["not ready", "database: it is read-only", "broker: connected"],
        ),
        (
            Health("relay", publishing=26.0),
            ["not live", STUCK],
            ["not ready", STUCK, "database: connected"],
        ),
    ],
    ids=["healthy", "without its broker", "in an outage of a database that can be read", "stuck"],
)
async def test_a_worker_is_live_and_ready(
    database_url: str, stub: Stub, health: Health, live: list[str], ready: list[str]
):
    stub.state = health
    async with admin.serving(chosen(database_url), stub) as address:
        for path, lines in (("/livez", live), ("/readyz", ready)):
            answer = await asked(address, path)
            assert (answer.status, answer.lines) == (503 if lines[0].startswith("not ") else 200, lines)


async def test_one_with_a_silent_statement_is_live_and_not_ready(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(silence, "longest", lambda: 41.2)
    engine = process.engine("postgresql://app@127.0.0.1:1/shop", name="test")
    made = pages_of(Stub(engine, FINE), Heartbeat(asyncio.get_running_loop()), 25.0, None)
    live, ready = made["/livez"](), made["/readyz"]()
    assert (live.status, ready.status) == (200, 503)
    assert b"database: a statement has got no answer for 41 s" in ready.body


@pytest.mark.parametrize(
    ("age", "told"), [(0.0, "Connection refused"), (12.0, "not asked: the event loop has not turned for 12 s")]
)
async def test_a_server_that_is_away_or_that_nobody_can_ask_is_told(age: float, told: str):
    now = 0.0
    away = process.engine("postgresql://app:SECRET@127.0.0.1:1/shop", name="test")
    heartbeat = Heartbeat(asyncio.get_running_loop(), clock=lambda: now)
    made = pages_of(Stub(away, Health("retention")), heartbeat, 25.0, None)
    now = age
    page = await asyncio.to_thread(made["/readyz"])
    *_, line = page.body.decode().splitlines()
    assert (page.status, line.partition(": ")[0]) == (503, "database")
    assert told in line
    assert "SECRET" not in line
    await away.dispose()


async def test_a_scrape_that_hangs_or_fails_holds_up_no_other_page(
    database_url: str, stub: Stub, monkeypatch: pytest.MonkeyPatch
):
    gate, began = threading.Event(), threading.Event()

    def wait() -> bytes:
        began.set()
        gate.wait()
        raise ValueError("SECRET")

    monkeypatch.setattr(scrape, "text", wait)
    async with admin.serving(chosen(database_url), stub) as address:
        hanging = asyncio.create_task(asked(address, "/metrics"))
        await asyncio.to_thread(began.wait)
        assert (await asked(address, "/livez")).status == 200
        gate.set()
        answer = await hanging
    assert (answer.status, answer.lines) == (500, ["an error that nobody expected: the log has it"])


@contextmanager
def loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_it_answers_while_the_workers_event_loop_hangs(database_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pages, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(pages, "LATE_SECONDS", 0.5)
    hangs_until = threading.Event()
    worker = Stub(process.engine(database_url, name="test"))
    serving = admin.serving(chosen(database_url), worker)
    with loop_in_a_thread() as loop:

        def run(make: Callable[[], Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(make(), loop).result(60)

        address = run(serving.__aenter__)
        eventually(lambda: get(address, "/livez").status, lambda status: status == 200)
        loop.call_soon_threadsafe(hangs_until.wait)
        try:
            hung = eventually(lambda: get(address, "/livez"), lambda answer: answer.status == 503)
            assert hung.lines[1].startswith("the event loop has not turned for")
            assert get(address, "/readyz").status == 503
        finally:
            hangs_until.set()
        eventually(lambda: get(address, "/livez").status, lambda status: status == 200)
        run(lambda: serving.__aexit__(None, None, None))
        run(worker.engine.dispose)
