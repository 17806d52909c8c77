"""What is kept beside the outbox, beyond the limit of exact counting, on SQLite."""

import pytest
from sqlalchemy import Engine

from outboxkit.cli.status import sample, waiting
from outboxkit.cli.status.report import OfReason
from outboxkit.cli.wording import Count
from tests.unit.cli.status.rows import HOUR, NOW, add_dead, fill


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sample, waiting):
        monkeypatch.setattr(module, "EXACT_UP_TO", 50)
        monkeypatch.setattr(module, "LIMIT", {"limit": 51})


def test_resolved_dead_letters_do_not_make_open_ones_an_estimate(engine: Engine):
    with engine.begin() as connection:
        add_dead(connection, 5)
        add_dead(connection, 200, resolution="discarded", resolved_at=NOW, resolved_by="ann")
        found = waiting.read_dead_letters(connection)
    assert found.by_reason == (OfReason("outbox", "refused", Count(5)),)
    assert found.resolved.estimate


def test_many_open_dead_letters_are_estimated(engine: Engine):
    with engine.begin() as connection:
        for number in range(60):
            add_dead(connection, side="inbox", reason="stale" if number % 2 else "failed")
        found = waiting.read_dead_letters(connection)
    assert {(row.reason, row.count) for row in found.by_reason} == {
        ("failed", Count(30, estimate=True)),
        ("stale", Count(30, estimate=True)),
    }
    assert found.open == Count(60, estimate=True)


def test_an_effect_is_unknown_when_its_lease_is_over_and_nobody_has_recorded_an_end(engine: Engine):
    with engine.begin() as connection:
        assert waiting.read_effects(connection, NOW).unknown == Count(0)
        fill(connection)
        assert waiting.read_effects(connection, NOW).unknown == Count(2)
        assert waiting.read_effects(connection, NOW + 2 * HOUR).unknown == Count(3)


def test_idempotency_keys_are_counted(engine: Engine):
    with engine.begin() as connection:
        fill(connection)
        assert waiting.read_idempotency(connection).remembered == Count(4)
