"""Which requests the middleware takes, and what it refuses."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from outboxkit.errors import ConfigurationError
from outboxkit.http import problems
from outboxkit.http.asgi import IdempotencyMiddleware, step
from tests.unit.http.asgi.conftest import Served, respond


@pytest.mark.parametrize("lease", [None, timedelta(0)])
def test_a_lease_that_cannot_be_is_refused(served: Served, lease: Any):
    with pytest.raises(ConfigurationError):
        IdempotencyMiddleware(served, served.sessions, principal=None, lease=lease)


async def test_the_application_gets_the_body(served: Served):
    await served.post(b"x" * 100_000)
    assert served.body == b"x" * 100_000


async def test_a_caller_that_is_not_known_makes_no_work(served: Served):
    """Neither is its body read, nor its fingerprint taken. The principal may be awaited."""

    async def nobody(_: Any) -> str:
        raise problems.Problem(401, "caller-unknown", "Who are you?", "Log in.")

    async def receive() -> Any:
        raise AssertionError("the body is not read")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    served.rules["principal"] = nobody
    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-length", b"9" * 5000)]}
    await served.middleware()(scope, receive, send)
    assert sent[0]["status"] == 401
    served.rules["required"] = False
    served.rules["principal"] = lambda _: "ada"
    with pytest.raises(AssertionError, match="not read"):
        await served.middleware()(scope | {"headers": []}, receive, send)


async def test_other_requests_pass_untouched(served: Served):
    async def act(scope: Any, receive: Any, send: Any) -> None:
        with pytest.raises(ConfigurationError, match="did not pass IdempotencyMiddleware"):
            await step("charge", act)
        await respond(send, 200, b"a", b"b", headers=[(b"content-type", b"text/event-stream")])

    served.before = act
    assert (await served.post(key=None, method="PUT")).content == b"ab"
    served.rules["when"] = lambda scope: scope["path"] != "/orders"
    assert (await served.post(key=None)).content == b"ab"


async def test_without_a_key_a_step_is_made_each_time_under_a_new_key(served: Served):
    served.rules["required"] = False
    for _ in range(2):
        assert (await served.post(key=None)).content == b'"charged"'
    assert len(set(served.calls)) == 2


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
async def test_what_is_no_request_passes(served: Served, kind: str):
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    await IdempotencyMiddleware(app, served.sessions, principal=None)({"type": kind}, None, None)
    assert seen == [kind]


async def test_a_client_that_leaves_does_not_end_the_run(served: Served):
    """Its server cancels the request; the step that runs is finished, and the retry gets the answer."""
    at_work, go_on = asyncio.Event(), asyncio.Event()

    async def act(scope: Any, receive: Any, send: Any) -> None:
        at_work.set()
        await go_on.wait()
        await respond(send, 201, b"done")

    served.act = act
    middleware = served.middleware()
    request = asyncio.create_task(_call(middleware))
    await at_work.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    [running] = middleware._running
    go_on.set()
    await running
    assert (await served.post()).headers["idempotency-replayed"] == "true"
    assert served.runs == 1


async def test_a_cancellation_that_leaks_from_the_application_is_the_requests_own(served: Served):
    """The retry may begin at once, behind the finished step."""

    async def act(scope: Any, receive: Any, send: Any) -> None:
        if served.runs == 1:
            raise asyncio.CancelledError
        await respond(send, 201)

    served.act = act
    with pytest.raises(asyncio.CancelledError):
        await served.post()
    assert (await served.post()).status_code == 201
    assert len(served.calls) == 1


async def test_the_applications_error_is_shown_if_the_database_is_away_then(
    served: Served, monkeypatch: pytest.MonkeyPatch
):
    async def act(*_: Any) -> None:
        raise RuntimeError("the application's")

    def away(*_: Any, **__: Any) -> None:
        raise OSError("away")

    monkeypatch.setattr("outboxkit.http.ledger.release", away)
    served.act = act
    with pytest.raises(OSError, match="away") as raised:
        await _call(served.middleware())
    assert str(raised.value.__cause__) == "the application's"


async def test_a_client_that_leaves_before_it_has_asked(served: Served):
    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    await _call(served.middleware(), gone)
    assert served.runs == 0


async def _call(app: Any, receive: Any = None) -> None:
    async def body() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    async def send(_: Any) -> None: ...

    headers = [(b"idempotency-key", b"k")]
    scope = {"type": "http", "method": "POST", "path": "/orders", "query_string": b"a=1", "headers": headers}
    await app(scope, receive or body, send)
