"""The report as lines."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from outboxkit.cli.status import lines
from outboxkit.errors.wording import Count
from outboxkit.operators.findings import finding
from outboxkit.operators.status import (
    DeadLetterCounts,
    Figures,
    History,
    Inbox,
    OfReason,
    OfType,
    Outbox,
    Status,
    Vacuum,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NONE = Count()
OUTBOX = Outbox(NONE, NONE, NONE, NONE, NONE, None, None, {}, NONE, {})
FIGURES = Figures(2, OUTBOX, Inbox(NONE, {}), DeadLetterCounts(NONE, (), NONE), History(NONE, None, NONE, NONE))
MISSING = finding("relay-missing", waits="1 message waits", no_relay="none is there", relays=("outboxkit relay",))


def shown(*findings: object, width: int = 100, **figures: object) -> list[str]:
    status = Status("sqlite:///a.db", "memory://", findings, replace(FIGURES, **figures))  # type: ignore[arg-type]
    return list(lines(status, width=width))


def test_the_advice_is_first_with_its_commands():
    assert shown(MISSING)[:6] == [
        "database      sqlite:///a.db",
        "broker        memory://",
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


def test_connections_are_counted_by_their_process_and_queue():
    sessions = {"outboxkit consumer billing": 1, "outboxkit relay": 15, "outboxkit relay listener": 1}
    found = shown(sessions=sessions, vacuum=Vacuum(54_321, NOW))
    at = found.index("relays        relay: 15 connections")
    assert found[at + 1 : at + 4] == [
        "              relay listener: 1 connection",
        "processes     consumer billing: 1 connection",
        "vacuum        54 321 dead rows in the outbox, last vacuum 2026-03-01 12:00 UTC",
    ]
    assert "relays        none connected" in shown(sessions={})


def test_it_says_where_the_counting_ended():
    many, part = Count(10_001, at_least=True), Count(7_000, at_least=True)
    types = {"OrderConfirmed": OfType(part, Count(0, at_least=True))}
    outbox = replace(OUTBOX, pending=many, ready=many, oldest_age_seconds=0.4, by_type=types)
    assert shown(outbox=outbox)[2:4] == [
        "outbox        more than 10 000 pending, the oldest for 0.4 s",
        "                OrderConfirmed: at least 7 000",
    ]


def test_the_most_frequent_types_are_shown_and_the_others_counted():
    types = {f"Type{number:04}": OfType(Count(5_000 - number), Count()) for number in range(5_000)}
    found = shown(outbox=replace(OUTBOX, by_type=types | {"Rare": OfType(Count(1), Count())}))
    listed = [line.strip() for line in found if line.strip().startswith(("Type", "Rare"))]
    assert listed == [f"Type{number:04}: {5_000 - number:,}".replace(",", " ") for number in range(8)]
    assert "                and 4993 more types" in found


@pytest.mark.parametrize("width", [20, 60, 80])
def test_lines_are_folded_to_the_width(width: int):
    long = finding("effect-unknown", calls="1 call")
    found = shown(long, width=width, sessions={"outboxkit relay": 3}, vacuum=Vacuum(54_321, NOW))
    assert all(len(line) <= max(width, 60) for line in found if not line.strip().startswith("SELECT"))
