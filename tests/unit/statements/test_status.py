"""What `outboxkit status` reads is bounded, on both kinds of database."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine

from outboxkit.statements import status
from tests.unit.cli.status.rows import NOW, add_dead, add_rows, fill

LIMITED: list[Callable[[], Any]] = [
    status.ready,
    status.waiting,
    status.parked,
    status.parked_keys,
    status.oldest_by_type,
    status.dead_open,
    status.unknown_effects,
]
COUNTS: list[Callable[[], Any]] = [status.count_processed, status.count_published, status.count_remembered]


@pytest.mark.parametrize("function", LIMITED, ids=lambda function: function.__name__)
def test_a_count_reads_no_more_rows_than_the_limit(engine: Engine, function: Callable[[], Any]):
    with engine.begin() as connection:
        fill(connection)
        given = {"limit": 1, "top": 10, "destination": "default", "now": NOW}
        counted = connection.execute(function(), given).all()
        assert len(counted) == 1
        assert "limit" in (inspect.getdoc(function) or "")


@pytest.mark.parametrize("function", COUNTS, ids=lambda function: function.__name__)
def test_the_rows_of_a_kind_are_counted_up_to_the_limit(engine: Engine, function: Callable[[], Any]):
    with engine.begin() as connection:
        fill(connection)
        whole = connection.execute(function(), {"limit": 100, "handler": "A"}).scalar_one()
        assert whole == {"count_processed": 2, "count_published": 1, "count_remembered": 4}[function.__name__]
        assert connection.execute(function(), {"limit": 1, "handler": "A"}).scalar_one() == 1


def test_resolved_dead_letters_are_counted_among_the_first(engine: Engine):
    with engine.begin() as connection:
        fill(connection)
        add_dead(connection, 4, resolution="discarded")
        assert connection.execute(status.dead_resolved(), {"limit": 100}).one() == (5, 10)
        assert connection.execute(status.dead_resolved(), {"limit": 8}).one() == (3, 8)


def test_the_handlers_in_the_inbox(engine: Engine):
    with engine.begin() as connection:
        assert connection.execute(status.handlers(), {"most": 10}).all() == []
        fill(connection)
        assert connection.execute(status.handlers(), {"most": 10}).scalars().all() == ["A", "B"]
        assert connection.execute(status.handlers(), {"most": 1}).scalars().all() == ["A"]


def test_the_destinations_of_what_is_ready_of_what_waits_and_of_what_is_parked(engine: Engine):
    with engine.begin() as connection:
        assert destinations(connection) == []
        for name in ("payments", "default", "mail"):
            add_rows(connection, 3, destination=name)
        add_rows(connection, 3, destination="mail", due_at=NOW)
        add_rows(connection, destination="later", due_at=NOW)
        add_dead(connection, destination="parked", key="k", parked=True)
        add_dead(connection, destination="dead", key="k")
        assert destinations(connection) == ["default", "later", "mail", "parked", "payments"]


def test_destinations_are_bounded(engine: Engine):
    with engine.begin() as connection:
        for number in range(20):
            add_rows(connection, destination=f"d{number:02}")
            add_rows(connection, destination=f"e{number:02}", due_at=NOW)
        assert destinations(connection, most=2) == ["d00", "d01", "e00", "e01"]


def destinations(connection: Connection, *, most: int = 100) -> list[str]:
    return list(connection.execute(status.destinations(), {"most": most, "limit": 100}).scalars())
