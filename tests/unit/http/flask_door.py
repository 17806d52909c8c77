"""An app of Flask with one idempotent view, on SQLite."""

from collections.abc import Callable
from typing import Any

from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import Engine, insert
from sqlalchemy.orm import scoped_session, sessionmaker

from outboxkit import tables
from outboxkit.http.flask import Idempotent
from tests.unit import shop

KEY = {"Idempotency-Key": "k"}
View = Callable[..., Any]


class Door:
    """An app with one idempotent view at /do, and what is committed."""

    def __init__(self, engine: Engine) -> None:
        self.url = engine.url.render_as_string(hide_password=False)
        self.sessions = scoped_session(sessionmaker(engine))
        self.app = Flask(__name__)
        self.app.testing = True
        self.app.teardown_appcontext(lambda _: self.sessions.remove())

    def idempotent(self, **options: Any) -> Idempotent:
        return Idempotent(**{"session": self.sessions, "principal": None, **options})

    def view(self, view: View, **options: Any) -> FlaskClient:
        self.app.add_url_rule("/do", view_func=self.idempotent(**options)(view), methods=["GET", "POST"])
        return self.app.test_client()

    def work(self, what: str = "work") -> None:
        self.sessions.execute(insert(shop.effects).values(what=what))

    @property
    def effects(self) -> int:
        return shop.count(self.url, shop.effects)

    @property
    def keys(self) -> int:
        return shop.count(self.url, tables.idempotency)


def twice(client: FlaskClient, **options: Any) -> tuple[Any, Any]:
    first, second = (client.post("/do", headers=KEY, **options) for _ in range(2))
    assert first.status_code == second.status_code
    assert first.get_data() == second.get_data()
    return first, second
