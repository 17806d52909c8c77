"""The Flask integration refuses what cannot work, at once or at its first use."""

from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from flask import Blueprint, Flask, send_file, stream_with_context
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from outboxkit.errors import ConfigurationError
from outboxkit.http import problems
from outboxkit.http.flask import add_problem_handlers
from tests.unit.http.flask_door import KEY, Door, View, twice


@pytest.mark.parametrize("on", ["app", "blueprint"])
def test_other_views_answer_with_problems_where_they_are_told_to(on: str):
    app, blueprint = Flask(__name__), Blueprint("b", __name__)
    add_problem_handlers(app if on == "app" else blueprint)

    @blueprint.get("/<error>")
    def fail(error: str) -> Any:
        raise problems.key_reused() if error == "problem" else StaleDataError

    app.register_blueprint(blueprint)
    answers = [app.test_client().get(path) for path in ("/problem", "/stale")]
    assert [answer.status_code for answer in answers] == [422, 412]
    assert {answer.content_type for answer in answers} == {problems.MEDIA_TYPE}


@pytest.mark.parametrize(
    "returned",
    [
        lambda: stream_with_context(iter(["a", "b"])),
        lambda: send_file(Path(__file__)),
        lambda: send_file(BytesIO(b"x"), mimetype="text/plain"),
    ],
    ids=["a generator", "a file", "a file in memory"],
)
def test_a_stream_is_refused_at_its_first_use(entrance: Door, returned: View):
    def view() -> Any:
        entrance.work()
        return returned()

    client = entrance.view(view, required=False)
    with pytest.raises(ConfigurationError, match="the view streams its response, which cannot be remembered"):
        client.post("/do", headers=KEY)
    assert (entrance.effects, entrance.keys) == (0, 0)
    response = client.post("/do")
    assert (response.status_code, bool(response.get_data())) == (200, True), "without a key nothing is remembered"
    response.close()


def test_an_async_view_is_refused_at_once(entrance: Door):
    async def view() -> str:
        return ""

    with pytest.raises(ConfigurationError, match="view is async"):
        entrance.idempotent()(view)


def test_a_session_must_be_the_one_of_the_view(entrance: Door, engine: Engine):
    client = entrance.view(lambda: "never", session=sessionmaker(engine))
    with pytest.raises(ConfigurationError, match="session= makes a session with each call"):
        client.post("/do", headers=KEY)


def test_a_session_may_come_from_a_function(entrance: Door, engine: Engine):
    def session() -> Session:
        return entrance.sessions()

    twice(entrance.view(lambda: "done", session=session))
    assert entrance.keys == 1


def test_the_view_keeps_its_name(entrance: Door):
    assert entrance.idempotent()(send_file).__name__ == "send_file"
