"""What is worth a line, and what is not."""

from dataclasses import replace

import pytest

from outboxkit.cli.status.advice import advise, is_held_back
from outboxkit.cli.status.report import Effects, OfDestination, ParkedKeys, Retried, Sessions, Vacuum
from outboxkit.cli.wording import Count
from outboxkit.operators.hanging import HangingRun
from outboxkit.runtime.pauses import CONSUMER, Pause
from tests.unit.cli.status.reports import CALM, NOW, RELAY, holder, outbox, status

LOOK = "run `outboxkit doctor`, and read its log"


def test_nothing_is_wrong():
    assert list(advise(status())) == []
    assert list(advise(status(sessions=None, vacuum=None))) == []


def test_messages_wait_and_no_relay_is_there():
    found = status(outbox=outbox(pending=Count(3), age=190))
    (line,) = advise(found)
    assert line.startswith("no relay is connected to this database, and the oldest message waits for 3 min 10 s: start")
    just_now = status(outbox=outbox(pending=Count(1), age=0))
    assert [line.partition(", and ")[0] for line in advise(just_now)] == ["no relay is connected to this database"]
    assert list(advise(status(outbox=outbox(age=59.9)))) == []


def test_messages_wait_though_a_relay_is_there():
    found = status(outbox=outbox(pending=Count(3), age=190), sessions=Sessions((RELAY,), (), ()))
    assert list(advise(found)) == ["messages wait for 3 min 10 s though a relay is connected: " + LOOK]


@pytest.mark.parametrize("age", [None, 0, 59.9])
def test_messages_that_came_just_now_are_no_matter(age: float | None):
    found = status(outbox=outbox(pending=Count(3), age=age), sessions=Sessions((RELAY,), (), ()))
    assert list(advise(found)) == []


def test_on_sqlite_nobody_knows_whether_a_relay_is_there():
    assert list(advise(status(outbox=outbox(age=190), sessions=None, vacuum=None))) == []


def waits(age: float) -> OfDestination:
    return OfDestination(Count(1), Count(1), Count(), Count(), Count(), age)


def test_each_destination_has_a_relay_of_its_own():
    """One of another destination is no proof that messages of this one leave, and the other way round."""
    there = {"default": waits(3), "payments": waits(190), "mail": waits(1)}
    relays = Sessions((RELAY,), (), ())
    found = status(outbox=replace(outbox(age=190), by_destination=there), sessions=relays)
    (line,) = advise(found)
    assert line.startswith("messages to payments wait for 3 min 10 s: read the log of its relay, or start `outboxkit r")
    assert "--destination payments`" in line
    only = replace(found, outbox=replace(found.outbox, by_destination={"payments": waits(1)}))
    assert list(advise(only)) == []


def test_messages_that_wait_for_a_retry_have_a_cure():
    """A queue is bound by its consumer; what else an error names is to be mended."""
    postponed = Retried("default", Count(1), "postponed: nacked by the broker")
    (line,) = advise(status(outbox=replace(outbox(), retried=(postponed,))))
    assert "a queue is full or has no leader: start its consumers; they go by themselves" in line
    unbound = Retried("default", Count(2), "unroutable: NO_ROUTE")
    full, away = Retried("default", Count(1), "rejected: the queue is full"), Retried("mail", Count(1), "status 503")
    (no_queue, *others) = advise(status(outbox=replace(outbox(), retried=(unbound, full, away))))
    assert no_queue.startswith("2 messages wait for a retry, as no queue is bound for the type: start its consumer")
    assert others[0].startswith("1 message waits for a retry: mend what the error names, and see `outboxkit doctor`")
    assert others[1].startswith("1 message to mail waits for a retry: mend what the error names")


def test_a_paused_queue_has_its_command():
    held = Pause(CONSUMER, "billing", NOW, None, "the bank is moved", "ada")
    (line,) = advise(replace(status(), paused=(held,)))
    assert line == "no message of queue billing is handled while it is paused: `outboxkit resume billing`"


def test_what_nobody_knows_of_an_effect():
    (line,) = advise(replace(status(), effects=Effects(Count(1))))
    assert line.startswith("1 effect may have happened or not")


def test_parked_keys_and_dead_letters_are_one_line():
    assert list(advise(status(open_=2))) == ["2 dead letters to decide on: see `outboxkit dead list`"]
    found = status(outbox=outbox(keys=ParkedKeys(Count(1))), open_=2)
    assert list(advise(found)) == ["1 key is parked: see `outboxkit dead list`, then replay or discard"]


@pytest.mark.parametrize(
    ("kind", "cure"),
    [
        ("session", "end that transaction, or SELECT pg_terminate_backend(99)"),
        ("standby", "a query on the standby psql is old; end it there"),
        ("slot", "have the slot's reader catch up, or SELECT pg_drop_replication_slot('psql')"),
        ("prepared", "COMMIT PREPARED or ROLLBACK PREPARED 'psql'"),
    ],
)
def test_each_way_to_hold_back_vacuum_has_its_cure(kind: str, cure: str):
    found = status(vacuum=Vacuum(54_321, None, holder(kind)))
    assert list(advise(found)) == [f"54 321 dead rows cannot be removed: {cure}"]


def test_a_transaction_that_is_open_for_long_has_its_cure_whatever_it_keeps():
    (line,) = advise(status(vacuum=Vacuum(8, None, holder(seconds=300))))
    assert line == "a transaction is open for 5 min 0 s: end that transaction, or SELECT pg_terminate_backend(99)"
    assert not list(advise(status(vacuum=Vacuum(8, None, holder(seconds=299)))))


def test_the_transaction_of_a_handler_that_hangs_is_told_once():
    run = HangingRun("billing", 400, 7)
    consumers = replace(holder(seconds=400), name="outboxkit consumer billing")
    assert len(list(advise(replace(status(vacuum=Vacuum(8, None, consumers)), hanging=(run,))))) == 1


@pytest.mark.parametrize(
    ("vacuum", "held_back"),
    [
        (CALM, False),
        (Vacuum(1_000_000, NOW, None), False),
        (Vacuum(1_000, NOW, holder(seconds=60)), True),
        (Vacuum(1_000, NOW, holder(seconds=59)), False),
        (Vacuum(999, NOW, holder(seconds=7200)), False),
        (Vacuum(1_000, NOW, holder(seconds=None, transactions=9_999)), False),
        (Vacuum(1_000, NOW, holder(seconds=None, transactions=10_000)), True),
    ],
)
def test_held_back_is_a_long_time_and_many_rows(vacuum: Vacuum, held_back: bool):
    assert is_held_back(vacuum) is held_back


def test_the_missing_right_is_named():
    (line,) = advise(replace(status(), missing_right="pg_read_all_stats"))
    assert line == "PostgreSQL hides other roles' sessions from this one: GRANT pg_read_all_stats to it"


def test_a_handler_that_hangs_has_a_cure():
    run = HangingRun("billing", 120, 7)
    (one,) = advise(replace(status(), hanging=(run,)))
    (several,) = advise(replace(status(), hanging=(run, run, run)))
    named = "; the consumer's log names it and its message: if it hangs, restart"
    assert one.startswith("A handler of queue billing has not ended for 2 min 0 s" + named)
    assert f"for 2 min 0 s, and 2 more runs of that consumer have not ended{named}" in several
