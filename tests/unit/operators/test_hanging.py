"""Handlers that do not end: which sessions count, and what is said of each."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from outboxkit.operators.hanging import CLOSE, LONG, HangingRun, by_consumer, hanging_runs, long_runs

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SINCE = NOW - 2 * LONG
CONSUMER = "outboxkit consumer billing"


def row(handler: str, queue: str, message_id: str | None = None, since: datetime | None = None) -> Any:
    return SimpleNamespace(handler=handler, queue=queue, long_message_id=message_id, long_since=since)


def run_of(name: str, *rows: Any, since: datetime | None = SINCE) -> HangingRun:
    return hanging_runs([(7, name, since)], rows, NOW)[7]


def test_only_long_transactions_of_consumers_count():
    just_long = NOW - LONG
    sessions = [
        (1, CONSUMER, just_long),
        (2, CONSUMER, just_long + timedelta(seconds=1)),
        (3, CONSUMER, None),
        (4, "outboxkit relay", just_long),
    ]
    assert [run.pid for run in long_runs(sessions, [], NOW)] == [1]


def test_handler_and_message_are_named_if_the_consumer_has_noted_them():
    noted = row("SendReceipt", "billing", "m-1", SINCE - CLOSE)
    earlier = row("Bill", "billing", "m-0", SINCE - 2 * CLOSE)
    found = run_of(CONSUMER, earlier, noted, row("Else", "mail", "m-2", SINCE))
    assert str(found) == "Handler SendReceipt of queue billing works on message m-1 for 2 min 0 s"


@pytest.mark.parametrize(
    ("name", "names"),
    [
        (CONSUMER, "Bill or SendReceipt"),
        ("outboxkit consumer mail, billing", "Bill or SendReceipt or Post"),
        ("outboxkit consumer bill", "not registered"),
        (f"outboxkit consumer mail, {'b' * 38}", "Post or Long"),
    ],
)
def test_the_queue_s_handlers_are_named_if_nothing_was_noted(name: str, names: str):
    rows = (row("Bill", "billing", "m-0", SINCE - 2 * CLOSE), row("SendReceipt", "billing"), row("Post", "mail"))
    found = str(run_of(name, *rows, row("Long", "b" * 40)))
    queues = name.removeprefix("outboxkit consumer ")
    assert found == f"A handler of queue {queues} ({names}) has not ended for 2 min 0 s"


def test_a_session_whose_begin_is_hidden():
    found = run_of(CONSUMER, row("Bill", "billing", "m-0", SINCE), since=None)
    assert str(found) == "A handler of queue billing (Bill) has not ended"


def test_a_message_belongs_to_one_of_several_runs():
    """The consumer notes one message for a handler, however many of its runs hang."""
    second = timedelta(seconds=1)
    sessions = [(pid, CONSUMER, SINCE + pid * second) for pid in range(4)]
    runs = hanging_runs(sessions, [row("Bill", "billing", "m-1", SINCE + 2 * second)], NOW)
    assert [run.message_id for run in runs.values()] == [None, None, "m-1", None]
    ((first, others),) = by_consumer(runs.values())
    assert (first.pid, [run.pid for run in others]) == (2, [0, 1, 3])
