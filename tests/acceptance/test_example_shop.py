"""Example 3, the shop on FastAPI and on Flask: driven by HTTP, and ended as a stranger ends it."""

import json
import re
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.shop_driver import SHOP, Shop, is_problem, ledger, port_is_free, serving
from tests.acceptance.test_examples import fenced, run_script, with_exports
from tests.servers import create_database, drop_database
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually

ONE_BY_DAY = pytest.mark.parametrize("app", ["fastapi", pytest.param("flask", marks=pytest.mark.night)])


@pytest.fixture(scope="module", params=["fastapi on servers", "flask as it comes"])
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """The shop on real servers, with names of its own; and with none."""
    app, folder = request.param.split()[0], tmp_path_factory.mktemp("shop")
    if app == "flask":
        with serving(app, folder) as shop:
            yield shop
        return
    server, name = request.getfixturevalue("postgresql"), f"outboxkit_shop_{secrets.token_hex(6)}"
    client = PlainClient(request.getfixturevalue("rabbitmq").url)
    named = {"BROKER_URL": client.url, "EXCHANGE": client.exchange, "QUEUE": client.queue}
    named["DATABASE_URL"] = create_database(server.url, name)
    with serving(app, folder, {f"OUTBOXKIT_{setting}": value for setting, value in named.items()}) as shop:
        yield shop
    client.clean_up()
    drop_database(server.url, name)


def test_an_order_is_placed_and_shown(shop: Shop):
    ada = shop.client()
    answer = ada.place(customer="Ada Lovelace", total="19.8")
    assert (answer.status_code, answer.headers["ETag"][0]) == (201, '"')
    order = answer.json()["order_id"]
    shown = ada.show(order)
    assert shown.json() == {"order_id": order, "customer": "Ada Lovelace", "total": "19.80", "status": "new"}
    assert shown.headers["ETag"] == answer.headers["ETag"]
    assert answer.headers["Location"] == f"/orders/{order}"


def test_an_order_is_paid_once_and_a_receipt_is_sent(shop: Shop):
    ada = shop.client()
    order = ada.placed()
    paid = ada.pay(order)
    assert (paid.status_code, paid.json()["status"]) == (200, "paying")
    assert ada.pay(order).status_code == 200  # another key, while it is being paid or after
    ada.wait_until_paid(order)
    again = ada.pay(order, amount="19.8")
    assert (again.status_code, again.json()["status"]) == (200, "paid")
    assert [charge["amount"] for charge in ledger(shop.payments_url()) if charge["order_id"] == order] == ["19.80"]
    eventually(lambda: shop.receipts().count(f"order-{order}@example.com"), lambda sent: sent == 1)


def test_moves_that_are_not_allowed_are_conflicts(shop: Shop):
    ada = shop.client()
    order, key = ada.placed(), secrets.token_hex(8)
    refused = ada.pay(order, amount="19.81", key=key)
    assert is_problem(refused, 409)
    assert ada.show(order).json()["status"] == "new"
    again = ada.pay(order, amount="19.81", key=key)  # it is remembered, without any effect
    assert (again.status_code, again.content) == (409, refused.content)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert ada.pay(order).status_code == 200
    ada.wait_until_paid(order)
    assert is_problem(ada.change(order, "Grace", if_match=ada.show(order).headers["ETag"]), 409)
    assert is_problem(ada.change(order, "Grace", if_match="*"), 409)
    assert ada.show(order).json()["customer"] == "Ada"


