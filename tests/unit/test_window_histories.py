"""The proof of the window, tried on histories: whatever the order, a message never has two effects."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from hypothesis import example, given, settings

from tests.support.histories import ACCEPTED, DAY, HOUR, History, plays
from tests.support.night import by_night


class Remembered:
    """The inbox as a dict: `processed_at` by message."""

    def __init__(self) -> None:
        self._rows: dict[str, datetime] = {}

    def record(self, message_id: str, made: datetime, now: datetime) -> bool:
        if message_id in self._rows:
            return False
        self._rows[message_id] = max(made, now)
        return True

    def forget(self, before: datetime, now: datetime, luck: int) -> None:
        """Rows go one by one or by the day, so at any moment some of the old ones are still there."""
        for number, (message_id, processed_at) in enumerate(list(self._rows.items())):
            if processed_at < before and (luck == 7 or number % 7 != luck):
                del self._rows[message_id]


@settings(max_examples=by_night(5000, else_=200), deadline=None)
@example((10 * DAY, DAY, ACCEPTED))
@given(plays(HOUR))
def test_no_message_has_two_effects_whatever_the_order(play: tuple[timedelta, timedelta, list[tuple[Any, ...]]]):
    retention, skew, steps = play
    History(Remembered(), retention, skew).play(steps)


def test_a_history_goes_through_everything():
    """The model is no good where nothing ever happens in it."""
    history = History(Remembered(), timedelta(hours=100), timedelta(hours=5))
    history.play(
        [
            ("send", -2 * DAY, False),
            ("deliver", 0, 0.0),
            ("deliver", 0, 2.0),
            ("wait", 4 * DAY),
            ("deliver", 0, -2.0),
            ("wait", DAY),
            ("prune", timedelta(0), 7),
            ("deliver", 0, 0.0),
            ("accept", 0),
            ("deliver", 1, 0.0),
            ("deliver", 1, 0.0),
        ]
    )
    assert history.outcomes == Counter(processed=2, duplicate=2, stale=2)
