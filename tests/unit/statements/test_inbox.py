"""Inbox statements: what is told by a row, and what is forgotten. Their plain SQL is in `tests/unit/sql/`."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, select

from outboxkit import statements
from outboxkit.tables import inbox
from tests.unit.shop import NOW

FAR = datetime(2060, 1, 1, 12, 30, 15, 250_000, tzinfo=UTC)
ROW = {"handler": "A", "message_id": "m-1", "type": "T", "attempts": 1, "payload_crc": None, "made": None}


def processed_at(connection: Connection) -> dict[str, datetime]:
    return {row[0]: row[1] for row in connection.execute(select(inbox.c.message_id, inbox.c.processed_at))}


def test_a_row_is_never_older_than_its_message(engine: Engine):
    with engine.begin() as connection:
        for name, made in (("none", None), ("past", NOW - timedelta(days=900)), ("future", FAR)):
            connection.execute(statements.inbox.record_processed("sqlite"), ROW | {"message_id": name, "made": made})
        found = processed_at(connection)
    assert found["future"] == FAR
    assert found["none"] == found["past"]
    assert abs(found["none"] - datetime.now(UTC)) < timedelta(minutes=1)


def lists(*rows: dict[str, Any]) -> dict[str, list[Any]]:
    return {f"{name}s" if name != "attempts" else name: [row[name] for row in rows] for name in ROW}


def test_many_rows_are_as_one_by_one(engine: Engine):
    record = statements.inbox.record_all("sqlite")
    rows = [
        ROW,
        ROW | {"message_id": 'm-"2"', "attempts": 7, "made": FAR},
        ROW,
        ROW | {"handler": "B", "made": NOW - timedelta(days=900)},
    ]
    with engine.begin() as connection:
        assert [row[:2] for row in connection.execute(record, lists(rows[0]))] == [("A", "m-1")]
        assert {row[:2] for row in connection.execute(record, lists(*rows))} == {("A", 'm-"2"'), ("B", "m-1")}
        assert connection.execute(record, lists(*rows)).all() == []
        assert connection.execute(record, lists()).all() == []
        assert processed_at(connection)['m-"2"'] == FAR
        kept = select(inbox.c.handler, inbox.c.message_id, inbox.c.type, inbox.c.attempts)
        assert sorted(connection.execute(kept).all()) == [
            ("A", 'm-"2"', "T", 7),
            ("A", "m-1", "T", 1),
            ("B", "m-1", "T", 1),
        ]


def test_a_pair_that_is_given_twice_is_told_once(engine: Engine):
    with engine.begin() as connection:
        rows = connection.execute(statements.inbox.record_all("sqlite"), lists(ROW, ROW)).all()
    assert [row[:2] for row in rows] == [("A", "m-1")]


def test_nothing_is_recorded_to_find_out_whether_something_could_be(engine: Engine):
    with engine.begin() as connection:
        connection.execute(statements.inbox.probe_writable())
        assert connection.execute(select(inbox)).all() == []
