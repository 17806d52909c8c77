"""Dead letters that a replay refuses. tests/integration/operators/test_sending_back.py has some in a database."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from outboxkit import ids
from outboxkit.operators.deadletters import Refusal, ReplayRules, rules_of
from outboxkit.runtime.settings import load
from tests.integration.operators.dead_rows import buried, dead
from tests.unit.shop import NOW

RULES = ReplayRules(retention=timedelta(days=2), skew=timedelta(hours=1))
EDGE = NOW - timedelta(days=2) + timedelta(hours=1)
MILLISECOND = timedelta(milliseconds=1)


def refusal(row: dict[str, Any], rules: ReplayRules = RULES) -> Refusal | None:
    return rules.refusal(SimpleNamespace(**row), NOW)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (buried(), None),
        (buried(handler=None, reason="no handler"), None),
        (buried(payload=b"\xff", reason="undecodable"), None),
        (buried(None), Refusal.MALFORMED),
        (buried(type=None), Refusal.MALFORMED),
        (buried(type=""), Refusal.MALFORMED),
        (buried(reason="malformed"), Refusal.MALFORMED),
        (buried("a\0b"), Refusal.MALFORMED),
        (buried(key="é" * 128), Refusal.MALFORMED),
        (buried(correlation_id="é" * 200), Refusal.MALFORMED),
        (buried(queue="é" * 128), Refusal.NO_QUEUE),
        (buried(queue=""), Refusal.NO_QUEUE),
        (buried(queue=None), Refusal.NO_QUEUE),
        (buried(ids.new(at=EDGE)), None),
        (buried(ids.new(at=EDGE - MILLISECOND)), Refusal.STALE),
        (buried(created_at=EDGE - MILLISECOND), Refusal.STALE),
        (buried(ids.new(at=NOW), created_at=EDGE - MILLISECOND), None),
        (buried(ids.new(at=NOW), reason="stale"), Refusal.STALE),
        (dead(1), None),
        (dead(1, created_at=EDGE - timedelta(days=900)), None),
        (dead(None), Refusal.NO_PLACE),
    ],
)
def test_the_first_reason_is_told(row: dict[str, Any], why: Refusal | None):
    assert refusal(row) is why


def test_only_what_is_stale_can_be_accepted():
    accepting = ReplayRules(RULES.retention, RULES.skew, accept_stale=True)
    old = ids.new(at=EDGE - MILLISECOND)
    assert refusal(buried(old), accepting) is None
    assert refusal(buried(old, queue=None), accepting) is Refusal.NO_QUEUE
    assert accepting.is_stale(SimpleNamespace(**buried(old)), NOW)


def test_without_an_id_or_a_type_it_is_for_a_reader():
    reading = ReplayRules(RULES.retention, RULES.skew, has_readers=True)
    for row in (buried(None), buried(type=None), buried(None, type=None, reason="malformed")):
        assert refusal(row, reading) is None
    assert refusal(buried("a\0b"), reading) is Refusal.MALFORMED
    assert refusal(buried(reason="malformed"), reading) is Refusal.MALFORMED
    assert refusal(buried(None, queue=None), reading) is Refusal.NO_QUEUE
    assert refusal(buried(None, created_at=EDGE - MILLISECOND), reading) is Refusal.STALE


def test_the_rules_are_those_of_the_consumers_settings():
    options = {"database_url": "sqlite:///shop.db", "inbox_retention": "9d", "readers": "cloudevents"}
    assert rules_of(load(options), accept_stale=True) == ReplayRules(
        timedelta(days=9), accept_stale=True, has_readers=True
    )
