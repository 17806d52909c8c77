"""What `outboxkit status` reads is bounded, on both kinds of database."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine

from outboxkit import tables
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
SAMPLED: list[Callable[[str], Any]] = [
    status.sampled_by_type,
    status.sampled_dead,
    status.sampled_processed,
    status.sampled_published,
    status.sampled_remembered,
]


@pytest.mark.parametrize("function", LIMITED, ids=lambda function: function.__name__)
def test_a_count_reads_no_more_rows_than_the_limit(engine: Engine, function: Callable[[], Any]):
    with engine.begin() as connection:
        fill(connection)
        given = {"limit": 1, "top": 10, "destination": "default", "now": NOW}
        counted = connection.execute(function(), given).all()
        assert len(counted) == 1
        assert "limit" in (inspect.getdoc(function) or "")


@pytest.mark.parametrize("function", SAMPLED, ids=lambda function: function.__name__)
def test_a_sample_reads_no_more_rows_than_the_limit(engine: Engine, function: Callable[[str], Any]):
    with engine.begin() as connection:
        fill(connection)
        assert sum(row.rows for row in connection.execute(function("sqlite"), {"limit": 1})) == 1


@pytest.mark.parametrize("table", [tables.outbox, tables.inbox, tables.idempotency, tables.published])
def test_the_size_of_a_table_on_sqlite_is_the_span_of_its_rows(engine: Engine, table: tables.Table):
    with engine.begin() as connection:
        assert connection.execute(status.size("sqlite", table)).scalar_one() == 0
        fill(connection)
        rows = len(connection.execute(table.select()).all())
        assert connection.execute(status.size("sqlite", table)).scalar_one() == rows


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
