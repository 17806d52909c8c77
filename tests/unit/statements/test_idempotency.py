"""Statements of the ledger: what is taken over and what is not. Their plain SQL is in `tests/unit/sql/`."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, select, update

from outboxkit import statements
from outboxkit.tables import idempotency

THIS = {"at_scope": "s", "at_principal": "p", "at_key": "k"}
ASKED = THIS | {"asked": b"a" * 32, "retention": timedelta(hours=1), "lease": None}


def take(connection: Connection, token: str, **changed: Any) -> Any:
    return connection.execute(statements.idempotency.take_key("sqlite"), ASKED | {"token_now": token} | changed).first()


def found(connection: Connection) -> Any:
    return connection.execute(select(idempotency)).one()


def moved(connection: Connection, column: str, by: timedelta, **values: Any) -> None:
    """Set a time relative to the database's own."""
    now = connection.execute(statements.idempotency.look_up("sqlite"), THIS).one().now
    connection.execute(update(idempotency).values({column: now + by} | values))


def test_the_times_are_exact_to_the_millisecond(engine: Engine):
    with engine.begin() as connection:
        take(connection, "t1", lease=timedelta(milliseconds=1500), retention=timedelta(days=36_500, milliseconds=1))
        row = found(connection)
        assert row.locked_until - row.created_at == timedelta(milliseconds=1500)
        assert row.expires_at - row.created_at == timedelta(days=36_500, milliseconds=1)
        assert isinstance(row.locked_until, datetime)


SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


@pytest.mark.parametrize(
    ("state", "expires", "locked", "asked", "is_taken", "keeps_steps"),
    [
        ("processing", HOUR, None, b"a", False, None),
        ("processing", HOUR, HOUR, b"a", False, None),
        ("processing", HOUR, -SECOND, b"a", True, True),
        ("processing", HOUR, -SECOND, b"b", False, None),
        ("done", HOUR, None, b"a", False, None),
        ("done", HOUR, -SECOND, b"a", False, None),
        ("done", -SECOND, None, b"a", True, False),
        ("done", -SECOND, None, b"b", True, False),
        ("processing", -SECOND, None, b"b", True, False),
        ("processing", -SECOND, HOUR, b"b", True, False),
        ("processing", -SECOND, -SECOND, b"a", True, False),
    ],
)
def test_what_is_taken_over(
    engine: Engine,
    state: str,
    expires: timedelta,
    locked: timedelta | None,
    asked: bytes,
    is_taken: bool,
    keeps_steps: bool | None,
):
    with engine.begin() as connection:
        take(connection, "t1", lease=HOUR, retention=2 * HOUR)
        moved(connection, "locked_until", locked if locked is not None else HOUR)
        values = {"state": state, "steps": b"{}", "response_body": b"old", "response_status": 200}
        moved(connection, "expires_at", expires, **values)
        if locked is None:
            connection.execute(update(idempotency).values(locked_until=None))
        before = found(connection)
        taken = take(connection, "t2", asked=asked * 32, lease=SECOND)
        after = found(connection)
    assert (taken is not None) is is_taken
    if taken is None:
        assert after == before
        return
    assert (after.token, after.state, after.fingerprint, after.steps) == (
        "t2",
        "processing",
        asked * 32,
        b"{}" if keeps_steps else None,
    )
    assert (after.created_at == before.created_at) is keeps_steps
    assert (after.response_status, after.response_headers, after.response_body) == (None, None, None)
    assert after.locked_until - (after.expires_at - HOUR) == SECOND


def test_what_has_expired_is_not_seen(engine: Engine):
    with engine.begin() as connection:
        take(connection, "t1")
        seen = connection.execute(statements.idempotency.look_up("sqlite"), THIS).one()
        assert (seen.state, seen.token, seen.expires_at > seen.now) == ("processing", "t1", True)
        moved(connection, "expires_at", timedelta(0))
        assert connection.execute(statements.idempotency.look_up("sqlite"), THIS).first() is None


@pytest.mark.parametrize("statement", ["keep_steps", "record_answer", "end_key_lease", "forget_key"])
def test_only_the_run_that_has_the_key_writes_and_only_before_its_answer(engine: Engine, statement: str):
    function = getattr(statements.idempotency, statement)
    change = function() if statement in ("record_answer", "forget_key") else function("sqlite")
    given: dict[str, Any] = THIS | {
        "keep_steps": {"finished": b"{}", "lease": HOUR},
        "record_answer": {"status": 200, "headers": b"[]", "body": b""},
    }.get(statement, {})
    with engine.begin() as connection:
        take(connection, "t1", lease=HOUR)
        for wrong in ({"at_token": "t2"}, {"at_scope": "x"}, {"at_principal": ""}, {"at_key": "K"}):
            assert connection.execute(change, given | {"at_token": "t1"} | wrong).first() is None
        assert connection.execute(change, given | {"at_token": "t1"}).first() is not None
        if statement == "record_answer":
            assert connection.execute(change, given | {"at_token": "t1"}).rowcount == 0
