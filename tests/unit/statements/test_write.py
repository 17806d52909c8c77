"""Writing statements: what new rows and their conflicts mean. Their plain SQL is in `tests/unit/sql/`."""

from typing import Any

import pytest
from sqlalchemy import ClauseElement, Engine, func, select
from sqlalchemy.dialects import postgresql, sqlite

from outboxkit.statements import write
from outboxkit.tables import outbox
from tests.unit.shop import NOW

ROW = {
    "message_id": "m-1",
    "type": "T",
    "payload": b"{}",
    "headers": b"{}",
    "content_type": "application/json",
    "created_at": NOW,
    "discard_unroutable": False,
    "dedup": False,
}
OF_THE_RELAY = {"position", "attempts", "last_error", "held", "first_failed_at"}


def shown(statement: ClauseElement, dialect: Any = postgresql) -> str:
    return str(statement.compile(dialect=dialect.dialect()))


def count(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(outbox)).scalar_one()


def test_a_new_row_says_all_but_what_is_the_relay_s():
    assert {column.name for column in outbox.columns} - {column.name for column in write.WRITTEN} == OF_THE_RELAY


@pytest.mark.parametrize("dialect", [postgresql, sqlite])
def test_nothing_is_asked_back(dialect: Any):
    name = dialect.dialect().name
    for statement in (write.insert_one(), write.insert_one_unless_there(name)):
        assert "RETURNING" not in shown(statement, dialect)
    for statement in (write.insert_many("postgresql"), write.insert_many_unless_there("postgresql")):
        assert "RETURNING" not in shown(statement)


def test_only_rows_with_dedup_stand_in_each_other_s_way(engine: Engine):
    once = {**ROW, "dedup": True}
    with engine.begin() as connection:
        for given in (ROW, ROW, once, once, ROW):
            connection.execute(write.insert_one_unless_there("sqlite"), given)
    assert count(engine) == 4


@pytest.mark.parametrize(("due_at", "delayed", "anyhow"), [(None, 0, 1), (NOW, 1, 0)])
def test_cancel(engine: Engine, due_at: object, delayed: int, anyhow: int):
    with engine.begin() as connection:
        connection.execute(
            write.insert_one(), [{**ROW, "due_at": due_at}, {**ROW, "message_id": "m-2", "due_at": None}]
        )
        for statement, deleted in ((write.cancel_delayed(), delayed), (write.cancel_message(), anyhow)):
            assert connection.execute(statement, {"message_id": "m-1"}).rowcount == deleted
    assert count(engine) == 1


def test_locks_are_taken_in_the_order_of_their_numbers():
    inner = shown(write.lock_keys()).partition("(SELECT DISTINCT")[2]
    assert "ORDER BY number" in inner
