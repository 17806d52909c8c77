"""Workers, idempotency keys and retention, as the console shows them; pausing and resuming."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select

from outboxkit.runtime.settings import load
from outboxkit.tables import audit, handler, idempotency, pause, worker
from tests.unit.console.conftest import Browser, csrf_in

NOW = datetime.now(UTC)
HOSTILE = "<script>alert(1)</script>"
ROW: dict[str, Any] = {
    "kind": "consumer", "name": "billing", "release": "0.1.0", "host": "shop-1", "pid": 7, "started_at": NOW,
    "seen_at": NOW + timedelta(hours=1), "places": 10, "taken": 4, "rate": 1250.4, "rests": False, "sessions": "[]",
    "queues": '{"billing": 12}',
}  # fmt: skip
REQUEST: dict[str, Any] = {
    "scope": "POST /orders", "principal": "", "key": "k1", "fingerprint": b"f", "state": "processing", "token": "t",
    "created_at": NOW, "expires_at": NOW + timedelta(days=1),
}  # fmt: skip


def add(engine: Engine, table: Any, *rows: dict[str, Any]) -> None:
    with engine.begin() as connection:
        for row in rows:
            connection.execute(insert(table), row)


async def test_workers_are_shown_by_what_they_work_on(browser: Browser, engine: Engine):
    add(engine, worker, ROW | {"id": "1", "skew": 45.0, "exchange": HOSTILE, "broker": "amqp://rabbit"})
    relay = {"kind": "relay", "name": "default", "host": HOSTILE, "rests": True, "queues": "{}"}
    add(engine, worker, ROW | {"id": "2"} | relay)
    add(engine, worker, ROW | {"id": "3", "seen_at": NOW - timedelta(minutes=5), "host": "gone"})
    add(engine, handler, {"handler": "SendReceipt", "queue": "statistics"})
    terms = {"since": NOW, "why": "w", "paused_by": "ann"}
    add(engine, pause, {"process": "relay", "name": "payments"} | terms)
    async with browser() as client:
        page = (await client.get("/workers")).text
    shown = (
        "pid 7 on shop-1",
        "4 of 10",
        "1 250",
        "45 s ahead",
        "rests",
        "amqp://rabbit",
        "12 messages",
        "queue statistics",
    )
    assert [text for text in shown if text not in page] == []
    assert page.count("A SQLite file does not tell who uses it.") == 2
    assert "gone" not in page
    assert HOSTILE not in page
    assert 'action="/workers/pause"' not in page


async def test_an_operator_pauses_a_queue_and_lets_it_go_on(browser: Browser, engine: Engine):
    add(engine, worker, ROW | {"id": "1"})
    async with browser(may=("read", "operate")) as client:
        page = (await client.get("/workers")).text
        form = {"csrf": csrf_in(page), "kind": "consumer", "name": "billing"}
        await client.post("/workers/pause", data=form | {"why": "the bank is moved", "for": "10m"})
        page = (await client.get("/workers")).text
        assert "the bank is moved" in page
        assert 'name="for" maxlength="20" value="10m"' in page
        await client.post("/workers/resume", data=form)
        assert "the bank is moved" not in (await client.get("/workers")).text
    with engine.connect() as connection:
        actions = connection.execute(select(audit.c.action, audit.c.operator).order_by(audit.c.id)).all()
        assert [tuple(row) for row in actions] == [("pause", "ann"), ("resume", "ann")]


@pytest.mark.parametrize(
    "changes",
    [{"why": " "}, {"for": "soon"}, {"kind": "retention"}, {"name": ""}, {"name": "x" * 300}, {"csrf": "x"}],
)
async def test_a_pause_that_cannot_be_is_refused(browser: Browser, engine: Engine, changes: dict[str, str]):
    async with browser(may=("read", "operate")) as client:
        form = {"csrf": csrf_in((await client.get("/workers")).text), "kind": "consumer", "name": "billing", "why": "w"}
        assert (await client.post("/workers/pause", data=form | changes)).status_code in (400, 403)
    with engine.connect() as connection:
        assert not connection.execute(select(pause)).all()


async def test_who_may_not_operate_pauses_nothing(browser: Browser, engine: Engine):
    async with browser(may=("read", "payload")) as client:
        page = (await client.get("/workers")).text
        form = {"csrf": csrf_in(page), "kind": "relay", "name": "default", "why": "w"}
        for path in ("/workers/pause", "/workers/resume"):
            assert (await client.post(path, data=form)).status_code == 403
    with engine.connect() as connection:
        assert not connection.execute(select(pause)).all()


async def test_requests_are_shown_without_what_is_in_them(browser: Browser, engine: Engine):
    add(
        engine,
        idempotency,
        REQUEST | {"locked_until": NOW + timedelta(minutes=1), "steps": b'{"secret": 1}'},
        REQUEST | {"key": HOSTILE, "state": "done", "response_status": 201, "response_body": b"secret"},
    )
    async with browser(may=("read", "payload")) as client:
        page = (await client.get("/requests")).text
        assert ">201<" in page
        assert "secret" not in page
        assert HOSTILE not in page
        assert ">201<" not in (await client.get("/requests?key=k1")).text
        assert ">201<" not in (await client.get("/requests?state=processing")).text
        assert "outboxkit requests show KEY" in (await client.get("/requests?key=other")).text
        assert "No request matches." in (await client.get("/requests?key=other")).text


async def test_retention_says_what_is_kept_for_how_long(browser: Browser, sqlite_url: str):
    settings = load({"database_url": sqlite_url, "published_retention": "7d"})
    async with browser(settings=settings) as client:
        page = (await client.get("/retention")).text
    for text in ("7 d 0 h", "OUTBOXKIT_PUBLISHED_RETENTION", "for ever", "until they expire", "not known"):
        assert text in page
