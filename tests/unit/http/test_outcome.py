"""The outcomes compare by what they say."""

from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from outboxkit.http import ledger
from outboxkit.http.ledger import Fresh, InProgress, Mismatch, Replay, Response

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def test_answers_are_equal_where_every_byte_is():
    assert Replay(Response(200, (("a", "b"),), b"x"), NOW) == Replay(Response(200, (("a", "b"),), b"x"), NOW)
    assert Response(200, (("a", "b"), ("a", "c"))) != Response(200, (("a", "c"), ("a", "b")))
    assert (InProgress(), Mismatch()) == (InProgress(None), Mismatch())


def test_an_outcome_cannot_be_changed():
    fresh = Fresh("s", None, "k", "t", NOW)
    assert (fresh.lease, fresh.steps) == (None, None)
    with pytest.raises(FrozenInstanceError):
        fresh.token = "other"


@pytest.mark.parametrize(("left", "outcome"), [(1, InProgress(timedelta(seconds=1))), (0, None), (-1, None)])
def test_a_lease_that_has_just_ended_keeps_nobody_away(left: int, outcome: InProgress | None):
    row = SimpleNamespace(fingerprint=b"f", state="processing", locked_until=NOW + timedelta(seconds=left), now=NOW)
    assert ledger._judge_row(row, b"f") == outcome
