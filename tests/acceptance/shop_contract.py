"""What the shop promises at its HTTP door, the same on FastAPI and on Flask: one function for each rule."""

import json
import secrets
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.acceptance.shop_driver import PROBLEM, Client, Shop, is_problem, ledger
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
def a_key_is_needed_and_has_a_form(shop: Shop) -> None:
    ada = shop.client()
    order = ada.placed()
    for path, body in (("/orders", {"customer": "Ada", "total": "1"}), (f"/orders/{order}/pay", {"amount": "19.80"})):
        assert is_problem(ada.http.post(path, json=body), 400, "key-missing")
        for malformed in ('"', '"a"b', "", "a b", '""', "x" * 256, '"é"'.encode("latin-1")):
            headers = [(b"Idempotency-Key", malformed if isinstance(malformed, bytes) else malformed.encode())]
            assert is_problem(ada.http.post(path, json=body, headers=headers), 400), malformed
        two = [("Idempotency-Key", '"a"'), ("Idempotency-Key", '"b"')]
        assert is_problem(ada.http.post(path, json=body, headers=two), 400, "key-invalid")
    assert ada.show(order).json()["status"] == "new"


@case
def a_replay_is_the_answer_byte_for_byte(shop: Shop) -> None:
    ada, key = shop.client(), secrets.token_hex(8)
    first = ada.place(key=key)
    body = {"customer": "Ada", "total": "19.80"}
    bare = ada.http.post("/orders", json=body, headers={"Idempotency-Key": key})
    for again in (ada.place(key=key), bare):
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert again.headers["Idempotency-Replayed"] == "true"
        for name in ("ETag", "Location", "Content-Type", "Idempotency-Expires"):
            assert again.headers[name] == first.headers[name]
    assert "Idempotency-Replayed" not in first.headers


@case
def a_key_with_another_request_is_refused(shop: Shop) -> None:
    ada, key = shop.client(), secrets.token_hex(8)
    order = ada.placed(key=key)
    assert is_problem(ada.place(key=key, total="19.81"), 422, "key-reused")
    assert ada.pay(order, key=key).status_code == 200  # another operation: keys of one are not those of the other
    assert is_problem(ada.pay(ada.placed(), key=key), 422, "key-reused")


@case
def a_key_is_its_callers_own(shop: Shop) -> None:
    ada, eve, key = shop.client(), shop.client(), secrets.token_hex(8)
    answers = [client.place(key=key) for client in (ada, eve)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json()["order_id"] != answers[1].json()["order_id"]
    assert "Idempotency-Replayed" not in answers[1].headers


BAD_TOTALS = (
    "0",
    "0.00",
    "-1",
    "1.234",
    "1e2",
    "NaN",
    "Infinity",
    "",
    " 1",
    "1,5",
    "123456789",
    "1\n",
    "+1",
    "\u0661",  # a digit, and none of ours
    5,
    None,
)


@case
def what_is_not_valid_is_not_remembered(shop: Shop) -> None:
    ada, key = shop.client(), secrets.token_hex(8)
    bodies: list[object] = [{"customer": "Ada", "total": total} for total in BAD_TOTALS]
    bodies += [{"customer": name, "total": "1"} for name in ("", "a\nb", "a\n", "\0", "x" * 201, 1, None)]
    bodies += [{}, [], None, "text", {"customer": "Ada"}, {"total": "1"}]
    for body in bodies:
        assert ada.post("/orders", body, key=key).status_code == 422, body
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    for content in (b"", b"{", b'{"customer": "\\ud800", "total": "1"}', b'{"customer": "\\u0000", "total": "1"}'):
        assert ada.http.post("/orders", content=content, headers=headers).status_code == 422, content
    assert ada.http.post("/orders", content=b"\xff", headers=headers).status_code in (400, 422)
    assert ada.place(key=key, total="0.01").status_code == 201
    order = ada.placed()
    assert ada.pay(order, amount="much", key=key).status_code == 422
    assert ada.pay(order, key=key).status_code == 200
    assert ada.http.patch(f"/orders/{order}", json={"customer": ""}, headers={"If-Match": "*"}).status_code == 422


@case
def fifty_identical_requests_at_once_are_one_order(shop: Shop) -> None:
    ada, key = shop.client(), secrets.token_hex(8)
    answers = at_once(lambda _: ada.place(key=key))
    made = [answer for answer in answers if answer.status_code == 201]
    first = [answer for answer in made if "Idempotency-Replayed" not in answer.headers]
    assert len(first) == 1
    assert {answer.content for answer in made} == {first[0].content}
    busy = [answer for answer in answers if answer.status_code != 201]
    assert all(is_problem(answer, 409, "in-progress") and int(answer.headers["Retry-After"]) >= 1 for answer in busy)
    assert ada.place(key=key).content == first[0].content


@case
def of_fifty_different_requests_with_one_key_one_is_an_order(shop: Shop) -> None:
    ada, key = shop.client(), secrets.token_hex(8)
    answers = at_once(lambda number: ada.place(key=key, total=f"1.{number:02}" if number else "2"))
    refused = [answer for answer in answers if answer.status_code != 201]
    assert len(refused) == AT_ONCE - 1
    slugs = {409: "in-progress", 422: "key-reused"}
    assert all(is_problem(each, each.status_code, slugs[each.status_code]) for each in refused)


@case
def fifty_orders_at_once_are_fifty(shop: Shop) -> None:
    ada = shop.client()
    assert len(orders_of(ada, at_once(lambda number: ada.place(total=f"{number + 1}")))) == AT_ONCE


@case
def a_body_has_a_limit(shop: Shop) -> None:
    answer = shop.client().http.post("/orders", content=b" " * (1024 * 1024 + 1), headers={"Idempotency-Key": '"1"'})
    assert is_problem(answer, 413)


@case
def every_refusal_is_a_problem(shop: Shop) -> None:
    ada = shop.client()
    assert is_problem(ada.http.get("/nothing"), 404)
    assert is_problem(ada.http.delete("/orders"), 405)
    assert json.loads(ada.http.get("/nothing").content)["title"] == "Not Found"
    assert PROBLEM in ada.show("nope").headers["Content-Type"]
