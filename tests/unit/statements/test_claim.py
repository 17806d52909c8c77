"""Claims: which rows, in which order, and what stands before them. Their plain SQL is in `tests/unit/sql/`."""

from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine, Select, insert

from outboxkit.statements import claim
from outboxkit.tables import PARKED, dead_letter
from tests.unit.shop import NOW
from tests.unit.statements.rows import put

LATER, EARLIER = NOW + timedelta(minutes=1), NOW - timedelta(minutes=1)


def positions(connection: Connection, statement: Select[Any], **given: object) -> list[int]:
    return [row[0] for row in connection.execute(statement, {"destination": "default", **given})]


def before(connection: Connection, *keys: str, mine: tuple[int, ...] = ()) -> list[tuple[Any, ...]]:
    found = connection.execute(
        claim.predecessors("sqlite"), {"destination": "default", "keys": keys, "own_positions": mine}
    )
    return sorted(map(tuple, found))


def test_ready_rows_come_in_their_order_above_the_floor(engine: Engine):
    with engine.begin() as connection:
        put(connection, {}, {"due_at": EARLIER}, {}, {"due_at": LATER}, {})
        assert positions(connection, claim.claim_ready(), floor=0, limit=9) == [1, 3, 5]
        assert positions(connection, claim.claim_ready(), floor=1, limit=1) == [3]
        assert connection.execute(claim.oldest_ready(), {"destination": "default", "floor": 1}).scalar() == 3
        assert connection.execute(claim.oldest_ready(), {"destination": "default", "floor": 5}).scalar() is None


def test_due_rows_come_by_their_time_and_then_by_their_position(engine: Engine):
    with engine.begin() as connection:
        put(connection, {}, {"due_at": NOW}, {"due_at": EARLIER}, {"due_at": LATER}, {"due_at": EARLIER})
        assert positions(connection, claim.claim_due(), now=NOW, limit=9) == [3, 5, 2]
        assert positions(connection, claim.claim_due(), now=NOW, limit=2) == [3, 5]


def test_nothing_stands_before_keys_of_which_all_is_in_hand(engine: Engine):
    with engine.begin() as connection:
        put(connection, {"key": "a"}, {"key": "a", "held": True, "due_at": NOW}, {"key": "b", "due_at": LATER})
        assert before(connection, "a", "b", mine=(1, 2)) == []


def test_the_first_held_row_and_its_time_stand_before(engine: Engine):
    held = {"key": "a", "held": True}
    with engine.begin() as connection:
        put(connection, {**held, "due_at": LATER}, {**held, "due_at": PARKED}, {**held, "due_at": EARLIER})
        assert before(connection, "a", "b") == [("a", None, 1, LATER, None)]
        assert before(connection, "a", mine=(1,)) == [("a", None, 2, PARKED, None)]


def test_a_parked_dead_letter_stands_before(engine: Engine):
    dead = {"side": "outbox", "key": "a", "payload": b"", "headers": b"{}", "content_type": "t", "attempts": 10}
    with engine.begin() as connection:
        for position, parked in ((3, True), (2, True), (1, False)):
            row = {**dead, "position": position, "parked": parked, "reason": "rejected"}
            connection.execute(insert(dead_letter), row)
        put(connection, {"key": "a", "held": True, "due_at": PARKED})
        assert before(connection, "a") == [("a", None, 1, PARKED, 2)]


def test_rows_of_another_destination_are_not_seen(engine: Engine):
    """Also those whose name comes before or after."""
    held = {"key": "a", "held": True, "due_at": EARLIER}
    others = [{"destination": name, **more} for name in ("a", "payments") for more in ({"key": "a"}, held)]
    dead = {"side": "outbox", "key": "a", "payload": b"", "headers": b"{}", "content_type": "t", "attempts": 10}
    with engine.begin() as connection:
        row = {**dead, "position": 1, "parked": True, "reason": "rejected", "destination": "payments"}
        connection.execute(insert(dead_letter), row)
        put(connection, *others, {"key": "a"})
        assert positions(connection, claim.claim_ready(), floor=0, limit=9) == [5]
        assert positions(connection, claim.claim_ready(), floor=5, limit=9) == []
        assert positions(connection, claim.claim_due(), now=NOW, limit=9) == []
        assert positions(connection, claim.claim_ready(), floor=0, limit=9, destination="payments") == [3]
        assert positions(connection, claim.claim_due(), now=NOW, limit=9, destination="payments") == [4]
        assert connection.execute(claim.oldest_ready(), {"destination": "a", "floor": 0}).scalar() == 1
        assert before(connection, "a") == []
