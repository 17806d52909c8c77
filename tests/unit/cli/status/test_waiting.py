"""The outbox beyond the limit of the counting, on SQLite; each state and destination by itself."""

from datetime import timedelta

import pytest
from sqlalchemy import Engine

from outboxkit import tables
from outboxkit.cli.wording import Count
from outboxkit.operators import status
from outboxkit.operators.status import OfType
from tests.unit.cli.status.rows import HOUR, NOW, add_dead, add_rows


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "COUNTED", 50)
    monkeypatch.setattr(status, "LIMIT", {"limit": 51})


def test_a_state_within_the_limit_is_exact_beside_one_beyond_it(engine: Engine):
    with engine.begin() as connection:
        add_rows(connection, 7, key="a", held=True, due_at=NOW + HOUR)
        add_rows(connection, 3, due_at=NOW + HOUR)
        add_rows(connection, 200)
        found = status.read_figures(connection, NOW).outbox
    assert (found.held, found.delayed, found.parked) == (Count(7), Count(3), Count(0))
    assert found.ready == Count(51, at_least=True)
    assert found.pending == Count(61, at_least=True)


def test_held_and_delayed_share_an_index_and_its_limit(engine: Engine):
    with engine.begin() as connection:
        for _ in range(30):
            add_rows(connection, key="a", held=True, due_at=NOW + HOUR)
            add_rows(connection, due_at=NOW + HOUR)
        found = status.read_figures(connection, NOW).outbox
    assert found.held.at_least
    assert found.delayed.at_least
    assert found.held + found.delayed == found.pending == Count(51, at_least=True)


def test_exactly_the_limit_is_exact(engine: Engine):
    with engine.begin() as connection:
        add_rows(connection, 50)
        assert status.read_figures(connection, NOW).outbox.by_type["OrderConfirmed"].pending == Count(50)
        add_rows(connection, 50, held=True, due_at=tables.PARKED)
        assert status.read_figures(connection, NOW).outbox.pending == Count(100)


def test_types_are_those_of_the_oldest_rows(engine: Engine):
    with engine.begin() as connection:
        add_rows(connection, 30, type="A", attempts=1)
        add_rows(connection, 30, type="B")
        add_rows(connection, 30, type="C")
        found = status.read_figures(connection, NOW).outbox
    assert found.by_type == {
        "A": OfType(Count(30, at_least=True), Count(30, at_least=True)),
        "B": OfType(Count(21, at_least=True), Count(0, at_least=True)),
    }


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


def test_more_parked_keys_than_are_read(engine: Engine):
    with engine.begin() as connection:
        for number in range(60):
            add_dead(connection, key=f"k{number:02}", parked=True)
        found = status.read_figures(connection, NOW).outbox.parked_keys
    assert found == Count(51, at_least=True)


def test_more_retries_than_are_read(engine: Engine):
    with engine.begin() as connection:
        add_rows(connection, 40, held=True, due_at=NOW + HOUR, last_error="queue full")
        add_rows(connection, 40, held=True, due_at=NOW + 2 * HOUR)
        (why,) = status.read_figures(connection, NOW).outbox.retried
    assert why.waiting == Count(40, at_least=True)


def test_an_overdue_time_is_the_next_due(engine: Engine):
    with engine.begin() as connection:
        add_rows(connection, due_at=NOW - timedelta(minutes=1))
        assert status.read_figures(connection, NOW).outbox.next_due == NOW - timedelta(minutes=1)


def test_one_destination_is_exact_beside_one_with_more_rows_than_are_counted(engine: Engine):
    with engine.begin() as connection:
        add_rows(connection, 200, created_at=NOW - HOUR)
        add_rows(connection, 7, destination="payments", created_at=NOW - 2 * HOUR)
        found = status.read_figures(connection, NOW).outbox
    payments, ours = found.by_destination["payments"], found.by_destination["default"]
    assert (payments.ready, payments.pending, payments.oldest_age_seconds) == (Count(7), Count(7), 7200)
    assert ours.ready == Count(51, at_least=True)
    assert ours.oldest_age_seconds == 3600
    assert found.oldest_age_seconds == 7200, "of the one that comes later by its name, too"


def test_destinations_that_are_few_are_exact_together_beyond_the_limit(engine: Engine):
    with engine.begin() as connection:
        for name in ("a", "b", "default"):
            add_rows(connection, 40, destination=name)
        found = status.read_figures(connection, NOW).outbox
    assert (found.ready, found.pending) == (Count(120), Count(120))


def test_a_destination_is_named_only_where_something_waits_for_it(engine: Engine):
    with engine.begin() as connection:
        add_rows(connection)
        add_dead(connection, key="k", destination="payments", parked=True)
        found = status.read_figures(connection, NOW).outbox
    assert found.by_destination == {}
    assert found.parked_keys == Count(1)


def test_what_goes_to_too_many_destinations_is_not_counted(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(status, "MOST_NAMES", 2)
    with engine.begin() as connection:
        for name in ("a", "b", "c", "d"):
            add_rows(connection, 5, destination=name)
        found = status.read_figures(connection, NOW).outbox
    assert found.by_destination.keys() == {"a", "b"}
    assert found.ready == Count(10, at_least=True)
