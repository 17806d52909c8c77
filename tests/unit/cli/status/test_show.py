"""The report as lines."""

from dataclasses import replace
from datetime import UTC, datetime

from outboxkit.cli.status import lines
from outboxkit.errors.figures import Count
from outboxkit.operators.findings import finding
from outboxkit.operators.status import (
    DeadLetterCounts,
    Figures,
    History,
    Inbox,
    OfReason,
    Outbox,
    Status,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NONE = Count()
OUTBOX = Outbox(NONE, NONE, NONE, NONE, NONE, None, None, None, {}, NONE, {})
FIGURES = Figures(2, OUTBOX, Inbox(NONE, {}), DeadLetterCounts(NONE, (), NONE), History(NONE, None, NONE, NONE))
MISSING = finding("relay-missing", waits="1 message waits", no_relay="none is there", relays=("outboxkit relay",))


def shown(*findings: object, width: int = 100, **figures: object) -> list[str]:
    status = Status("sqlite:///a.db", "amqp://localhost:5672/", findings, replace(FIGURES, **figures))  # type: ignore[arg-type]
    return list(lines(status, width=width))


def test_the_advice_is_first_with_its_commands():
    assert shown(MISSING)[:6] == [
        "database      sqlite:///a.db",
        "broker        amqp://localhost:5672/, not asked: `outboxkit doctor` does",
        "advice        warning: 1 message waits, and none is there.",
        "                outboxkit relay",
        "              for the reason and the cure of each:",
        "                outboxkit doctor",
    ]


def test_without_figures_the_advice_is_there():
    status = Status("d", "b", (MISSING,), None)
    assert len(list(lines(status, width=80))) == 6


def test_a_side_and_a_reason_that_were_edited_by_hand_colour_no_screen():
    edited = DeadLetterCounts(Count(1), (OfReason("in\x1b[31m", "wh\x1b[31mat", Count(1)),), Count(0))
    assert "\x1b" not in "".join(shown(dead_letters=edited))
