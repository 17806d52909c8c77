"""The outcomes compare by what they say."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from outboxkit.http import ledger
from outboxkit.http.ledger import InProgress

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(("left", "outcome"), [(1, InProgress(timedelta(seconds=1))), (0, None), (-1, None)])
def test_a_lease_that_has_just_ended_keeps_nobody_away(left: int, outcome: InProgress | None):
    row = SimpleNamespace(fingerprint=b"f", state="processing", locked_until=NOW + timedelta(seconds=left), now=NOW)
    assert ledger._judge_row(row, b"f") == outcome
