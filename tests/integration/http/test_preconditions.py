"""If-Match over HTTP: of all who change the same version, one succeeds."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from sqlalchemy import select

from tests.integration.http.flask_shop import Order, Shop, serving
from tests.support.polling import DEADLINE_SECONDS

AT_ONCE = 20


@pytest.fixture
def running(database_url: str) -> Iterator[tuple[Shop, httpx.Client]]:
    with serving(database_url) as (shop, url), httpx.Client(base_url=url, timeout=60) as client:
        assert client.post("/orders", json={"customer": "Ada"}, headers=key("first")).headers["ETag"] == '"1"'
        yield shop, client


def key(text: str, **more: str) -> dict[str, str]:
    return {"Idempotency-Key": text, **{name.replace("_", "-"): value for name, value in more.items()}}


def at_once(number: int, call: Callable[[int], httpx.Response]) -> list[httpx.Response]:
    barrier = threading.Barrier(number)

    def one(index: int) -> httpx.Response:
        barrier.wait(DEADLINE_SECONDS)
        return call(index)

    with ThreadPoolExecutor(number) as threads:
        return list(threads.map(one, range(number)))


def problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["Content-Type"] == "application/problem+json"
    document = answer.json()
    assert document["status"] == answer.status_code
    return answer.status_code, document["type"].rpartition(":")[2]


def committed(shop: Shop) -> tuple[str, int]:
    with shop.engine.connect() as connection:
        return tuple(connection.execute(select(Order.customer, Order.version)).one())  # type: ignore[return-value]


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_a_version_is_changed_by_who_has_seen_it(running: tuple[Shop, httpx.Client], method: str):
    """With an idempotency key and without."""
    shop, client = running

    def change(name: str, **headers: str) -> httpx.Response:
        return client.request(method, "/orders/1", json={"customer": "Eve"}, headers=key(name, **headers))

    assert problem(change("a")) == (428, "precondition-required")
    assert problem(change("a", If_Match='W/"1"')) == (412, "precondition-failed")
    assert problem(change("a", If_Match='"2"')) == (412, "precondition-failed")
    assert problem(change("a", If_Match="1")) == (400, "precondition-invalid")
    assert committed(shop) == ("Ada", 1)
    changed = change("a", If_Match='"0", "1"')
    assert (changed.is_success, changed.headers["ETag"]) == (True, '"2"')
    assert committed(shop) == ("Eve", 2)


def test_a_retry_is_no_second_change(running: tuple[Shop, httpx.Client]):
    """Its tag is an old one by then, and it gets the answer that it missed."""
    shop, client = running
    headers = key("a", If_Match='"1"')
    first, second = (client.patch("/orders/1", json={"customer": "Eve"}, headers=headers) for _ in range(2))
    assert (first.status_code, second.status_code, first.headers["ETag"]) == (200, 200, second.headers["ETag"])
    assert second.headers["Idempotency-Replayed"] == "true"
    assert committed(shop) == ("Eve", 2)


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_of_many_at_once_one_succeeds(running: tuple[Shop, httpx.Client], method: str):
    shop, client = running

    def change(index: int) -> httpx.Response:
        headers = key(f"k{index}", If_Match='"1"')
        return client.request(method, "/orders/1", json={"customer": f"c{index}"}, headers=headers)

    answers = at_once(AT_ONCE, change)
    assert Counter(answer.is_success for answer in answers) == {True: 1, False: AT_ONCE - 1}
    assert {problem(answer) for answer in answers if answer.is_error} == {(412, "precondition-failed")}
    assert committed(shop) == (f"c{[answer.is_success for answer in answers].index(True)}", 2)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_who_is_overtaken_after_the_check_gets_a_412_too(running: tuple[Shop, httpx.Client], method: str):
    """On SQLite nobody is: there is one writer."""
    shop, client = running
    headers = key("a", If_Match='"1"', X_Act="race")
    assert problem(client.request(method, "/orders/1", json={"customer": "Eve"}, headers=headers)) == (
        412,
        "precondition-failed",
    )
    assert committed(shop) == ("somebody else", 2)
    again = client.request(method, "/orders/1", json={"customer": "Eve"}, headers=key("a", If_Match='"2"'))
    assert again.is_success, "nothing was remembered"
