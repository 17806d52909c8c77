"""What a drain sums up, and what the log says of a settlement."""

import pytest
from structlog.testing import capture_logs

from outboxkit.relay.decisions import Dead, FailedRow, Reason, Settlement
from outboxkit.relay.report import Drained, LimitedLog, report
from tests.unit.shop import NOW, message

UNROUTABLE = Dead(4, message(id="u", key="k"), Reason.UNROUTABLE, "unroutable: nobody", 1, parked=False)
REJECTED = Dead(5, message(id="r", key="k"), Reason.REJECTED, "rejected: no", 1, parked=True)
EXPIRED = Dead(6, message(id="e", key="k"), Reason.EXPIRED, "too late", 0, parked=False)
FAILED = FailedRow(3, 2, message(id="f"), "rejected: full", NOW)


@pytest.mark.parametrize(
    ("done", "complete"),
    [
        (Drained(published=3, discarded=2, expired=1, later=4), True),
        (Drained(failed={"T": (1, "why")}), False),
        (Drained(dead={"T": (1, "why")}), False),
        (Drained(blocked=1), False),
        (Drained(blocked=None), False),
    ],
)
def test_a_drain_is_complete_where_nothing_that_was_due_is_left(done: Drained, complete: bool):
    assert done.is_complete is complete


def test_what_was_settled_is_counted_and_the_last_reason_is_kept():
    done = Drained()
    done.add(Settlement(published=[1, 2], discarded=[7], failed=[FAILED], dead=[UNROUTABLE, REJECTED, EXPIRED]))
    done.add(Settlement(published=[8], failed=[FAILED]))
    assert (done.published, done.discarded, done.expired, done.blocked, done.later) == (3, 1, 1, 0, 0)
    assert done.failed == {"OrderConfirmed": (2, "rejected: full")}
    assert done.dead == {"OrderConfirmed": (2, "rejected: no")}


def test_each_failure_and_each_dead_letter_is_a_line():
    with capture_logs() as said:
        report(
            Settlement(published=[1, 2], discarded=[7], failed=[FAILED], dead=[REJECTED, EXPIRED]), LimitedLog("relay")
        )
    failed, rejected, expired, batch = said
    assert (failed["log_level"], failed["message_id"], failed["attempts"]) == ("warning", "f", 2)
    assert (failed["reason"], failed["due_at"]) == ("rejected: full", "2026-03-01T12:00:00+00:00")
    assert (rejected["log_level"], rejected["message_id"], rejected["key"]) == ("error", "r", "k")
    assert (rejected["reason"], rejected["error"], rejected["key_is_parked"]) == ("rejected", "rejected: no", True)
    assert (expired["reason"], expired["key_is_parked"]) == ("expired", False)
    assert (batch["log_level"], batch["messages"], batch["discarded"]) == ("debug", 2, 1)


def test_nothing_is_no_line():
    with capture_logs() as said:
        report(Settlement(), LimitedLog("relay"))
    assert said == []