def test_a_change_needs_the_version_that_was_read(shop: Shop):
    ada = shop.client()
    placed = ada.place()
    order, first = placed.json()["order_id"], placed.headers["ETag"]
    assert is_problem(ada.change(order, "Grace", if_match=None), 428, "precondition-required")
    changed = ada.change(order, "Grace", if_match=first)
    assert (changed.status_code, changed.json()["customer"]) == (200, "Grace")
    assert changed.headers["ETag"] == ada.show(order).headers["ETag"] != first
    assert is_problem(ada.change(order, "Alan", if_match=first), 412, "precondition-failed")
    assert is_problem(ada.change(order, "Alan", if_match=f"W/{changed.headers['ETag']}"), 412, "precondition-failed")
    listed = ada.change(order, "Alan", if_match=f'"no,not-this", {changed.headers["ETag"]}')
    assert (listed.status_code, listed.json()["customer"]) == (200, "Alan")
    assert ada.change(order, "Edsger", if_match="*").status_code == 200


def test_others_see_nothing_of_an_order(shop: Shop):
    ada, eve = shop.client(), shop.client()
    order = ada.placed()
    for answer in (eve.show(order), eve.pay(order), eve.change(order, "Eve", if_match="*")):
        assert is_problem(answer, 404)
    for unknown in ("999999999", "0", "-1", "9" * 30, "nope", "1.0", "%00", "%F0%9F%8D%8F", "1%0A"):
        assert ada.show(unknown).status_code == 404, unknown
    assert ada.show(order).json()["status"] == "new"


def test_a_caller_has_to_be_known(shop: Shop):
    with httpx.Client(base_url=shop.url, headers={"Idempotency-Key": '"1"'}, trust_env=False) as nobody:
        for answer in (
            nobody.post("/orders", json={"customer": "Ada", "total": "1"}),
            nobody.post("/orders", json={"customer": "Ada", "total": "1"}, headers={"X-User": ""}),
            nobody.get("/orders/1"),
            nobody.post("/orders/1/pay", json={"amount": "1"}),
            nobody.patch("/orders/1", json={"customer": "Ada"}),
        ):
            assert is_problem(answer, 401)


def without_what_differs(line: str) -> str:
    """Without message keys, which are other ones each time; servers write the names of headers as they like."""
    return re.sub(r'"key": "[^"]+"', '"key": "…"', line.strip()).lower()


@ONE_BY_DAY
def test_the_readme_shows_what_happens(app: str, tmp_path: Path):
    page = SHOP / "README.md"
    with serving(app, tmp_path / "data") as shop:
        urls = {"SHOP": shop.url, "PAYMENTS": shop.payments_url()}
        done = run_script(with_exports("".join(fenced(page, "sh")), urls), SHOP)
        assert (done.returncode, done.stderr) == (0, "")
        said = [without_what_differs(line) for line in done.stdout.splitlines()]
        shown = [without_what_differs(line) for block in fenced(page, "text") for line in block.splitlines()]
        assert [line for line in shown if line not in said] == []
        refused = [json.loads(line)["status"] for line in said if '"title"' in line]
        assert refused == [422, 400, 412, 409, 409]
        assert len(ledger(shop.payments_url())) == 1


@ONE_BY_DAY
def test_sigterm_ends_it_and_a_new_start_goes_on(app: str, tmp_path: Path):
    with serving(app, tmp_path / "data") as shop:
        ada = shop.client()
        order = ada.placed(key="kept")
        assert shop.running is not None
        assert shop.running.stop() == -signal.SIGTERM  # of make, which passes it on and waits
        assert "Traceback" not in shop.log.read_text()
        assert port_is_free(shop.port)
        shop.start()
        again = shop.ready().client(ada.user).place(key="kept")
        assert (again.json()["order_id"], again.headers["Idempotency-Replayed"]) == (order, "true")


@pytest.mark.night
@pytest.mark.parametrize("app", ["fastapi", "flask"])
def test_it_does_not_outlive_a_make_that_was_killed(app: str, tmp_path: Path):
    with serving(app, tmp_path / "data") as shop:
        assert shop.running is not None
        shop.running.popen.kill()
        shop.running.popen.wait()
        shop.start()  # at the same port, while the old one may still be leaving
        assert shop.ready().client().place().status_code == 201
