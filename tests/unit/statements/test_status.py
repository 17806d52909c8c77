"""What `outboxkit status` reads is bounded, on both kinds of database."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from outboxkit import tables
from outboxkit.statements import status
from tests.unit.cli.status.rows import fill

LIMITED: list[Callable[[], Any]] = [
    status.ready,
    status.waiting,
    status.parked,
    status.parked_keys,
    status.oldest_by_type,
    status.dead_open,
]
SAMPLED: list[Callable[[str], Any]] = [
    status.sampled_by_type,
    status.sampled_dead,
    status.sampled_processed,
    status.sampled_published,
]


@pytest.mark.parametrize("function", LIMITED, ids=lambda function: function.__name__)
def test_a_count_reads_no_more_rows_than_the_limit(engine: Engine, function: Callable[[], Any]):
    with engine.begin() as connection:
        fill(connection)
        counted = connection.execute(function(), {"limit": 1, "top": 10}).all()
        assert len(counted) == 1
        assert "limit" in (inspect.getdoc(function) or "")


@pytest.mark.parametrize("function", SAMPLED, ids=lambda function: function.__name__)
def test_a_sample_reads_no_more_rows_than_the_limit(engine: Engine, function: Callable[[str], Any]):
    with engine.begin() as connection:
        fill(connection)
        assert sum(row.rows for row in connection.execute(function("sqlite"), {"limit": 1})) == 1


@pytest.mark.parametrize("table", [tables.outbox, tables.inbox, tables.dead_letter, tables.published])
def test_the_size_of_a_table_on_sqlite_is_the_span_of_its_rows(engine: Engine, table: tables.Table):
    with engine.begin() as connection:
        assert connection.execute(status.size("sqlite", table)).scalar_one() == 0
        fill(connection)
        rows = len(connection.execute(table.select()).all())
        assert connection.execute(status.size("sqlite", table)).scalar_one() == rows
