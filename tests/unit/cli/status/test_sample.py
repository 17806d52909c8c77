"""What a part of a table says about all of it, on SQLite: its oldest rows."""

import pytest
from sqlalchemy import Engine, delete

from outboxkit import statements, tables
from outboxkit.cli.status import sample
from outboxkit.cli.wording import Count
from tests.unit.cli.status.rows import add_rows

QUERY = statements.status.sampled_by_type("sqlite")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "EXACT_UP_TO", 100)


def test_a_whole_table_is_counted(engine: Engine):
    with engine.begin() as connection:
        add_rows(connection, 99)
        assert sample.take(connection, tables.outbox, QUERY).count() == Count(99)


def test_an_empty_table_is_counted(engine: Engine):
    with engine.begin() as connection:
        assert sample.take(connection, tables.outbox, QUERY).count() == Count(0)


def test_a_large_table_is_estimated(engine: Engine):
    with engine.begin() as connection:
        add_rows(connection, 75, type="A")
        add_rows(connection, 325, type="B")
        found = sample.take(connection, tables.outbox, QUERY)
    assert found.count() == Count(400, estimate=True)
    assert found.count(lambda row: row.type == "A") == Count(300, estimate=True)


def test_few_rows_far_apart_are_counted(engine: Engine):
    with engine.begin() as connection:
        add_rows(connection, 400)
        connection.execute(delete(tables.outbox).where(tables.outbox.c.position.between(2, 399)))
        assert sample.take(connection, tables.outbox, QUERY).count() == Count(2)
