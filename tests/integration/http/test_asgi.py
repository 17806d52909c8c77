"""Requests in steps behind a real server: many at once, and leases that end under a slow run."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, func, select

from tests.integration.http.idempotent_server import Servers, serve
from tests.integration.http.idempotent_shop import Order
from tests.support.polling import eventually, eventually_async

AT_ONCE = 50
PATH = "/steps/orders"


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture
def server(database_url: str, calls: Path, request: pytest.FixtureRequest) -> Iterator[Servers]:
    """Its leases last a minute, or as many seconds as the test's own parameter says."""
    with serve(database_url, calls, lease=getattr(request, "param", 60)) as started:
        started.start()
        yield started


@pytest.fixture
async def client(server: Servers) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as made:
        yield made


def order(customer: str = "ada", *, key: str = "k", **more: Any) -> dict[str, Any]:
    headers = {"Idempotency-Key": key, "X-User": "ada", "X-Order": "7", **more}
    return {"json": {"customer": customer}, "headers": headers}


def made_calls(calls: Path) -> list[str]:
    return calls.read_text().split() if calls.exists() else []


def count(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(Order)) or 0


@pytest.mark.parametrize("server", [1], indirect=True)
async def test_a_lease_that_ends_under_a_slow_run_whose_follower_ends_first(
    client: httpx.AsyncClient, engine: Engine, calls: Path, tmp_path: Path
):
    """The first run is held at its call; its answer is then the one of the run that took over."""
    gate = tmp_path / "gate"
    slow = asyncio.create_task(client.post(PATH, **order(**{"X-Gate": str(gate)})))
    await eventually_async(lambda: asyncio.to_thread((tmp_path / "gate.reached").exists))
    assert (await client.post(PATH, **order())).status_code == 409
    second = await eventually_async(lambda: client.post(PATH, **order()), lambda answer: answer.status_code != 409)
    assert (second.status_code, second.headers.get("idempotency-replayed")) == (201, None)
    gate.touch()
    first = await slow
    assert (first.status_code, first.content) == (201, second.content)
    assert first.headers["idempotency-replayed"] == "true"
    assert (count(engine), set(made_calls(calls))) == (1, {made_calls(calls)[0]}), "both called, under one key"


@pytest.mark.parametrize("server", [1], indirect=True)
async def test_a_lease_that_ends_under_a_slow_run_whose_follower_is_slow_too(
    client: httpx.AsyncClient, engine: Engine, tmp_path: Path
):
    gates = [tmp_path / "first", tmp_path / "second"]
    first = asyncio.create_task(client.post(PATH, **order(**{"X-Gate": str(gates[0])})))
    await eventually_async(lambda: asyncio.to_thread((tmp_path / "first.reached").exists))
    asked = order(**{"X-Gate": str(gates[1])})
    tries: list[asyncio.Task[httpx.Response]] = []

    async def second_runs() -> bool:
        if not tries or tries[-1].done():
            tries.append(asyncio.create_task(client.post(PATH, **asked)))
        return (tmp_path / "second.reached").exists()

    await eventually_async(second_runs)
    gates[0].touch()
    assert (await first).status_code == 409, "the answer is not the first run's to give any more"
    gates[1].touch()
    assert (await tries[-1]).status_code == 201
    assert eventually(lambda: count(engine)) == 1
