"""What an endpoint with a key does with its request, its work and its answer, in each framework, on SQLite.

Tests with `@door` hold for an application of plain ASGI as well, whose work is in transactions of its own.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any

import flask
import httpx
import pytest
from fastapi import Depends
from fastapi.responses import Response, StreamingResponse
from sqlalchemy import event, select
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError
from starlette.exceptions import HTTPException
from werkzeug.exceptions import default_exceptions

from outboxkit import tables
from outboxkit.errors import ConfigurationError, TransactionRequired
from outboxkit.http import asgi, fastapi, problems
from outboxkit.http import flask as flask_integration
from outboxkit.telemetry import catalogue
from tests.support.measured import measuring
from tests.unit import shop as rows
from tests.unit.http.fastapi.conftest import Order, Shop, begun_shop, caller, get_async_session, shop  # noqa: F401
from tests.unit.http.flask_door import Door

Answer = tuple[Any, int, dict[str, str]]
MADE: Answer = ("made", 201, {"Location": "/orders/1", "ETag": '"1"'})


class Got:
    """An answer, whoever gave it."""

    def __init__(self, answer: Any, content: bytes) -> None:
        self.status, self.headers, self.content = answer.status_code, answer.headers, content
        self.is_replay = answer.headers.get("Idempotency-Replayed") == "true"

    @property
    def slug(self) -> str:
        document = flask.json.loads(self.content)
        assert (self.headers["Content-Type"], document["status"]) == (problems.MEDIA_TYPE, self.status)
        return str(document["type"]).removeprefix(problems.TYPES)


class Front:
    """An application with one endpoint: it adds a row, then does what its test says."""

    url: str
    app: Any
    cookie = "set-cookie"
    idempotent: Any = fastapi.Idempotent
    act: Callable[[Session], Any] = staticmethod(lambda _: MADE)
    runs = 0

    def work(self, session: Session) -> Any:
        self.runs += 1
        session.execute(rows.effects.insert().values(what="work"))
        return self.act(session)

    @property
    def stored(self) -> tuple[int, int]:
        """Rows of the work, and keys, that are committed."""
        return rows.count(self.url, rows.effects), rows.count(self.url, tables.idempotency)

    async def post(
        self, item: str = "pen", *, key: str | None = "k", user: str | None = "ada", method: str = "POST"
    ) -> Got:
        headers = {"Idempotency-Key": key, "X-User": user}
        return await self.send(method, {"item": item}, {name: text for name, text in headers.items() if text})

    async def send(self, method: str, body: dict[str, str], headers: dict[str, str]) -> Got:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            got = await client.request(method, "/orders", json=body, headers=headers)
        return Got(got, got.content)


class FastApi(Front):
    stream = staticmethod(lambda: StreamingResponse(iter(["a", "b"])))
    error = staticmethod(HTTPException)

    def __init__(self, of: Shop, get_async: Any = None) -> None:
        self.shop, self.app, self.get_async_session = of, of.app, get_async
        self.url = of.engine.url.render_as_string(hide_password=False)

    def serve(self, **rules: Any) -> None:
        get_session = self.get_async_session or self.shop.get_session
        idempotent = Depends(fastapi.Idempotent(session=get_session, **{"principal": caller, **rules}))

        def answer(session: Session) -> Any:
            answer = self.work(session)
            if not isinstance(answer, tuple):
                return answer
            made = Response(answer[0], answer[1], answer[2], "text/plain")
            made.set_cookie("session", "secret")
            return made

        if self.get_async_session is None:

            @self.app.api_route("/orders", methods=["GET", "POST"], dependencies=[idempotent])
            def place(order: Order, session: Annotated[Session, Depends(get_session)]) -> Any:
                return answer(session)
        else:

            @self.app.api_route("/orders", methods=["GET", "POST"], dependencies=[idempotent])
            async def place_async(order: Order, session: Annotated[AsyncSession, Depends(get_session)]) -> Any:
                return await session.run_sync(answer)

    def answers(self, kind: type[Exception], status: int, meanwhile: str | None = None) -> None:
        async def answer(_: Any, error: Exception) -> Response:
            if meanwhile is not None:
                await self.post(meanwhile)
            return Response(repr(error), status)

        self.app.exception_handler(kind)(answer)


class Flask(Front):
    stream = staticmethod(lambda: flask.Response(iter(["a", "b"])))
    cookie = "Set-Cookie"
    idempotent = flask_integration.Idempotent

    def __init__(self, of: Door) -> None:
        self.door, self.url = of, of.url
        of.app.testing = False

    def serve(self, **rules: Any) -> None:
        def principal() -> str:
            return flask.request.headers.get("X-User") or flask.abort(401)

        def view() -> Any:
            answer = self.work(self.door.sessions())
            if not isinstance(answer, tuple):
                return answer
            made = flask.Response(*answer, mimetype="text/plain")
            made.set_cookie("session", "secret")
            return made

        self.door.view(view, **{"principal": principal, **rules})

    @staticmethod
    def error(status: int) -> Exception:
        return default_exceptions[status]()

    def answers(self, kind: type[Exception], status: int, meanwhile: str | None = None) -> None:
        def answer(error: Exception) -> Any:
            if meanwhile is not None:
                headers = {"Idempotency-Key": "k", "X-User": "ada"}
                self.door.app.test_client().post("/do", json={"item": meanwhile}, headers=headers)
            return repr(error), status

        self.door.app.register_error_handler(kind, answer)

    async def send(self, method: str, body: dict[str, str], headers: dict[str, str]) -> Got:
        got = self.door.app.test_client().open("/do", method=method, json=body, headers=headers)
        return Got(got, got.data)


class Asgi(Front):
    idempotent = asgi.IdempotencyMiddleware

    def __init__(self, url: str, engine: AsyncEngine) -> None:
        self.url, self.sessions = url, async_sessionmaker(engine)

    def serve(self, **rules: Any) -> None:
        def principal(scope: Any) -> str:
            user = dict(scope["headers"]).get(b"x-user", b"").decode()
            if not user:
                raise problems.Problem(401, "caller-unknown", "Who are you?", "Log in.")
            return user

        self.app = asgi.IdempotencyMiddleware(self.answer, self.sessions, **{"principal": principal, **rules})

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        async with self.sessions() as session, session.begin():
            answer = await session.run_sync(self.work)
        made = Response(*answer, media_type="text/plain")
        made.set_cookie("session", "secret")
        await made(scope, receive, send)


FRONTS = ["fastapi", "fastapi, begun", "fastapi, async", "flask"]


@pytest.fixture(params=FRONTS)
def front(request: pytest.FixtureRequest) -> Any:
    get = request.getfixturevalue
    if request.param == "asgi":
        return Asgi(get("sqlite_url"), get("async_engine"))
    if request.param == "flask":
        return Flask(get("entrance"))
    if request.param == "fastapi, async":
        return FastApi(get("shop"), get("get_async_session"))
    return FastApi(get("begun_shop" if "begun" in request.param else "shop"))


door = pytest.mark.parametrize("front", [*FRONTS, "asgi"], indirect=True)


def raising(error: Exception) -> Callable[[Session], Any]:
    def act(_: Session) -> Any:
        raise error

    return act


@door
async def test_a_repetition_gets_the_same_answer_but_cookies_and_does_nothing(front: Any):
    front.serve()
    first, second = await front.post(), await front.post()
    assert (first.status, first.content, first.is_replay) == (201, b"made", False)
    assert (second.status, second.content, second.is_replay) == (201, b"made", True)
    for name in ("Location", "ETag", "Content-Type", "Idempotency-Expires"):
        assert second.headers[name] == first.headers[name]
    assert (front.cookie in first.headers, front.cookie in second.headers) == (True, False)
    assert (front.runs, front.stored) == (1, (1, 1))


@door
async def test_a_key_is_for_one_request_of_one_caller(front: Any):
    front.serve()
    await front.post()
    assert ((await front.post("ink")).slug, front.runs) == ("key-reused", 1)
    assert not (await front.post(user="bob")).is_replay
    assert (await front.post(key='"k"')).is_replay, "quoted or not, it is the same key"
    assert (front.runs, front.stored) == (2, (2, 2))


@door
async def test_what_does_not_pass_the_door_makes_no_work(front: Any):
    front.serve(max_body=100)
    found = [await front.post(key=None), await front.post(key="no key"), await front.post("x" * 100)]
    assert [(got.status, got.slug) for got in found] == [
        (400, "key-missing"),
        (400, "key-invalid"),
        (413, "body-too-large"),
    ]
    for key in ("k", None):
        assert (await front.post(user=None, key=key)).status == 401
    assert (front.runs, front.stored) == (0, (0, 0))


@door
async def test_rules_are_checked_at_once(front: Any):
    given = {"app": None, "session_factory": None} if isinstance(front, Asgi) else {"session": lambda: None}
    with pytest.raises(TypeError, match="principal"):
        front.idempotent(**given)
    with pytest.raises(ConfigurationError, match="retention is 5"):
        front.idempotent(**given, principal=None, retention=5)


@door
@pytest.mark.parametrize("name", [None, "", 7])
async def test_a_caller_without_a_name_is_a_defect(front: Any, name: Any):
    front.serve(principal=(lambda _: name) if isinstance(front, Asgi) else lambda: name)
    assert ((await front.post()).status, front.runs) == (500, 0)


@door
async def test_a_request_that_changes_nothing_needs_no_key(front: Any):
    front.serve()
    assert [(await front.post(key=key, method="GET")).status for key in (None, "k")] == [201, 201]
    assert front.stored == (2, 0)


@door
async def test_without_a_key_that_is_not_required_the_work_is_done_every_time(front: Any):
    front.serve(required=False)
    for _ in range(2):
        answer = await front.post(key=None)
        assert (answer.status, "Idempotency-Expires" in answer.headers) == (201, False)
    assert front.stored == (2, 0)
    if not isinstance(front, Asgi):
        front.act = lambda _: ("no", 503, {})
        assert ((await front.post(key=None)).status, front.stored) == (503, (2, 0))


@door
async def test_a_returned_conflict_is_remembered_with_its_effects(front: Any):
    front.serve()
    front.act = lambda _: ("closed", 409, {})
    assert [((got := await front.post()).status, got.is_replay) for _ in range(2)] == [(409, False), (409, True)]
    assert (front.runs, front.stored) == (1, (1, 1))


@pytest.mark.parametrize("status", [400, 401, 403, 408, 412, 422, 428, 429, 500, 503])
async def test_a_returned_answer_that_is_not_remembered_takes_its_effects_along(front: Any, status: int):
    front.serve()
    front.act = lambda _: ("no", status, {})
    answer = await front.post()
    assert (answer.status, "Idempotency-Expires" in answer.headers, front.stored) == (status, False, (0, 0))
    front.act = lambda _: MADE
    assert ((await front.post()).status, front.stored) == (201, (1, 1))


@door
async def test_which_answers_are_remembered_can_be_said(front: Any):
    front.serve(stored=lambda status: status == 503)
    for status, keys in ((200, 0), (503, 1)):
        front.act = lambda _, status=status: ("no", status, {})
        answer = await front.post()
        assert (answer.status, front.stored[1]) == (status, keys)
    assert (await front.post()).is_replay


@pytest.mark.parametrize("status", [404, 409, 410, 423])
async def test_a_raised_error_of_the_request_is_remembered_without_its_effects(front: Any, status: int):
    front.serve()
    front.act = raising(front.error(status))
    first = await front.post()
    front.act = lambda _: MADE
    second = await front.post()
    assert (first.status, second.status, first.content) == (status, status, second.content)
    assert first.headers["Idempotency-Expires"] == second.headers["Idempotency-Expires"]
    assert (second.is_replay, front.runs, front.stored) == (True, 1, (0, 1))


@pytest.mark.parametrize("status", [401, 503, None])
async def test_an_error_of_the_moment_forgets_the_key_and_the_work(front: Any, status: int | None):
    front.serve()
    front.act = raising(RuntimeError("a defect") if status is None else front.error(status))
    assert ((await front.post()).status, front.stored) == (status or 500, (0, 0))
    front.act = lambda _: MADE
    assert ((await front.post()).status, front.stored) == (201, (1, 1))


@pytest.mark.parametrize(("status", "is_remembered"), [(404, True), (410, True), (422, False), (500, False)])
@pytest.mark.parametrize("when", ["in the endpoint", "at the commit"])
async def test_an_error_is_remembered_as_the_application_answers_it(
    front: Any, status: int, is_remembered: bool, when: str
):
    front.answers(LookupError, status)
    front.serve()
    front.act = raising(LookupError())
    if when == "at the commit":
        front.act = lambda session: event.listen(session, "before_commit", raising(LookupError()), once=True) or MADE
    first, second = await front.post(), await front.post()
    assert [(got.status, got.content) for got in (first, second)] == [(status, b"LookupError()")] * 2
    assert (second.is_replay, front.stored) == (is_remembered, (0, int(is_remembered)))


@pytest.mark.parametrize(
    ("meanwhile", "status", "content"),
    [("pen", 201, b"made"), ("ink", 409, b"LookupError()")],
    ids=["with the same request", "with another one"],
)
async def test_who_takes_the_key_behind_an_error_answers_its_own_request(
    front: Any, meanwhile: str, status: int, content: bytes
):
    """Between the rollback of the work and the second begin the key is free."""
    front.answers(LookupError, 409, meanwhile)
    front.serve()
    front.act = lambda session: raising(LookupError())(session) if front.runs == 1 else MADE
    got = await front.post()
    assert (got.status, got.content, got.is_replay) == (status, content, status == 201)
    assert "Idempotency-Expires" in got.headers or status == 409
    assert front.stored == (1, 1)


@pytest.mark.parametrize(
    ("error", "slug"),
    [(StaleDataError(), "precondition-failed"), (problems.precondition_required(), "precondition-required")],
)
async def test_a_problem_and_a_stale_row_are_answered_as_problems(front: Any, error: Exception, slug: str):
    front.serve()
    front.act = raising(error)
    assert ((await front.post()).slug, front.stored) == (slug, (0, 0))


@pytest.mark.parametrize(
    ("key", "call", "cure"),
    [
        ("k", Session.commit, "leave out the commit"),
        ("k", Session.begin, "the endpoint called begin() of a session that is in a transaction"),
        (None, Session.begin, "leave out begin()"),
    ],
)
async def test_a_begin_or_commit_in_the_endpoint_is_refused_with_its_cure(front: Any, key: Any, call: Any, cure: str):
    front.answers(TransactionRequired, 500)
    front.serve(required=False)
    front.act = call
    got = await front.post(key=key)
    assert (got.status, cure in got.content.decode(), front.stored) == (500, True, (0, 0))


async def test_a_commit_after_a_rollback_in_the_endpoint_is_refused_too(front: Any):
    def start_again(session: Session) -> None:
        session.rollback()
        session.execute(rows.effects.insert().values(what="again"))
        session.commit()

    front.answers(TransactionRequired, 500)
    front.answers(InvalidRequestError, 500)  # SQLAlchemy's own: inside sessionmaker.begin()
    front.serve()
    front.act = start_again
    got = await front.post()
    assert re.search("would have no answer|closed transaction inside context manager", got.content.decode())
    assert (got.status, front.stored) == (500, (0, 0))
    front.act = lambda _: MADE
    assert ((await front.post()).status, front.stored) == (201, (1, 1))


async def test_a_rollback_in_the_endpoint_is_refused(front: Any):
    front.serve()
    front.act = lambda session: session.rollback() or MADE
    assert ((await front.post()).status, front.stored) == (500, (0, 0))


async def test_savepoints_are_the_endpoints_own(front: Any):
    def act(session: Session) -> Answer:
        with session.begin_nested() as savepoint:
            session.execute(rows.effects.insert().values(what="undone"))
            savepoint.rollback()
        with session.begin_nested():
            session.execute(rows.effects.insert().values(what="kept"))
        assert "undone" not in session.scalars(select(rows.effects.c.what)).all()
        return MADE

    front.serve()
    front.act = act
    assert [(await front.post()).status for _ in range(2)] == [201, 201]
    assert front.stored == (2, 1)


async def test_an_answer_that_cannot_be_remembered_takes_its_effects_along(front: Any):
    front.serve(max_response=5)
    for act in (lambda _: front.stream(), lambda _: ("123456", 200, {})):
        front.act = act
        assert ((await front.post()).status, front.stored) == (500, (0, 0))


@door
async def test_requests_are_measured_by_outcome(front: Any):
    front.serve()
    with measuring() as measured:
        for item, key in (("pen", "k"), ("pen", "k"), ("ink", "k"), ("pen", None)):
            await front.post(item, key=key)
        found = measured.of(catalogue.HTTP_REQUESTS, "outcome")
    assert found == {"fresh": 1, "replayed": 1, "mismatch": 1, "refused": 1}
