"""The runs of handlers that have not ended, and their report."""

from typing import Any

import pytest
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import inbox, inbox_handler
from outboxkit.consumer.measurements import LONG_SECONDS, HandlerRuns
from tests.unit.shop import OrderConfirmed


@inbox_handler("Bills")
def bills(session: Session, event: OrderConfirmed) -> None: ...


@inbox_handler("Mails")
def mails(session: Session, event: OrderConfirmed) -> None: ...


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def runs(clock: Clock) -> HandlerRuns:
    return HandlerRuns([inbox.handler_of(bills), inbox.handler_of(mails)], queue="billing", monotonic=clock)


def test_a_run_counts_until_it_ends(runs: HandlerRuns, clock: Clock):
    run = runs.begin(["Mails"], message_id="m", messages=1)
    clock.seconds += 7
    assert runs.longest() == {"Bills": 0, "Mails": 7}
    assert runs.end(run) == 7
    assert runs.longest() == {"Bills": 0, "Mails": 0}


def test_a_long_run_is_reported_at_growing_intervals(runs: HandlerRuns, clock: Clock):
    def reports_at(seconds: float) -> list[Any]:
        clock.seconds = seconds
        with capture_logs() as said:
            runs.report()
        return said

    run = runs.begin(["Mails", "Bills"], message_id="m\n", messages=3)
    assert reports_at(LONG_SECONDS - 1) == []
    (first,) = reports_at(LONG_SECONDS)
    assert first["event"] == "handler has not ended for 60 s"
    assert (first["handler"], first["message_id"], first["messages"]) == ("Bills, Mails", "m\\n", 3)
    assert "`outboxkit status` names the session that holds it" in first["cure"]
    assert reports_at(2 * LONG_SECONDS - 1) == []
    assert len(reports_at(2 * LONG_SECONDS)) == 1
    runs.end(run)
    assert reports_at(9 * LONG_SECONDS) == []
