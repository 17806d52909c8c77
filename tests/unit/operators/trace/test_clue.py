"""The clue that a search begins with."""

from datetime import timedelta

from outboxkit import ids
from outboxkit.operators.trace.clue import Clue
from tests.unit.operators.trace.entries import NOW, identity


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
    assert Clue(message_id=ids.new(at=NOW)).begun == NOW
    assert Clue(correlation_id=ids.new(at=NOW)).begun == NOW
    derived = ids.derive_from(ids.new(at=NOW), "x")
    assert Clue(message_id=derived).begun == NOW, "that of its cause is earlier"
    clue = Clue(message_id="m")
    assert clue.begun is None
    clue.learn(identity("m", created_at=NOW))
    clue.learn(identity("m", created_at=NOW + timedelta(hours=1)))
    clue.learn(identity("m", created_at=None))
    assert clue.begun == NOW
