"""`outboxkit status` on SQLite; tests/integration/test_status.py has what only PostgreSQL knows."""

import json
import re
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert

from outboxkit import tables
from tests.unit.cli.conftest import Run
from tests.unit.cli.status.rows import HOUR, NOW, add_dead, add_rows, fill


@pytest.fixture
def filled(engine: Engine, database_url: str) -> str:
    with engine.begin() as connection:
        fill(connection)
    return database_url


UNKNOWN = (
    "2 effects may have happened or not: the next run decides as its on_unknown says; see outboxkit_effect, state "
    "'started'"
)


def exactly(value: int) -> dict[str, Any]:
    return {"value": value, "at_least": False}


def test_json_says_everything(run: Run, filled: str):
    ended = run("status", "--json", "--database-url", filled)
    assert (ended.code, ended.err) == (0, "")
    said = json.loads(ended.out)
    assert 7200 <= said["outbox"].pop("oldest_age_seconds") < 9 * 3600
    assert datetime.fromisoformat(said["outbox"].pop("next_due")) == NOW + HOUR
    assert datetime.fromisoformat(said["published"].pop("oldest")) == NOW - 48 * HOUR
    assert said == {
        "database": filled,
        "broker": "amqp://localhost:5672/",
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
            "parked_keys": {
                "count": exactly(3),
                "top": [
                    {"key": "b", "waiting": exactly(2), "dead": exactly(1), "destination": "default"},
                    {"key": "c", "waiting": exactly(1), "dead": exactly(1), "destination": "default"},
                    {"key": "d", "waiting": exactly(0), "dead": exactly(1), "destination": "default"},
                ],
                "more": exactly(0),
            },
            "by_destination": {},
            "retried": [],
        },
        "inbox": {"processed": exactly(3), "by_handler": {"A": exactly(2), "B": exactly(1)}, "shared_names": []},
        "dead_letters": {
            "open": exactly(5),
            "by_reason": [
                {"side": "inbox", "reason": "rejected", "count": exactly(2)},
                {"side": "outbox", "reason": "refused", "count": exactly(3)},
            ],
            "resolved": exactly(1),
        },
        "published": {"kept": exactly(1)},
        "idempotency": {"remembered": exactly(4)},
        "effects": {"unknown": exactly(2)},
        "sessions": None,
        "vacuum": None,
        "missing_right": None,
        "paused": [],
        "holding": [],
        "hanging": [],
        "blockers": [],
        "missing_parts": [],
        "advice": ["3 keys are parked: see `outboxkit dead list`, then replay or discard", UNKNOWN],
    }


