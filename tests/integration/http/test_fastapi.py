"""Idempotent endpoints behind a real server: many requests at once, answers that get lost, and the order of commit."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, func, select

from outboxkit import tables
from tests.integration.http.idempotent_server import Servers, serve
from tests.integration.http.idempotent_shop import Order
from tests.support.night import by_day_on

PATHS = ["/sync/orders", "/async/orders"]
AT_ONCE = 50


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[Servers]:
    with serve(database_url, tmp_path / "calls") as started:
        started.start()
        yield started


@pytest.fixture
async def client(server: Servers) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as made:
        yield made


def order(customer: str = "ada", *, key: str = "k", user: str = "ada", **more: Any) -> dict[str, Any]:
    return {"json": {"customer": customer, **more}, "headers": {"Idempotency-Key": key, "X-User": user}}


def count(engine: Engine, table: Any = Order.__table__) -> int:
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(table)) or 0


@pytest.mark.parametrize("path", PATHS)
async def test_a_repetition_may_wait_for_the_first(path: str, database_url: str, tmp_path: Path, engine: Engine):
    with serve(database_url, tmp_path / "calls", wait=30) as server:
        server.start()
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            answers = await asyncio.gather(*(client.post(path, **order()) for _ in range(10)))
    assert Counter((a.status_code, "idempotency-replayed" in a.headers) for a in answers) == {
        (201, False): 1,
        (201, True): 9,
    }
    assert count(engine) == 1


@by_day_on("postgresql")
@pytest.mark.parametrize("path", PATHS)
async def test_many_requests_do_not_wait_for_each_other_in_a_circle(
    path: str, client: httpx.AsyncClient, engine: Engine
):
    """More than there are connections and threads: what has a connection must get a thread, too."""
    answers = await asyncio.gather(*(client.post(path, **order(key=f"{n}")) for n in range(2 * AT_ONCE)))
    assert Counter(a.status_code for a in answers) == {201: 2 * AT_ONCE}
    assert count(engine) == 2 * AT_ONCE


@pytest.mark.parametrize("path", PATHS)
async def test_a_corrected_request_may_keep_its_key(path: str, client: httpx.AsyncClient, engine: Engine):
    assert (await client.post(path, **order(""))).status_code == 422
    assert (await client.post(path, **order("ada"))).status_code == 201
    assert count(engine) == 1


@pytest.mark.parametrize("path", PATHS)
async def test_a_defect_is_forgotten(path: str, client: httpx.AsyncClient, engine: Engine):
    assert (await client.post(path, **order("crash"))).status_code == 500
    assert (await client.post(path, **order("raise 503"))).status_code == 503
    assert count(engine, tables.idempotency) == count(engine) == 0
    assert (await client.post(path, **order("ada"))).status_code == 201


@pytest.mark.parametrize("path", PATHS)
async def test_a_raised_conflict_comes_again_and_did_nothing(path: str, client: httpx.AsyncClient, engine: Engine):
    answers = await asyncio.gather(*(client.post(path, **order("raise 409")) for _ in range(10)))
    answers.append(await client.post(path, **order("raise 409")))
    told = [a for a in answers if a.headers.get("x-why") == "asked for"]
    assert {(a.status_code, a.text) for a in told} == {(409, '{"detail":"no such luck"}')}
    assert answers[-1].headers["idempotency-replayed"] == "true"
    assert len([a for a in told if "idempotency-replayed" not in a.headers and "idempotency-expires" in a.headers]) == 1
    assert (count(engine), count(engine, tables.outbox), count(engine, tables.idempotency)) == (0, 0, 1)


@pytest.mark.parametrize("path", PATHS)
async def test_whoever_has_the_answer_finds_the_row(path: str, client: httpx.AsyncClient, engine: Engine):
    for number in range(20):
        answer = await client.post(path, **order(key=f"key-{number}"))
        with engine.connect() as connection:
            found = connection.scalar(select(Order.id).where(Order.id == answer.json()["order_id"]))
        assert found is not None


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_of_a_mebibyte_passes_and_a_longer_one_does_not(
    path: str, client: httpx.AsyncClient, engine: Engine
):
    empty = len(client.build_request("POST", path, **order(note="")).read())
    largest = order(note="x" * (1024 * 1024 - empty))
    answers = [await client.post(path, **largest) for _ in range(2)]
    assert [(a.status_code, a.headers.get("idempotency-replayed")) for a in answers] == [(201, None), (201, "true")]
    assert (await client.post(path, **order(note="x" * (1024 * 1024 - empty + 1)))).status_code == 413
    assert count(engine) == 1
