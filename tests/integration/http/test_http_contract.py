"""What every integration keeps: many requests at once, lost answers, and SIGKILL of the server at any place."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from sqlalchemy import Engine, func, select

from outboxkit import tables
from tests.integration.http.idempotent_server import Servers, serve
from tests.integration.http.idempotent_shop import LEASE, Order
from tests.support.ledger_requests import end_leases
from tests.support.night import by_day_on
from tests.support.polling import eventually

AT_ONCE = 50
night = pytest.mark.night


class Door(NamedTuple):
    """An endpoint; `in_steps`: its call outside is a line in a file."""

    path: str
    in_steps: bool = False
    shop: str = "fastapi"


SYNC, ASYNC, STEPS = Door("/sync/orders"), Door("/async/orders"), Door("/steps/orders", in_steps=True)
FLASK = Door("/orders", shop="flask")


def everywhere(by_day: set[tuple[str, Door]]) -> pytest.MarkDecorator:
    """On each database and at each door; what is not listed, by night."""
    return pytest.mark.parametrize(
        ("database_url", "door"),
        [
            pytest.param(
                database, door, id=f"{database} {door.path}", marks=() if (database, door) in by_day else night
            )
            for database in ("postgresql", "sqlite")
            for door in (SYNC, ASYNC, STEPS, FLASK)
        ],
        indirect=["database_url"],
    )


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture
def servers(database_url: str, door: Door, calls: Path) -> Iterator[Servers]:
    with serve(database_url, calls, shop=door.shop) as found:
        yield found


@pytest.fixture
async def client(servers: Servers) -> AsyncIterator[httpx.AsyncClient]:
    servers.start()
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=servers.url, timeout=60, limits=limits) as made:
        yield made


def order(*, key: str = "k", number: int = 7) -> dict[str, Any]:
    headers = {"Idempotency-Key": key, "X-User": "ada", "X-Order": f"{number}", "Connection": "close"}
    return {"json": {"customer": "ada"}, "headers": headers}


def effects(engine: Engine) -> tuple[int, ...]:
    """Orders, and messages and keys, that are committed."""
    found = (Order, tables.outbox, tables.idempotency)
    with engine.connect() as connection:
        return tuple(connection.scalar(select(func.count()).select_from(table)) or 0 for table in found)


def once(door: Door, times: int = 1) -> tuple[int, ...]:
    return (times, 0 if door.in_steps else times, times)


@everywhere({("postgresql", door) for door in (SYNC, ASYNC, STEPS, FLASK)})
async def test_fifty_identical_requests_at_once(door: Door, client: httpx.AsyncClient, engine: Engine):
    answers = await asyncio.gather(*(client.post(door.path, **order()) for _ in range(AT_ONCE)))
    replays = [a for a in answers if a.headers.get("idempotency-replayed") == "true"]
    refused = [a for a in answers if a.status_code == 409]
    [first] = [a for a in answers if a not in (*replays, *refused)]
    assert first.status_code == 201, Counter(a.status_code for a in answers)
    assert {(a.status_code, a.content) for a in replays} <= {(201, first.content)}
    assert {a.json()["type"].rpartition(":")[2] for a in refused} <= {"in-progress"}
    assert all(1 <= int(a.headers["retry-after"]) <= (LEASE.total_seconds() if door.in_steps else 1) for a in refused)
    assert effects(engine) == once(door)


@by_day_on("postgresql")
@pytest.mark.parametrize("door", [SYNC, ASYNC], ids=str)
async def test_many_requests_do_not_wait_for_each_other_in_a_circle(
    door: Door, client: httpx.AsyncClient, engine: Engine
):
    """More than there are connections and threads: what has a connection must get a thread, too."""
    answers = await asyncio.gather(*(client.post(door.path, **order(key=f"{n}")) for n in range(2 * AT_ONCE)))
    assert Counter(a.status_code for a in answers) == {201: 2 * AT_ONCE}
    assert effects(engine) == once(door, 2 * AT_ONCE)


@everywhere({("postgresql", ASYNC), ("postgresql", FLASK)})
async def test_an_answer_that_was_lost_on_the_wire_comes_again(
    door: Door, servers: Servers, client: httpx.AsyncClient, engine: Engine
):
    """The client sends its request and is gone before the answer."""
    request = client.build_request("POST", door.path, **order())
    with socket.create_connection(("127.0.0.1", int(servers.url.rpartition(":")[2]))) as gone:
        lines = [f"POST {door.path} HTTP/1.1", *(f"{name}: {value}" for name, value in request.headers.items()), "", ""]
        gone.sendall("\r\n".join(lines).encode() + request.read())
    eventually(lambda: effects(engine), lambda found: found == once(door))
    eventually(lambda: state_of_key(engine), lambda state: state == "done")
    answer = await client.post(door.path, **order())
    assert (answer.status_code, answer.headers["idempotency-replayed"]) == (201, "true")
    assert effects(engine) == once(door)


def state_of_key(engine: Engine) -> str | None:
    with engine.connect() as connection:
        return connection.scalar(select(tables.idempotency.c.state))


@everywhere({("postgresql", ASYNC), ("postgresql", STEPS), ("sqlite", FLASK)})
def test_a_crash_at_any_place_and_a_retry_make_one_effect(door: Door, servers: Servers, engine: Engine, calls: Path):
    """Places are before and after each statement and commit, and in steps around the call and between the steps."""
    replayed: set[bool] = set()
    with httpx.Client(base_url=servers.url, timeout=60) as client:

        def post(number: int) -> httpx.Response:
            return client.post(door.path, **order(key=f"key-{number}", number=number))

        place = 0
        for place, answer in servers.survivors(post, lambda: end_leases(engine)):
            assert answer.status_code == 201, (place, answer.text)
            assert effects(engine) == once(door, place), place
            replayed.add("idempotency-replayed" in answer.headers)
    assert place >= (20 if door.in_steps else 10), "an atomic request has four statements, and a commit"
    assert replayed == {True, False}, "crashes came before the commit and after it"
    if door.in_steps:
        made = calls.read_text().split()
        assert len(set(made)) == place, "every call of a request has the same key"
        again = {key for key in made if made.count(key) > 1}
        assert 1 <= len(again) < place / 2, "only a crash between a call and its record repeats it"
