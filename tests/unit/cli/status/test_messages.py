"""What is kept beside the outbox, beyond the limit of the counting, on SQLite."""

import pytest
from sqlalchemy import Engine, insert

from outboxkit import tables
from outboxkit.cli.wording import Count
from outboxkit.operators import status
from outboxkit.operators.status import OfReason
from tests.unit.cli.status.rows import ENVELOPE, HOUR, NOW, add_dead, fill


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "COUNTED", 50)
    monkeypatch.setattr(status, "LIMIT", {"limit": 51})


def test_many_resolved_dead_letters_do_not_make_the_open_ones_less_exact(engine: Engine):
    with engine.begin() as connection:
        add_dead(connection, 5)
        add_dead(connection, 200, resolution="discarded", resolved_at=NOW, resolved_by="ann")
        report = status.read_figures(connection, NOW).dead_letters
    assert report.by_reason == (OfReason("outbox", "refused", Count(5)),)
    assert report.resolved == Count(46, at_least=True), "of the first 51"


def test_many_open_dead_letters_are_counted_up_to_the_limit(engine: Engine):
    with engine.begin() as connection:
        for number in range(60):
            add_dead(connection, side="inbox", reason="stale" if number % 2 else "failed")
        report = status.read_figures(connection, NOW).dead_letters
    assert {(row.reason, row.count) for row in report.by_reason} == {
        ("failed", Count(26, at_least=True)),
        ("stale", Count(25, at_least=True)),
    }
    assert report.open == Count(51, at_least=True)


def test_as_many_as_the_limit_are_counted_exactly(engine: Engine):
    with engine.begin() as connection:
        add_dead(connection, 50)
        report = status.read_figures(connection, NOW).dead_letters
    assert (report.open, report.resolved) == (Count(50), Count(0))


def add_processed(engine: Engine, handler: str, count: int) -> None:
    rows = [{"handler": handler, "message_id": f"m{number}", "type": "T"} for number in range(count)]
    with engine.begin() as connection:
        connection.execute(insert(tables.inbox), rows)


def test_each_handler_is_counted_up_to_the_limit(engine: Engine):
    add_processed(engine, "Many", 200)
    add_processed(engine, "Few", 7)
    with engine.begin() as connection:
        report = status.read_figures(connection, NOW).inbox
    assert report.by_handler == {"Few": Count(7), "Many": Count(51, at_least=True)}
    assert report.processed == Count(58, at_least=True)


def test_handlers_beyond_the_limit_of_names_are_not_counted(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(status, "MOST_NAMES", 2)
    for name in ("A", "B"):
        add_processed(engine, name, 3)
    with engine.begin() as connection:
        assert status.read_figures(connection, NOW).inbox.processed == Count(6)
    add_processed(engine, "C", 3)
    with engine.begin() as connection:
        report = status.read_figures(connection, NOW).inbox
    assert report.by_handler == {"A": Count(3), "B": Count(3)}
    assert report.processed == Count(6, at_least=True)


def test_kept_messages_are_counted_up_to_the_limit(engine: Engine):
    def add_history(positions: range) -> Count:
        rows = [{"published_at": NOW, "position": position, "message_id": "m", "type": "T"} for position in positions]
        with engine.begin() as connection:
            connection.execute(insert(tables.published), [row | ENVELOPE for row in rows])
            return status.read_figures(connection, NOW).history.published

    assert add_history(range(50)) == Count(50)
    assert add_history(range(50, 90)) == Count(51, at_least=True)


def test_an_effect_is_unknown_when_its_lease_is_over_and_nobody_has_recorded_an_end(engine: Engine):
    with engine.begin() as connection:
        assert status.read_figures(connection, NOW).history.unknown_effects == Count(0)
        fill(connection)
        assert status.read_figures(connection, NOW).history.unknown_effects == Count(2)
        assert status.read_figures(connection, NOW + 2 * HOUR).history.unknown_effects == Count(3)


def test_idempotency_keys_are_counted_up_to_the_limit(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    with engine.begin() as connection:
        fill(connection)
        assert status.read_figures(connection, NOW).history.requests == Count(4)
        monkeypatch.setattr(status, "COUNTED", 2)
        monkeypatch.setattr(status, "LIMIT", {"limit": 3})
        assert status.read_figures(connection, NOW).history.requests == Count(3, at_least=True)
