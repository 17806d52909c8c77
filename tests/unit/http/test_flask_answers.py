"""What of an answer is remembered, and what becomes of the effects."""

from typing import Any

import pytest
from flask import Response, abort, jsonify, redirect, request
from werkzeug.exceptions import NotFound

from tests.unit.http.flask_door import KEY, Door, twice


def without_type() -> Response:
    response = Response("x")
    del response.headers["Content-Type"]
    return response


@pytest.mark.parametrize(
    ("returned", "status", "content_type"),
    [
        ("text", 200, "text/html; charset=utf-8"),
        (b"\x00\xff", 200, "text/html; charset=utf-8"),
        ({"a": 1}, 200, "application/json"),
        ([1], 200, "application/json"),
        (("made", 201), 201, "text/html; charset=utf-8"),
        (("made", 202, {"X": "1"}), 202, "text/html; charset=utf-8"),
        (("", 204), 204, "text/html; charset=utf-8"),
        (lambda: Response("x", headers=[("Content-Type", "")]), 200, ""),
        (without_type, 200, None),
        (lambda: jsonify(a=1), 200, "application/json"),
        (lambda: Response(b"x", 201, mimetype="image/png"), 201, "image/png"),
        (lambda: redirect("/elsewhere", 303), 303, "text/html; charset=utf-8"),
        (lambda: redirect("/книги/7", 303), 303, "text/html; charset=utf-8"),
        (("not now", 409), 409, "text/html; charset=utf-8"),
        (NotFound, 404, "text/html; charset=utf-8"),
    ],
)
def test_whatever_a_view_returns_is_kept_with_its_effects(
    entrance: Door, returned: Any, status: int, content_type: str | None
):
    def view() -> Any:
        entrance.work()
        return returned() if callable(returned) else returned

    first, second = twice(entrance.view(view))
    assert (first.status_code, first.headers.get("Content-Type")) == (status, content_type)
    assert sorted(second.headers) == sorted([*first.headers, ("Idempotency-Replayed", "true")])
    assert (entrance.effects, entrance.keys) == (1, 1)


def test_which_answers_are_remembered_can_be_said(entrance: Door):
    def view() -> Any:
        entrance.work()
        return "no", int(request.args["status"])

    client = entrance.view(view, stored=lambda status: status == 503)
    assert client.post("/do?status=200", headers=KEY).status_code == 200
    assert (entrance.effects, entrance.keys) == (0, 0)
    assert client.post("/do?status=503", headers=KEY).status_code == 503
    assert (entrance.effects, entrance.keys) == (1, 1)


def test_a_raised_redirect_is_an_answer(entrance: Door):
    def view() -> Any:
        entrance.work()
        abort(redirect("/elsewhere"))

    first, _ = twice(entrance.view(view))
    assert first.headers["Location"] == "/elsewhere"
    assert (entrance.effects, entrance.keys) == (1, 1)


def test_a_raised_response_of_an_error_takes_the_effects_along(entrance: Door):
    def view() -> Any:
        entrance.work()
        abort(Response("sold out", 409))

    first, _ = twice(entrance.view(view))
    assert (first.status_code, first.get_data()) == (409, b"sold out")
    assert (entrance.effects, entrance.keys) == (0, 1)


def test_an_interrupt_takes_everything_back(entrance: Door):
    def view() -> Any:
        entrance.work()
        raise SystemExit

    client = entrance.view(view)
    with pytest.raises(SystemExit):
        client.post("/do", headers=KEY)
    assert (entrance.effects, entrance.keys) == (0, 0)


def test_hooks_of_the_app_run_for_replays_too(entrance: Door):
    entrance.app.secret_key = "x"

    @entrance.app.after_request
    def mark(response: Response) -> Response:
        response.headers["X-After"] = "1"
        response.set_cookie("seen", "1")
        return response

    def view() -> Any:
        response = jsonify(1)
        response.set_cookie("own", "1")
        return response

    first, second = twice(entrance.view(view))
    assert first.headers.getlist("X-After") == second.headers.getlist("X-After") == ["1"]
    assert len(first.headers.getlist("Set-Cookie")) == 2
    assert [cookie.partition("=")[0] for cookie in second.headers.getlist("Set-Cookie")] == ["seen"]


def test_somebody_quicker_answers_for_a_raised_error(entrance: Door, monkeypatch: pytest.MonkeyPatch):
    """Between the rollback and the second begin another request may take the key: its answer counts."""
    raising = [True]

    def view() -> Any:
        entrance.work()
        if raising.pop():
            abort(409)
        return "done"

    @entrance.app.errorhandler(409)
    def meanwhile(error: Exception) -> Any:
        raising.append(False)
        entrance.app.test_client().post("/do", headers=KEY)
        return "refused", 409

    answer = entrance.view(view).post("/do", headers=KEY)
    assert (answer.status_code, answer.get_data(), answer.headers["Idempotency-Replayed"]) == (200, b"done", "true")
    assert (entrance.effects, entrance.keys) == (1, 1)


def test_somebody_quicker_with_another_request_leaves_the_error(entrance: Door):
    def view() -> Any:
        return "done" if request.args else abort(409)

    @entrance.app.errorhandler(409)
    def meanwhile(error: Exception) -> Any:
        entrance.app.test_client().post("/do?x=1", headers=KEY)
        return "refused", 409

    answer = entrance.view(view).post("/do", headers=KEY)
    assert (answer.status_code, answer.get_data()) == (409, b"refused")
    assert "Idempotency-Expires" not in answer.headers
    assert entrance.keys == 1
