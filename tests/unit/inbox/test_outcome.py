"""The words for what becomes of a delivery."""

from outboxkit import Outcome


def test_outcomes_are_the_words_of_the_design():
    assert [str(outcome) for outcome in Outcome] == ["processed", "duplicate", "retried", "dead", "stale"]
