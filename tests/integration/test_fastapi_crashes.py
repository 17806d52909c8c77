"""SIGKILL of the server at every database statement of a request in atomic mode, and then the client's retry."""

from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, func, select

from outboxkit import tables
from tests.integration.idempotent_server import serve
from tests.integration.idempotent_shop import Order


def count(engine: Engine, table: object) -> int:
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(table)) or 0


@pytest.mark.parametrize(
    ("database_url", "path"),
    [
        *(("postgresql", "/async/orders"), ("sqlite", "/sync/orders")),
        *(
            pytest.param(*other, marks=pytest.mark.night)
            for other in (("postgresql", "/sync/orders"), ("sqlite", "/async/orders"))
        ),
    ],
    indirect=["database_url"],
)
def test_a_crash_at_any_place_and_a_retry_make_one_effect(path: str, database_url: str, engine: Engine, tmp_path: Path):
    replayed: set[bool] = set()
    with (
        serve(database_url, tmp_path / "calls") as servers,
        httpx.Client(base_url=servers.url, timeout=60) as client,
    ):

        def post(number: int) -> httpx.Response:
            headers = {"Idempotency-Key": f"key-{number}", "X-User": "ada", "Connection": "close"}
            return client.post(path, json={"customer": f"customer {number}"}, headers=headers)

        place = 0
        for place, answer in servers.survivors(post):
            assert answer.status_code == 201, (place, answer.text)
            replayed.add("idempotency-replayed" in answer.headers)
            for table in (Order, tables.outbox, tables.idempotency):
                assert count(engine, table) == place, (place, table)
    assert place >= 10, (
        "begin, order, message, answer, each with a before and an after; the commit, and what is behind it"
    )
    assert replayed == {True, False}, "crashes came before the commit and after it"
