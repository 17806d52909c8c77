"""The finding about a handler that does not end, from what the database knows of its consumer."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from outboxkit.doctor.diagnosis import Diagnosis, warning
from outboxkit.doctor.hanging import of_hung_handler
from outboxkit.hanging import CLOSE

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SINCE = NOW - timedelta(minutes=6)


def row(handler: str, queue: str, message_id: str | None = None, since: datetime | None = None) -> Any:
    return SimpleNamespace(handler=handler, queue=queue, long_message_id=message_id, long_since=since)


def finding(name: str, *rows: Any, since: datetime | None = SINCE) -> Diagnosis:
    holder: Any = SimpleNamespace(pid=7, name=name, state="idle in transaction", since=since)
    return of_hung_handler(holder, rows, NOW, warning, why="Rows stay.")


def test_handler_and_message_are_named_if_the_consumer_has_noted_them():
    noted = row("SendReceipt", "billing", "m-1", SINCE - CLOSE)
    earlier = row("Bill", "billing", "m-0", SINCE - 2 * CLOSE)
    found = finding("outboxkit consumer billing", earlier, noted, row("Else", "mail", "m-2", SINCE))
    assert found.what == (
        "Handler SendReceipt of queue billing works on message m-1 for 6 min 0 s: session 7, idle in transaction, has "
        "a transaction open."
    )
    assert found.code == "handler-hangs"
    assert found.commands[-1] == "SELECT pg_terminate_backend(7);"


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("outboxkit consumer billing", "Bill or SendReceipt"),
        ("outboxkit consumer mail, billing", "Bill or SendReceipt or Post"),
        ("outboxkit consumer bill", "not registered"),
        (f"outboxkit consumer mail, {'b' * 38}", "Post or Long"),
    ],
)
def test_the_queue_s_handlers_are_named_if_nothing_was_noted(name: str, names: str):
    rows = (row("Bill", "billing", "m-0", SINCE - 2 * CLOSE), row("SendReceipt", "billing"), row("Post", "mail"))
    found = finding(name, *rows, row("Long", "b" * 40))
    assert found.what.startswith(
        f"A handler of queue {name.removeprefix('outboxkit consumer ')} ({names}) has not ended"
    )


def test_a_session_whose_begin_is_hidden():
    found = finding("outboxkit consumer billing", row("Bill", "billing", "m-0", SINCE), since=None)
    assert found.what.startswith("A handler of queue billing (Bill) has not ended: session 7")
