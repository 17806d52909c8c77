"""The clue that a search begins with."""

from datetime import timedelta

from outboxkit import ids
from outboxkit.lives.clue import MOST, Clue
from outboxkit.window import CLOCK_SKEW
from tests.unit.lives.entries import NOW, identity


def test_an_id_is_followed_to_its_story():
    clue = Clue(message_id="m")
    assert clue.parameters() == {"ids": ["m"], "stories": ["m"], "key": None}
    clue.learn(identity("m", correlation_id="s"))
    clue.learn(identity("other", correlation_id="another story"))
    assert clue.parameters() == {"ids": ["m", "other"], "stories": ["m", "s"], "key": None}


def test_a_key_is_not_followed():
    clue = Clue(key="order-1")
    clue.learn(identity("m", correlation_id="s"))
    assert clue.parameters() == {"ids": [], "stories": [], "key": "order-1"}
    assert clue.ids == {"m"}


def test_a_time_in_the_id_says_where_to_begin():
    assert Clue(message_id=ids.new(at=NOW)).begun == NOW - CLOCK_SKEW
    assert Clue(correlation_id=ids.new(at=NOW)).begun == NOW - CLOCK_SKEW
    clue = Clue(message_id="m")
    assert clue.begun is None
    clue.learn(identity("m", created_at=NOW))
    clue.learn(identity("m", created_at=NOW + timedelta(hours=1)))
    clue.learn(identity("m", created_at=None))
    assert clue.begun == NOW - CLOCK_SKEW


def test_a_search_ends_some_day():
    clue = Clue(correlation_id="s")
    for number in range(MOST - 1):  # and the story's own id
        assert not clue.is_full
        clue.learn(identity(f"m-{number}"))
    assert clue.is_full
    clue.learn(identity(None))  # type: ignore[arg-type]
    assert len(clue.ids) == MOST
