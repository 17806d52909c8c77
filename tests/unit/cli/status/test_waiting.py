"""The outbox beyond the limit of the counting, on SQLite; each state and destination by itself."""

from datetime import timedelta

import pytest
from sqlalchemy import Engine

from outboxkit import tables
from outboxkit.errors.figures import Count
from outboxkit.operators import status
from tests.unit.cli.status.rows import HOUR, NOW, add_dead, add_rows


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "COUNTED", 50)
    monkeypatch.setattr(status, "LIMIT", {"limit": 51})


@pytest.mark.parametrize(
    ("columns", "age"),
    [
        ({"created_at": NOW - HOUR}, 3600),
        ({"created_at": NOW - HOUR, "held": True, "due_at": NOW + HOUR}, 3600),
        ({"created_at": NOW - 2 * HOUR, "due_at": NOW - HOUR}, 3600),
        ({"created_at": NOW - 2 * HOUR, "due_at": NOW + HOUR}, None),
        ({"created_at": NOW - 2 * HOUR, "held": True, "due_at": tables.PARKED}, None),
        ({"created_at": NOW + HOUR}, 0),
        ({"created_at": None}, None),
    ],
)
def test_the_oldest_is_one_that_should_be_gone(engine: Engine, columns: dict[str, object], age: float | None):
    with engine.begin() as connection:
        add_rows(connection, **columns)
        assert status.read_figures(connection, NOW).outbox.oldest_age_seconds == age


def test_an_overdue_time_is_the_next_due(engine: Engine):
    with engine.begin() as connection:
        add_rows(connection, due_at=NOW - timedelta(minutes=1))
        assert status.read_figures(connection, NOW).outbox.next_due == NOW - timedelta(minutes=1)


def test_a_destination_is_named_only_where_something_waits_for_it(engine: Engine):
    with engine.begin() as connection:
        add_rows(connection)
        add_dead(connection, key="k", destination="payments", parked=True)
        found = status.read_figures(connection, NOW).outbox
    assert found.by_destination == {}
    assert found.parked_keys == Count(1)
