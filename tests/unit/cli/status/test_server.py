"""Which right is missing; the reading itself is tested on PostgreSQL."""

from outboxkit.cli.status.advice import RIGHT, missing_right
from outboxkit.cli.status.report import Sessions, Vacuum
from tests.unit.cli.status.reports import CALM, NOBODY, RELAY, SECRETIVE, holder


def test_nothing_is_hidden():
    assert missing_right(Sessions((RELAY,), (), ()), Vacuum(0, None, holder())) is None
    assert missing_right(NOBODY, CALM) is None


def test_a_hidden_session_of_ours_counts():
    assert missing_right(Sessions((RELAY,), (SECRETIVE,), ()), CALM) == RIGHT


def test_a_hidden_holder_counts():
    assert missing_right(NOBODY, Vacuum(0, None, holder(seconds=None))) == RIGHT


def test_a_slot_has_no_time_that_could_be_hidden():
    assert missing_right(NOBODY, Vacuum(0, None, holder("slot", seconds=None))) is None
