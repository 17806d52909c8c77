"""Statements of sleeping relays. Their plain SQL is in `tests/unit/sql/`."""

from datetime import timedelta

from sqlalchemy import Engine

from outboxkit.statements import notifier
from tests.unit.shop import NOW
from tests.unit.statements.rows import put


def test_a_look_tells_the_lowest_ready_position_above_the_floor_and_the_next_due_time(engine: Engine):
    with engine.begin() as connection:
        assert connection.execute(notifier.something_to_do(), {"destination": "default", "floor": 0}).one() == (
            None,
            None,
        )
        put(connection, {}, {}, {"due_at": NOW + timedelta(minutes=2)}, {"due_at": NOW + timedelta(minutes=1)})
        assert connection.execute(notifier.something_to_do(), {"destination": "default", "floor": 0}).one() == (
            1,
            NOW + timedelta(minutes=1),
        )
        assert connection.execute(notifier.something_to_do(), {"destination": "default", "floor": 1}).one()[0] == 2
