"""What the shop promises at its HTTP door, the same on FastAPI and on Flask: one function for each rule."""

import secrets
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.acceptance.shop_driver import Client, Shop, is_problem, ledger
from tests.support.polling import eventually

Case = Callable[[Shop], None]
CASES: list[Case] = []
AT_ONCE = 50


def case(function: Case) -> Case:
    CASES.append(function)
    return function


def at_once(call: Callable[[int], httpx.Response]) -> list[httpx.Response]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(call, range(AT_ONCE)))


def orders_of(client: Client, answers: list[httpx.Response]) -> set[int]:
    found = {answer.json()["order_id"] for answer in answers if answer.status_code == 201}
    assert all(client.show(order).status_code == 200 for order in found)
    return found


@case
def an_order_is_placed_and_shown(shop: Shop) -> None:
    ada = shop.client()
    answer = ada.place(customer="Ada Lovelace", total="19.8")
    assert (answer.status_code, answer.headers["ETag"][0]) == (201, '"')
    order = answer.json()["order_id"]
    shown = ada.show(order)
    assert shown.json() == {"order_id": order, "customer": "Ada Lovelace", "total": "19.80", "status": "new"}
    assert shown.headers["ETag"] == answer.headers["ETag"]
    assert answer.headers["Location"] == f"/orders/{order}"


@case
def an_order_is_paid_once_and_a_receipt_is_sent(shop: Shop) -> None:
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


@case
def fifty_payments_at_once_are_a_charge_for_each_order(shop: Shop) -> None:
    ada = shop.client()
    orders = [ada.placed() for _ in range(10)]
    answers = at_once(lambda number: ada.pay(orders[number // 5]))
    assert Counter(answer.status_code for answer in answers) == {200: AT_ONCE}
    for order in orders:
        ada.wait_until_paid(order)
    charged = Counter(charge["order_id"] for charge in ledger(shop.payments_url()))
    assert [charged[order] for order in orders] == [1] * len(orders)


@case
def moves_that_are_not_allowed_are_conflicts(shop: Shop) -> None:
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


@case
def a_change_needs_the_version_that_was_read(shop: Shop) -> None:
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


@case
def of_changes_at_once_one_is_made(shop: Shop) -> None:
    ada = shop.client()
    placed = ada.place()
    order, tag = placed.json()["order_id"], placed.headers["ETag"]
    answers = at_once(lambda number: ada.change(order, f"customer {number}", if_match=tag))
    assert Counter(answer.status_code for answer in answers) == {200: 1, 412: AT_ONCE - 1}


@case
def others_see_nothing_of_an_order(shop: Shop) -> None:
    ada, eve = shop.client(), shop.client()
    order = ada.placed()
    for answer in (eve.show(order), eve.pay(order), eve.change(order, "Eve", if_match="*")):
        assert is_problem(answer, 404)
    for unknown in ("999999999", "0", "-1", "9" * 30, "nope", "1.0", "%00", "%F0%9F%8D%8F", "1%0A"):
        assert ada.show(unknown).status_code == 404, unknown
    assert ada.show(order).json()["status"] == "new"


@case
def a_caller_has_to_be_known(shop: Shop) -> None:
    with httpx.Client(base_url=shop.url, headers={"Idempotency-Key": '"1"'}, trust_env=False) as nobody:
        for answer in (
            nobody.post("/orders", json={"customer": "Ada", "total": "1"}),
            nobody.post("/orders", json={"customer": "Ada", "total": "1"}, headers={"X-User": ""}),
            nobody.get("/orders/1"),
            nobody.post("/orders/1/pay", json={"amount": "1"}),
            nobody.patch("/orders/1", json={"customer": "Ada"}),
        ):
            assert is_problem(answer, 401)


@case
def fifty_orders_at_once_are_fifty(shop: Shop) -> None:
    ada = shop.client()
    assert len(orders_of(ada, at_once(lambda number: ada.place(total=f"{number + 1}")))) == AT_ONCE
