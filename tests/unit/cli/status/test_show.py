"""The lines of what only PostgreSQL knows, and their width."""

from dataclasses import replace

import pytest

from outboxkit.cli.status import show
from outboxkit.cli.status.report import DeadLetterCounts, OfReason, OfType, Sessions, Vacuum
from outboxkit.cli.wording import Count
from tests.unit.cli.status.reports import NOW, RELAY, SECRETIVE, holder, outbox, status


def test_who_is_connected_and_what_holds_back_vacuum():
    sessions = Sessions((RELAY,), (SECRETIVE,), ())
    found = replace(status(sessions=sessions, vacuum=Vacuum(54_321, NOW, holder())), advice=("do this", "do that"))
    assert list(show.lines(found, width=80, verbose=True)) == [
        "advice        do this",
        "              do that",
        "outbox        0 pending",
        "inbox         0 processed",
        "dead letters  0 open",
        "relays        relay: 1 connection",
        "                4711: idle, from 10.0.0.3, since 2026-03-01 10:00 UTC",
        "consumers     consumer billing: 1 connection",
        "                4712: hidden from this role",
        "vacuum        54 321 dead rows in the outbox, last vacuum 2026-03-01 12:00 UTC",
        "                held back by session 99 (psql), idle in transaction for 2 h 0",
        "                  min, last query at 2026-03-01 10:00:00 UTC",
        "tables        version 2",
    ]


LATELY = "2026-03-01 11:58:30"


@pytest.mark.parametrize(
    ("vacuum", "line"),
    [
        (
            Vacuum(5, None, holder(seconds=90)),
            f"oldest transaction: session 99 (psql), idle in transaction for 1 min 30 s, last query at {LATELY} UTC",
        ),
        (Vacuum(5000, None, holder("prepared")), "held back by prepared transaction psql for 2 h 0 min"),
        (
            Vacuum(5000, None, holder("slot", seconds=None, transactions=54_321)),
            "held back by replication slot psql, 54 321 transactions ago",
        ),
        (Vacuum(5000, None, holder("standby")), "held back by standby 99 (psql), idle in transaction for 2 h 0 min"),
    ],
)
def test_what_holds_the_oldest_transaction(vacuum: Vacuum, line: str):
    assert f"                {line}" in list(show.lines(status(vacuum=vacuum), width=200))


def test_a_side_and_a_reason_that_were_edited_by_hand_colour_no_screen():
    edited = DeadLetterCounts(Count(1), (OfReason("in\x1b[31m", "wh\x1b[31mat", Count(1)),), Count(0))
    assert "\x1b" not in "".join(show.lines(replace(status(), dead_letters=edited), width=80))


def test_a_young_transaction_is_not_worth_a_line():
    young = Vacuum(5000, NOW, holder(seconds=59))
    assert not any("psql" in line for line in show.lines(status(vacuum=young), width=80))


def test_connections_are_counted_by_their_process_and_queue():
    relays = tuple(replace(RELAY, pid=number) for number in range(15))
    listener = replace(RELAY, name="outboxkit relay listener")
    mail = replace(SECRETIVE, name="outboxkit consumer mail")
    found = status(sessions=Sessions((*relays, listener), (mail, SECRETIVE, mail), ()))
    lines = list(show.lines(found, width=120))
    at = lines.index("relays        relay: 15 connections")
    assert lines[at + 1 : at + 4] == [
        "              relay listener: 1 connection",
        "consumers     consumer billing: 1 connection",
        "              consumer mail: 2 connections",
    ]
    assert len(list(show.lines(found, width=120, verbose=True))) == len(lines) + 19


def test_no_relay_is_said_and_no_consumer_is_not():
    lines = list(show.lines(status(), width=80))
    assert "relays        none connected" in lines
    assert not any(line.startswith(("consumers", "others")) for line in lines)


def test_it_says_where_the_counting_ended():
    many, part = Count(10_001, at_least=True), Count(7_000, at_least=True)
    found = replace(outbox(pending=many, age=0.4), by_type={"OrderConfirmed": OfType(part, Count(0, at_least=True))})
    assert list(show.lines(status(outbox=found), width=80))[:2] == [
        "outbox        more than 10 000 pending, the oldest for 0.4 s",
        "                OrderConfirmed: at least 7 000",
    ]


def test_the_most_frequent_types_are_shown_and_the_others_counted():
    types = {f"Type{number:04}": OfType(Count(5_000 - number), Count()) for number in range(5_000)}
    found = list(
        show.lines(status(outbox=replace(outbox(), by_type=types | {"Rare": OfType(Count(1), Count())})), width=80)
    )
    shown = [line.strip() for line in found if line.strip().startswith(("Type", "Rare"))]
    assert shown == [f"Type{number:04}: {5_000 - number:,}".replace(",", " ") for number in range(20)]
    assert "                and 4981 more types" in found


@pytest.mark.parametrize("width", [20, 60, 80])
def test_lines_are_folded_to_the_width(width: int):
    found = status(sessions=Sessions((RELAY,), (SECRETIVE,), ()), vacuum=Vacuum(54_321, NOW, holder()))
    assert all(len(line) <= max(width, 60) for line in show.lines(found, width=width))
