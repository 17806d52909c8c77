"""What of an answer is remembered, and what becomes of the effects."""

from typing import Any

import pytest
from flask import Response, abort, jsonify, redirect
from werkzeug.exceptions import NotFound

from tests.unit.http.flask_door import Door, twice


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
        (("made", 202, {"X": "1"}), 202, "text/html; charset=utf-8"),
        (("", 204), 204, "text/html; charset=utf-8"),
        (lambda: Response("x", headers=[("Content-Type", "")]), 200, ""),
        (without_type, 200, None),
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


@pytest.mark.parametrize(("status", "effects"), [(303, 1), (409, 0)])
def test_a_raised_response_is_an_answer_and_that_of_an_error_takes_the_effects_along(
    entrance: Door, status: int, effects: int
):
    def view() -> Any:
        entrance.work()
        abort(Response("elsewhere", status))

    first, _ = twice(entrance.view(view))
    assert (first.status_code, first.get_data()) == (status, b"elsewhere")
    assert (entrance.effects, entrance.keys) == (effects, 1)


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
