"""The handlers of a type."""

from datetime import UTC, datetime, timedelta

import pytest

from outboxkit import ConfigurationError
from outboxkit.operators.reconciliation import HandlerTally, Reconciled, Terms, tallies_of, textfile
from outboxkit.runtime.known_handlers import KnownHandler
from outboxkit.statements.handlers import NEVER

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
REGISTERED = (
    KnownHandler("q", "H", None, ("T", "U"), NOW),
    KnownHandler("old", "H", None, ("T",), NEVER),
    KnownHandler("q", "Silent", None, None, NOW),
    KnownHandler("q", "Retired", None, ("T",), NEVER),
)
HANDLED = [("Silent", "T"), ("Own", "T"), ("Own", "V"), ("Retired", "T"), ("H", "X")]


def terms(*handlers: str, types: tuple[str, ...] = ()) -> Terms:
    return Terms(NOW, timedelta(minutes=1), handlers, types)


def test_they_are_those_that_are_registered_and_those_that_have_handled_it():
    tallies = tallies_of(REGISTERED, HANDLED, terms(), now=NOW)
    assert {tally.handler: (tally.queues, tally.types) for tally in tallies} == {
        "H": (("q",), {"T", "U"}),
        "Own": ((), {"T", "V"}),
        "Silent": (("q",), {"T"}),
    }

    def takers(type_: str, queue: str | None) -> list[str]:
        return [tally.handler for tally in tallies if tally.takes(type_, queue)]

    assert takers("T", None) == ["H", "Own", "Silent"]
    assert takers("U", "q") == ["H"]
    assert takers("U", "other") == []
    assert takers("T", "other") == ["Own"], "the queue of a handler that is not registered is not known"
    assert takers("X", None) == []


def test_only_some_of_them():
    assert [tally.handler for tally in tallies_of(REGISTERED, HANDLED, terms("Own"), now=NOW)] == ["Own"]
    with pytest.raises(ConfigurationError, match=r"--handler is 'Else', .* it knows H, Own, Silent"):
        tallies_of(REGISTERED, HANDLED, terms("H", "Else"), now=NOW)
    (tally,) = tallies_of(REGISTERED, HANDLED, terms("Else", types=("T",)), now=NOW)
    assert tally.takes("T", None)
    assert not tally.takes("U", None)


def test_the_queue_that_was_seen_last_comes_first_and_the_shortest_memory_counts():
    """After a rename both queues are known, and a replay has to go to the one that has a consumer."""
    day = timedelta(days=1)
    rows = (
        KnownHandler("billing", "H", None, ("T",), NOW - day, first_seen=NOW - 9 * day, retention=14 * day),
        KnownHandler("billing-v2", "H", None, ("T",), NOW, first_seen=NOW - day, retention=2 * day),
    )
    (tally,) = tallies_of(rows, [], terms(), now=NOW)
    assert (tally.queues, tally.forgets_before, tally.first_seen) == (
        ("billing-v2", "billing"),
        NOW - 2 * day,
        NOW - 9 * day,
    )


def test_the_textfile_has_a_series_for_each_handler_and_escapes_names():
    result = Reconciled(NOW, NOW, NOW, handlers=(HandlerTally('a"\\b', ()), HandlerTally("Ship", (), missing=3)))
    lines = textfile(result).splitlines()
    assert 'outboxkit_reconcile_missing{handler="a\\"\\\\b"} 0' in lines
    assert 'outboxkit_reconcile_missing{handler="Ship"} 3' in lines
    assert "# TYPE outboxkit_reconcile_missing gauge" in lines
    assert f"outboxkit_reconcile_finished_seconds {round(NOW.timestamp())}" in lines
