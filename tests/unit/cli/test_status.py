"""`outboxkit status`."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, insert

from outboxkit import tables
from tests.unit.cli.conftest import Run

NOW = datetime.now(UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def filled(engine: Engine, database_url: str) -> str:
    envelope = {"payload": b"{}", "headers": b"{}", "content_type": "application/json"}
    waiting = [
        {"message_id": "a", "type": "OrderConfirmed", "created_at": NOW - 2 * HOUR, "due_at": None, "attempts": 0},
        {"message_id": "b", "type": "OrderConfirmed", "created_at": NOW - HOUR, "due_at": NOW + HOUR, "attempts": 3},
        {"message_id": "c", "type": "StockChanged", "created_at": None, "due_at": NOW + 2 * HOUR, "attempts": 0},
    ]
    dead = {"side": "inbox", "reason": "rejected", "attempts": 1}
    with engine.begin() as connection:
        connection.execute(insert(tables.outbox), [row | envelope for row in waiting])
        for handler, message_id in (("A", "1"), ("A", "2"), ("B", "1")):
            connection.execute(insert(tables.inbox).values(handler=handler, message_id=message_id, type="T"))
        connection.execute(insert(tables.dead_letter), [dead | envelope] * 2)
    return database_url


def test_json_says_everything(run: Run, filled: str):
    ended = run("status", "--json", "--database-url", filled)
    assert (ended.code, ended.err) == (0, "")
    said = json.loads(ended.out)
    age = said["outbox"].pop("oldest_age_seconds")
    assert age >= 7200
    assert datetime.fromisoformat(said["outbox"].pop("next_due")) == NOW + HOUR
    assert said == {
        "outbox": {
            "pending": 3,
            "waiting_for_later": 2,
            "by_type": {
                "OrderConfirmed": {"pending": 2, "failed_before": 1},
                "StockChanged": {"pending": 1, "failed_before": 0},
            },
        },
        "inbox": {"processed": 3, "by_handler": {"A": 2, "B": 1}},
        "dead_letters": {"count": 2, "by_reason": [{"side": "inbox", "reason": "rejected", "count": 2}]},
    }


def test_the_table_for_people(run: Run, filled: str):
    ended = run("status", "--database-url", filled)
    assert ended.code == 0
    for text in (
        "3 pending, the oldest for 7",
        f"2 of them wait for a later time, the next {NOW + HOUR:%H:%M:%S} UTC",
        "OrderConfirmed: 2, 1 failed before",
        "StockChanged: 1",
        "3 processed",
        "A: 2",
        "inbox, rejected: 2",
    ):
        assert text in ended.out


def test_nothing_at_all(run: Run, database_url: str):
    said = json.loads(run("status", "--json", "--database-url", database_url).out)
    assert said["outbox"] == {
        "pending": 0,
        "waiting_for_later": 0,
        "next_due": None,
        "oldest_age_seconds": None,
        "by_type": {},
    }
    assert (said["inbox"]["processed"], said["dead_letters"]["count"]) == (0, 0)
    assert "0 pending" in run("status", "--database-url", database_url).out


def test_a_type_that_looks_like_markup_is_shown_as_it_is(run: Run, engine: Engine, database_url: str):
    row = {"message_id": "a", "type": "[bold]x[/nonsense]", "payload": b"", "headers": b"{}", "content_type": "a/b"}
    with engine.begin() as connection:
        connection.execute(insert(tables.outbox), [row])
    ended = run("status", "--database-url", database_url)
    assert ended.code == 0
    assert "[bold]x[/nonsense]: 1" in ended.out
