"""Handlers that do not end: which sessions count, and what is said of each."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from outboxkit.hanging import LONG, hanging_run, hanging_runs

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
CONSUMER = "outboxkit consumer billing"
HANDLERS: list[Any] = [
    SimpleNamespace(handler="Bill", queue="billing", long_message_id="m-1", long_since=NOW - 2 * LONG),
    SimpleNamespace(handler="SendReceipt", queue="billing", long_message_id=None, long_since=None),
]


def test_only_long_transactions_of_consumers_count():
    just_long = NOW - LONG
    sessions = [
        (1, CONSUMER, just_long),
        (2, CONSUMER, just_long + timedelta(seconds=1)),
        (3, CONSUMER, None),
        (4, "outboxkit relay", just_long),
    ]
    assert [run.pid for run in hanging_runs(sessions, HANDLERS, NOW)] == [1]


def test_a_run_says_what_is_known_of_it():
    noted = hanging_run((7, CONSUMER, NOW - 2 * LONG), HANDLERS, NOW)
    assert str(noted) == "Handler Bill of queue billing works on message m-1 for 2 min 0 s"
    unknown = hanging_run((7, CONSUMER, NOW - LONG), HANDLERS, NOW)
    assert str(unknown) == "A handler of queue billing (Bill or SendReceipt) has not ended for 1 min 0 s"
    assert str(hanging_run((7, CONSUMER, None), [], NOW)) == "A handler of queue billing (not registered) has not ended"
