"""The server of a Flask shop is killed at every moment of a request; the client retries, and there is one effect."""

import contextlib
import subprocess
from itertools import count

import httpx
from sqlalchemy import func, select

from outboxkit import tables
from tests.integration.flask_shop import Order, Shop, serving
from tests.night import by_day_on
from tests.polling import DEADLINE_SECONDS, eventually
from tests.processes import ROOT, programs

MOMENTS = 10
"""Of a request at least: four statements with a moment before and after each, one before the commit and one behind."""


def order(url: str, key: str) -> httpx.Response:
    return httpx.post(f"{url}/orders", json={"customer": key}, headers={"Idempotency-Key": f'"{key}"'}, timeout=60)


def dies_at(moment: int, database_url: str, key: str) -> bool:
    """Whether a new server, told to, died under the request."""
    program = [programs() / "python", "-m", "tests.integration.flask_shop", database_url, str(moment)]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            with contextlib.suppress(httpx.TransportError):
                assert order(f"http://127.0.0.1:{port}", key).status_code == 201
                return False
            return server.wait(DEADLINE_SECONDS) == -9
        finally:
            server.kill()


def effects(shop: Shop, key: str) -> tuple[int, int, int]:
    orders = select(func.count()).select_from(Order).where(Order.customer == key)
    messages = select(func.count()).select_from(tables.outbox)
    keys = select(func.count()).select_from(tables.idempotency).where(tables.idempotency.c.key == key)
    with shop.engine.connect() as connection:
        return tuple(connection.scalar(statement) or 0 for statement in (orders, messages, keys))  # type: ignore[return-value]


def placed(shop: Shop, key: str) -> int:
    with shop.engine.connect() as connection:
        return connection.execute(select(Order.id).where(Order.customer == key)).scalar_one()


@by_day_on("sqlite")
def test_a_server_killed_at_any_moment(database_url: str):
    with serving(database_url) as (shop, url):
        for moment in count(1):
            key = f"killed-at-{moment}"
            died = dies_at(moment, database_url, key)
            answer = eventually(lambda key=key: order(url, key), lambda found: found.status_code != 409)
            assert answer.status_code == 201, key
            assert effects(shop, key) == (1, moment, 1), key
            assert answer.json() == {"order_id": placed(shop, key)}, key
            if not died:  # there are no more moments than those before
                assert "Idempotency-Replayed" in answer.headers
                break
    assert moment > MOMENTS
