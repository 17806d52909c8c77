"""SettlementWriter statements: where a row goes, and with what. Their plain SQL is in `tests/unit/sql/`."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select

from outboxkit.codec.envelope import to_row
from outboxkit.message import Message
from outboxkit.statements import settle
from outboxkit.tables import PARKED, dead_letter, published
from tests.unit.shop import NOW
from tests.unit.statements.rows import left, put

LATER = NOW + timedelta(minutes=1)


def test_what_is_forgotten_is_gone_and_nothing_else(engine: Engine):
    with engine.begin() as connection:
        put(connection, {}, {}, {})
        connection.execute(settle.forget_rows("sqlite"), {"positions": [1, 3]})
        assert left(connection, "position") == [2]


def test_what_is_kept_is_the_message(engine: Engine):
    with engine.begin() as connection:
        put(connection, {"key": "a", "topic": "t", "payload": b"{1}"}, {})
        connection.execute(settle.keep_published("sqlite"), {"positions": [1]})
        row = connection.execute(select(published)).one()
        assert (row.position, row.message_id, row.key, row.topic, row.payload) == (1, "m-1", "a", "t", b"{1}")
        assert left(connection, "position") == [1, 2], "forget follows, on SQLite"


def test_a_failed_row_is_held_and_remembers_when_it_failed_first(engine: Engine):
    with engine.begin() as connection:
        put(connection, {})
        for error, now in (("first", NOW), ("second", LATER)):
            given = {"at_position": 1, "failures": 1, "error": error, "due": LATER, "now": now}
            connection.execute(settle.reschedule(), [given])
        assert left(connection, "attempts", "held", "due_at", "last_error", "first_failed_at") == [
            (2, True, LATER, "second", NOW)
        ]


def test_a_row_that_is_held_counts_no_attempt(engine: Engine):
    with engine.begin() as connection:
        put(connection, {}, {})
        connection.execute(settle.hold_rows("sqlite"), {"positions": [2], "due": LATER})
        assert left(connection, "attempts", "held", "due_at") == [(0, False, None), (0, True, LATER)]


@pytest.mark.parametrize(("parked", "due"), [(True, PARKED), (False, None)])
def test_only_rows_of_a_parked_key_are_parked(engine: Engine, parked: bool, due: Any):
    dead = {"side": "outbox", "payload": b"", "headers": b"{}", "content_type": "t", "attempts": 10}
    with engine.begin() as connection:
        connection.execute(insert(dead_letter), {**dead, "key": "a", "reason": "rejected", "parked": parked})
        put(connection, {"key": "a"}, {"key": "b"}, {"key": "a"})
        connection.execute(settle.park("sqlite"), {"positions": [1, 2], "of_destination": "default"})
        assert left(connection, "due_at", "held") == [(due, parked), (None, False), (None, False)]


def test_a_buried_row_is_a_dead_letter_with_its_story(engine: Engine):
    with engine.begin() as connection:
        put(connection, {"key": "a", "attempts": 9, "first_failed_at": NOW, "discard_unroutable": True})
        story = {"reason": "rejected", "error": "nacked", "failures": 1, "parked": True, "now": LATER}
        connection.execute(settle.bury("sqlite"), {**story, "positions": [1]})
        row = connection.execute(select(dead_letter)).one()
    assert (row.side, row.position, row.message_id, row.key, row.payload) == ("outbox", 1, "m-1", "a", b"{}")
    assert (row.reason, row.error, row.attempts, row.parked) == ("rejected", "nacked", 10, True)
    assert (row.first_failed_at, row.dead_at, row.discard_unroutable) == (NOW, LATER, True)


def test_what_is_nobodys_fault_is_no_failure(engine: Engine):
    with engine.begin() as connection:
        put(connection, {"attempts": 4})
        given = {"at_position": 1, "failures": 0, "error": "postponed", "due": LATER, "now": None}
        connection.execute(settle.reschedule(), [given])
        assert left(connection, "attempts", "held", "due_at", "first_failed_at") == [(4, True, LATER, None)]


def test_a_key_is_parked_only_where_its_dead_letter_is(engine: Engine):
    dead = {"side": "outbox", "payload": b"", "headers": b"{}", "content_type": "t", "attempts": 10}
    with engine.begin() as connection:
        given = {**dead, "key": "a", "reason": "rejected", "parked": True, "destination": "payments"}
        connection.execute(insert(dead_letter), given)
        put(connection, {"key": "a"})
        connection.execute(settle.park("sqlite"), {"positions": [1], "of_destination": "default"})
        assert left(connection, "due_at") == [None]


def test_a_reply_is_added_only_beside_what_it_answers(engine: Engine):
    message = Message(id="r", type="R", payload=b"{}", correlation_id="c", causation_id="m-1", created_at=NOW)
    reply = to_row(message)
    with engine.begin() as connection:
        put(connection, {"destination": "payments"})
        connection.execute(settle.add_reply(), [{**reply, "at_position": 1}, {**reply, "at_position": 99}])
        assert left(connection, "message_id", "destination", "due_at") == [
            ("m-1", "payments", None),
            ("r", "default", None),
        ]
