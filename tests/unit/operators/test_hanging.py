"""The transactions of consumers that are open for long."""

from dataclasses import replace
from datetime import timedelta

from outboxkit.operators.hanging import LONG, HangingRun, by_consumer, long_runs
from tests.unit.shop import NOW

SINCE = NOW - timedelta(minutes=6)
RUN = HangingRun("billing", 360, 7)


def test_only_long_transactions_of_consumers_count():
    sessions = [
        (1, "outboxkit consumer billing", NOW - LONG),
        (2, "outboxkit consumer billing", NOW - LONG + timedelta(seconds=1)),
        (3, "outboxkit relay", SINCE),
        (4, "outboxkit consumer billing", None),
    ]
    assert [run.pid for run in long_runs(sessions, NOW)] == [1]


def test_a_run_says_its_queue_and_how_long_as_far_as_they_are_known():
    assert HangingRun.of(7, "outboxkit consumer billing", SINCE, NOW) == RUN
    assert str(RUN) == "A handler of queue billing has not ended for 6 min 0 s"
    assert str(HangingRun.of(7, "outboxkit consumer billing", None, NOW)) == "A handler of queue billing has not ended"


def test_the_longest_of_a_consumer_stands_for_it():
    short, other = replace(RUN, seconds=60), replace(RUN, queue="mails")
    assert list(by_consumer([short, other, RUN])) == [(RUN, [short]), (other, [])]
