"""Inbox statements: what is told by a row, and what is forgotten. Their plain SQL is in `tests/unit/sql/`."""

from datetime import timedelta

from sqlalchemy import Engine, insert, select

from outboxkit.statements import inbox as statements
from outboxkit.tables import inbox
from tests.unit.shop import NOW


def test_only_the_first_time_returns_a_row(engine: Engine):
    with engine.begin() as connection:
        found = [
            connection.execute(
                statements.record_processed("sqlite", handler=handler, message_id=message_id, type_="T")
            ).scalar()
            for handler, message_id in [("A", "m-1"), ("A", "m-1"), ("B", "m-1"), ("A", "m-2")]
        ]
    assert found == ["m-1", None, "m-1", "m-2"]


def test_nothing_is_recorded_to_find_out_whether_something_could_be(engine: Engine):
    with engine.begin() as connection:
        connection.execute(statements.record_nothing())
        assert connection.execute(select(inbox)).all() == []


def test_old_rows_go_up_to_the_limit(engine: Engine):
    rows = [
        {"handler": "A", "message_id": f"m-{age}", "type": "T", "processed_at": NOW - timedelta(days=age)}
        for age in range(5)
    ]
    with engine.begin() as connection:
        connection.execute(insert(inbox), rows)
        statement = statements.prune_inbox(NOW - timedelta(days=1, hours=1), 2)
        assert [connection.execute(statement).rowcount for _ in range(3)] == [2, 1, 0]
        assert set(connection.execute(select(inbox.c.message_id)).scalars()) == {"m-0", "m-1"}
