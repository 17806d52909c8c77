"""Counted starts and failures of a message."""

from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine, Result, insert, select

from outboxkit.statements import inbox
from outboxkit.tables import attempt
from tests.unit.shop import NOW

THIS, OTHER = {"queue": "q", "message_id": "m-1"}, {"queue": "q", "message_id": "m-2"}


def counted(connection: Connection, message: dict[str, str]) -> Result[Any]:
    columns = attempt.c
    found = select(columns.starts, columns.failures, columns.first_failed_at)
    return connection.execute(found.where(columns.message_id == message["message_id"]))


def test_starts_add_up_until_a_failure_ends_them(engine: Engine):
    start, fail = inbox.start("sqlite"), inbox.fail("sqlite")
    with engine.begin() as connection:
        assert counted(connection, THIS).first() is None
        assert [tuple(connection.execute(start, THIS).one()) for _ in range(2)] == [(1, 0, None), (2, 0, None)]
        failures, first = connection.execute(fail, THIS).one()
        assert (failures, first is not None) == (1, True)
        assert tuple(connection.execute(fail, THIS).one()) == (2, first)
        assert tuple(connection.execute(start, THIS).one()) == (1, 2, first)
        assert tuple(counted(connection, THIS).one()) == (1, 2, first)


def test_a_message_that_fails_without_a_start(engine: Engine):
    with engine.begin() as connection:
        failures, first = connection.execute(inbox.fail("sqlite"), THIS).one()
        assert (failures, first is not None) == (1, True)
        assert tuple(counted(connection, THIS).one()) == (0, 1, first)


def test_a_start_that_is_called_off_does_not_count(engine: Engine):
    start = inbox.start("sqlite")
    with engine.begin() as connection:
        for _ in range(2):
            connection.execute(start, THIS)
        connection.execute(start, OTHER)
        connection.execute(inbox.call_off(), {f"at_{name}": value for name, value in THIS.items()})
        assert tuple(counted(connection, THIS).one()) == (1, 0, None)
        assert tuple(counted(connection, OTHER).one()) == (1, 0, None)


def test_forgetting_one_leaves_the_others(engine: Engine):
    with engine.begin() as connection:
        for one in (THIS, OTHER, {"queue": "r", "message_id": "m-1"}):
            connection.execute(inbox.start("sqlite"), one)
        connection.execute(inbox.forget_attempt(), THIS)
        assert sorted(connection.execute(select(attempt.c.queue, attempt.c.message_id)).all()) == [
            ("q", "m-2"),
            ("r", "m-1"),
        ]


def test_what_nothing_has_changed_for_long_goes_up_to_the_limit(engine: Engine):
    rows = [{"queue": "q", "message_id": f"m-{age}", "touched_at": NOW - timedelta(days=age)} for age in range(5)]
    with engine.begin() as connection:
        connection.execute(insert(attempt), rows)
        statement = inbox.prune_attempts(NOW - timedelta(days=1, hours=1), 2)
        assert [connection.execute(statement).rowcount for _ in range(3)] == [2, 1, 0]