def test_the_lines_for_people(run: Run, filled: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = run("status", "--database-url", filled)
    assert ended.code == 0
    where, label, report = ended.out.partition("advice   ")
    assert where.split() == ["database", filled, "broker", "amqp://localhost:5672/"]
    assert re.sub(r"\d+ min", "some min", label + report).splitlines() == [
        "advice        3 keys are parked: see `outboxkit dead list`, then replay or",
        "                discard",
        "              2 effects may have happened or not: the next run decides as its",
        "                on_unknown says; see outboxkit_effect, state 'started'",
        "outbox        8 pending, the oldest for 2 h some min",
        "                2 ready, 1 delayed, 2 held, 3 parked",
        f"                next due: {NOW + HOUR:%Y-%m-%d %H:%M:%S} UTC",
        "                OrderConfirmed: 7, 1 failed before",
        "                StockChanged: 1",
        "              3 keys parked",
        "                b: 2 waiting behind 1 dead letter",
        "                c: 1 waiting behind 1 dead letter",
        "                d: nothing waits behind 1 dead letter",
        "inbox         3 processed",
        "                A: 2",
        "                B: 1",
        "dead letters  5 open, 1 resolved",
        "                inbox, rejected: 2",
        "                outbox, refused: 3",
        f"published     1 kept, the oldest of {NOW - 48 * HOUR:%Y-%m-%d %H:%M} UTC",
        "idempotency   4 keys remembered",
        "effects       2 unknown: started, and nobody knows whether they happened",
        "tables        version 1",
    ]


def test_nothing_at_all(run: Run, database_url: str):
    said = json.loads(run("status", "--json", "--database-url", database_url).out)
    assert said["outbox"] == {
        **dict.fromkeys(("pending", "ready", "delayed", "held", "parked"), exactly(0)),
        "oldest_age_seconds": None,
        "next_due": None,
        "by_type": {},
        "parked_keys": {"count": exactly(0), "top": [], "more": exactly(0)},
        "by_destination": {},
        "retried": [],
    }
    assert (said["inbox"]["processed"], said["dead_letters"]["open"], said["advice"]) == (exactly(0), exactly(0), [])
    lines = run("status", "--database-url", database_url).out.splitlines()
    assert lines[lines.index("broker        amqp://localhost:5672/") + 1 :] == [
        "outbox        0 pending",
        "inbox         0 processed",
        "dead letters  0 open",
        "tables        version 1",
    ]


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
    outbox = json.loads(run("status", "--json", "--database-url", filled).out)["outbox"]
    payments = outbox["by_destination"]["payments"]
    assert 3 * 3600 <= payments.pop("oldest_age_seconds") < 4 * 3600
    assert payments.pop("next_due") is None
    assert payments == {name: exactly(count) for name, count in zip(STATES, (3, 2, 0, 0, 1), strict=True)}
    ours = outbox["by_destination"]["default"]
    assert [ours[name]["value"] for name in STATES] == [8, 2, 1, 2, 3]
    assert (outbox["pending"], outbox["parked"]) == (exactly(11), exactly(4))
    assert [(key["key"], key["destination"], key["waiting"]["value"]) for key in outbox["parked_keys"]["top"]] == [
        ("b", "default", 2),
        ("b", "payments", 1),
        ("c", "default", 1),
        ("d", "default", 0),
    ]
    ended = run("status", "--database-url", filled)
    lines = re.sub(r"\d+ min", "some min", ended.out).splitlines()
    assert "              to default: 2 ready, 1 delayed, 2 held, 3 parked, the oldest for 2 h some min" in lines
    assert "              to payments: 2 ready, 1 parked, the oldest for 3 h some min" in lines
    assert "                b to payments: 1 waiting behind 1 dead letter" in lines


STATES = ("pending", "ready", "delayed", "held", "parked")


def test_why_messages_wait_is_said_for_each_destination(run: Run, database_url: str):
    engine = create_engine(database_url)
    message = {"type": "T", "payload": b"{}", "headers": b"{}", "content_type": "application/json", "held": True}
    rows = [
        {"destination": "default", "last_error": "queue full", "due_at": NOW + HOUR},
        {"destination": "default", "last_error": "unroutable", "due_at": NOW + 2 * HOUR},
        {"destination": "default", "last_error": None, "due_at": NOW + 3 * HOUR},
        {"destination": "payments", "last_error": "HTTP 401 \x1b[2J" + "x" * 300, "due_at": NOW + HOUR},
        {"destination": "payments", "last_error": "dead", "due_at": tables.PARKED},
    ]
    with engine.begin() as connection:
        connection.execute(
            insert(tables.outbox), [message | row | {"message_id": f"{n}"} for n, row in enumerate(rows)]
        )
    engine.dispose()
    said = json.loads(run("status", "--json", "--database-url", database_url).out)["outbox"]["retried"]
    assert said[0] == {"destination": "default", "waiting": exactly(2), "last_error": "unroutable"}
    assert (said[1]["destination"], said[1]["waiting"]) == ("payments", exactly(1))
    lines = " ".join(run("status", "--database-url", database_url).out.split())
    assert "2 wait for a retry, the latest because of: unroutable" in lines
    assert "1 to payments waits for a retry, the latest because of: HTTP 401 \\x1b[2J" in lines
    assert "x" * 201 not in lines
