"""Which dead letters go."""

from datetime import timedelta

from sqlalchemy import Engine, insert, select

from outboxkit.statements import published
from outboxkit.tables import dead_letter
from tests.unit.shop import NOW

ROW = {
    "side": "inbox",
    "payload": b"",
    "headers": b"{}",
    "content_type": "application/json",
    "reason": "failed",
    "attempts": 1,
    "parked": False,
    "resolution": None,
}


def test_old_ones_go_up_to_the_limit_but_those_that_park_a_key(engine: Engine):
    rows = [
        ROW | {"message_id": str(age), "dead_at": NOW - timedelta(days=age), "parked": age == 3, "resolution": said}
        for age, said in enumerate([None, None, "replayed", None, "discarded", None])
    ]
    with engine.begin() as connection:
        connection.execute(insert(dead_letter), rows)
        statement = published.prune_dead(NOW - timedelta(days=1), 2)
        found = [sorted(map(str, connection.execute(statement).scalars())) for _ in range(3)]
        assert found == [["discarded", "replayed"], ["None"], []]
        assert connection.execute(select(dead_letter.c.message_id).order_by("id")).scalars().all() == ["0", "1", "3"]
