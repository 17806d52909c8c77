"""Effect statements: who gets the row, and when it may still be changed. Their plain SQL is in `tests/unit/sql/`."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Executable, select

from outboxkit.statements import effects as statements
from outboxkit.tables import effect

MINE = {"at_key": "k", "at_token": "first"}
NOBODY = {"made": None, "by_handler": None, "by_message_id": None}


@pytest.fixture
def begun(engine: Engine):
    """A connection in a transaction in which a call was begun."""
    with engine.begin() as connection:
        assert intend(connection, "first") == "k"
        yield connection


def intend(connection: Connection, token: str) -> str | None:
    return connection.execute(
        statements.intend("sqlite"),
        {
            "key": "k",
            "token": token,
            "lease": timedelta(seconds=90.5),
            "made": None,
            "handler": None,
            "message_id": None,
        },
    ).scalar()


def changed(connection: Connection, statement: Executable, **parameters: Any) -> int:
    return connection.execute(statement, MINE | parameters).rowcount


def row(connection: Connection) -> Any:
    return connection.execute(select(effect)).one()


def test_only_the_first_intention_returns_a_row(begun: Connection):
    assert intend(begun, "second") is None
    assert row(begun).token == "first"


def test_it_is_found_with_the_time_and_its_lease(begun: Connection):
    found = begun.execute(statements.use_effect("sqlite"), {"at_key": "k"} | NOBODY).one()
    assert (found.state, found.token, found.result) == ("started", "first", None)
    assert found.locked_until - found.started_at == timedelta(seconds=90.5)
    assert timedelta(0) <= found.now - found.started_at < timedelta(minutes=1)
    assert begun.execute(statements.use_effect("sqlite"), {"at_key": "other"} | NOBODY).first() is None


def test_it_is_taken_over_from_the_run_that_was_found_alone(begun: Connection):
    take = statements.take_over_effect("sqlite")
    assert changed(begun, take, new_token="second", lease=timedelta(minutes=5)) == 1
    assert changed(begun, take, new_token="third", lease=timedelta(minutes=5)) == 0
    assert row(begun).token == "second"
    assert row(begun).locked_until - row(begun).started_at >= timedelta(seconds=300)


@pytest.mark.parametrize("state", ["done", "repeated"])
def test_what_is_recorded_stays(begun: Connection, state: str):
    record = statements.record_result("sqlite")
    assert changed(begun, record, new_state=state, new_result=b"7") == 1
    assert (row(begun).state, row(begun).result) == (state, b"7")
    assert row(begun).finished_at is not None
    assert changed(begun, record, new_state="done", new_result=b"8") == 0
    assert changed(begun, statements.take_over_effect("sqlite"), new_token="second", lease=timedelta(seconds=1)) == 0
    assert changed(begun, statements.skip("sqlite"), new_token="second") == 0
    assert changed(begun, statements.end_effect_lease("sqlite")) == 0
    assert changed(begun, statements.withdraw()) == 0
    assert (row(begun).state, row(begun).result) == (state, b"7")


def test_after_a_skip_the_run_that_was_slow_records_nothing(begun: Connection):
    assert changed(begun, statements.skip("sqlite"), new_token="second") == 1
    assert row(begun).state == "skipped"
    assert changed(begun, statements.record_result("sqlite"), new_state="done", new_result=b"7") == 0
    assert changed(begun, statements.record_result("sqlite"), at_token="second", new_state="done", new_result=b"7") == 0


def test_a_lease_ends_at_once(begun: Connection):
    assert changed(begun, statements.end_effect_lease("sqlite"), at_token="other") == 0
    assert changed(begun, statements.end_effect_lease("sqlite")) == 1
    found = begun.execute(statements.use_effect("sqlite"), {"at_key": "k"} | NOBODY).one()
    assert found.locked_until <= found.now


def test_an_intention_is_withdrawn_by_its_own_run_alone(begun: Connection):
    assert changed(begun, statements.withdraw(), at_token="other") == 0
    assert changed(begun, statements.withdraw()) == 1
    assert intend(begun, "second") == "k"
