"""SIGKILL of the server at every database statement of a request in steps, between the steps, and around its call."""

from pathlib import Path

import httpx
from sqlalchemy import Engine, func, select

from tests.integration.idempotent_server import serve
from tests.integration.idempotent_shop import Order
from tests.night import by_day_on
from tests.requests import end_leases


@by_day_on("postgresql")
def test_a_crash_at_any_place_and_a_retry_make_one_effect(database_url: str, engine: Engine, tmp_path: Path):
    calls = tmp_path / "calls"
    with (
        serve(database_url, calls, lease=600) as servers,
        httpx.Client(base_url=servers.url, timeout=60) as client,
    ):

        def post(number: int) -> httpx.Response:
            headers = {
                "Idempotency-Key": f"key-{number}",
                "X-User": "ada",
                "X-Order": f"{number}",
                "Connection": "close",
            }
            return client.post("/steps/orders", json={"customer": "ada"}, headers=headers)

        place = 0
        for place, answer in servers.survivors(post, lambda: end_leases(engine)):
            assert (answer.status_code, answer.json()) == (201, {"order_id": place, "state": "charged"}), place
            made = calls.read_text().split()
            assert len(set(made)) == place, "every call of a request has the same key"
            with engine.connect() as connection:
                assert connection.scalar(select(func.count()).select_from(Order)) == place
    assert place >= 20, "begin, two steps, the order and the answer, each in a transaction; and between them"
    made = calls.read_text().split()
    again = {key for key in made if made.count(key) > 1}
    assert 1 <= len(again) < place / 2, "only a crash between a call and its record repeats it"
