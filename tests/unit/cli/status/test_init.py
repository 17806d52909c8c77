"""`outboxkit status` on SQLite; tests/integration/operators/test_status.py has what only PostgreSQL knows."""

import json
import re
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Engine

from outboxkit import tables
from tests.unit.cli.conftest import Run
from tests.unit.cli.status.rows import HOUR, NOW, add_dead, add_rows, fill


@pytest.fixture
def filled(engine: Engine, database_url: str) -> str:
    with engine.begin() as connection:
        fill(connection)
    return database_url


def exactly(value: int) -> dict[str, Any]:
    return {"value": value, "at_least": False}


def test_json_says_everything(run: Run, filled: str):
    ended = run("status", "--json", "--database-url", filled)
    assert (ended.code, ended.err) == (0, "")
    status = json.loads(ended.out)
    assert (status["database"], status["broker"]) == (filled, "amqp://localhost:5672/")
    assert [each["code"] for each in status["advice"]] == ["relay-missing", "dead-letters", "effect-unknown"]
    said = status["figures"]
    assert 7200 <= said["outbox"].pop("oldest_age_seconds") < 9 * 3600
    assert datetime.fromisoformat(said["outbox"].pop("next_due")) == NOW + HOUR
    assert datetime.fromisoformat(said["outbox"].pop("last_due")) == NOW + 3 * HOUR
    assert datetime.fromisoformat(said["history"].pop("oldest_published")) == NOW - 48 * HOUR
    assert said == {
        "schema_version": 1,
        "outbox": {
            "pending": exactly(8),
            "ready": exactly(2),
            "delayed": exactly(1),
            "held": exactly(2),
            "parked": exactly(3),
            "by_type": {
                "OrderConfirmed": {"pending": exactly(7), "failed_before": exactly(1)},
                "StockChanged": {"pending": exactly(1), "failed_before": exactly(0)},
            },
            "parked_keys": exactly(3),
            "by_destination": {},
        },
        "inbox": {"processed": exactly(3), "by_handler": {"A": exactly(2), "B": exactly(1)}},
        "dead_letters": {
            "open": exactly(5),
            "by_reason": [
                {"side": "inbox", "reason": "rejected", "count": exactly(2)},
                {"side": "outbox", "reason": "refused", "count": exactly(3)},
            ],
            "resolved": exactly(1),
        },
        "history": {"published": exactly(1), "requests": exactly(4), "unknown_effects": exactly(2)},
        "paused": [],
        "retried": [],
        "workers": [],
        "unconsumed": [],
        "vacuum": None,
    }


def test_a_type_cannot_steer_the_terminal(run: Run, engine: Engine, database_url: str):
    with engine.begin() as connection:
        add_rows(connection, type="[bold]x[/nonsense]\x1b[31m")
    ended = run("status", "--database-url", database_url)
    assert ended.code == 0
    assert r"[bold]x[/nonsense]\x1b[31m: 1" in ended.out


def test_other_destinations_have_a_line_each(run: Run, filled: str, engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "90")
    with engine.begin() as connection:
        add_rows(connection, 2, destination="payments", created_at=NOW - 3 * HOUR)
        add_rows(connection, key="b", destination="payments", held=True, due_at=tables.PARKED)
        add_dead(connection, key="b", destination="payments", parked=True)
    outbox = json.loads(run("status", "--json", "--database-url", filled).out)["figures"]["outbox"]
    payments = outbox["by_destination"]["payments"]
    assert 3 * 3600 <= payments.pop("oldest_age_seconds") < 4 * 3600
    assert payments.pop("next_due") is payments.pop("last_due") is None
    assert payments == {name: exactly(count) for name, count in zip(STATES, (3, 2, 0, 0, 1), strict=True)}
    ours = outbox["by_destination"]["default"]
    assert [ours[name]["value"] for name in STATES] == [8, 2, 1, 2, 3]
    assert (outbox["pending"], outbox["parked"]) == (exactly(11), exactly(4))
    ended = run("status", "--database-url", filled)
    lines = re.sub(r"\d+ min", "some min", ended.out).splitlines()
    assert "              to default: 2 ready, 1 delayed, 2 held, 3 parked, the oldest for 2 h some min" in lines
    assert "              to payments: 2 ready, 1 parked, the oldest for 3 h some min" in lines


STATES = ("pending", "ready", "delayed", "held", "parked")


def test_why_messages_wait_is_said_for_each_destination(run: Run, engine: Engine, database_url: str):
    rows = [
        {"destination": "default", "last_error": "queue full", "due_at": NOW + HOUR, "attempts": 4},
        {"destination": "default", "last_error": "unroutable", "due_at": NOW + 2 * HOUR},
        {"destination": "default", "last_error": None, "due_at": NOW + 3 * HOUR},
        {"destination": "payments", "last_error": "HTTP 401 \x1b[2J" + "x" * 300, "due_at": NOW + HOUR},
        {"destination": "payments", "last_error": "dead", "due_at": tables.PARKED},
    ]
    with engine.begin() as connection:
        for row in rows:
            add_rows(connection, type="T", held=True, **row)
    lines = " ".join(run("status", "--database-url", database_url).out.split())
    assert "2 messages of type T to default cannot be published, after up to 4 attempts: unroutable" in lines
    assert "1 message of type T to payments cannot be published for now: HTTP 401 \\x1b[2J" in lines
    assert "x" * 201 not in lines
