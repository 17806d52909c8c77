"""The names of sessions: what PostgreSQL keeps of them, and what they tell of a process."""

import pytest

from outboxkit.database.session_names import (
    CONSUMER_SESSION,
    RELAY_SESSION,
    may_be_of_queue,
    queues_of,
    session_name,
    without_mark,
)


@pytest.mark.parametrize(
    ("process", "names", "name"),
    [
        (RELAY_SESSION, (), "outboxkit relay"),
        (RELAY_SESSION, ("café",), "outboxkit relay caf?"),
        (CONSUMER_SESSION, ("billing", "mails"), "outboxkit consumer billing, mails"),
        (CONSUMER_SESSION, ("x" * 100,), "outboxkit consumer " + "x" * 36),
    ],
)
def test_a_name_is_what_postgresql_keeps(process: str, names: tuple[str, ...], name: str):
    assert session_name(process, names) == name


@pytest.mark.parametrize(
    "queue",
    [
        "billing",
        "mails",
        "rechnungen für alle",
        "x" * 100,
        "bills (batch)",
        "bills, old",
        "bills ",
        "x" * 28 + ", y",
        "x" * 35,
    ],
)
def test_a_consumer_is_known_by_each_of_its_queues(queue: str):
    assert may_be_of_queue(session_name(CONSUMER_SESSION, (queue,)), queue)
    assert may_be_of_queue(session_name(CONSUMER_SESSION, ("first", queue)), queue)
    assert may_be_of_queue(session_name(CONSUMER_SESSION, (queue, "last")), queue)
    assert may_be_of_queue(f"{session_name(CONSUMER_SESSION, (queue,))} (batch)", queue)


@pytest.mark.parametrize(
    "session", ["outboxkit consumer billing", "outboxkit consumer old bill", "outboxkit relay bill", "bill", ""]
)
def test_a_queue_s_name_within_another_name_tells_nothing(session: str):
    assert not may_be_of_queue(session, "bill")


@pytest.mark.parametrize(
    "name", ["outboxkit consumer billing (batch)", "outboxkit consumer mail, " + "b" * 30 + " (batch)"]
)
def test_a_consumer_in_a_transaction_of_a_batch_is_known_as_before(name: str):
    queue = "billing" if "billing" in name else "b" * 60
    assert may_be_of_queue(name, queue)
    assert not may_be_of_queue(name, f"{queue[:4]} (batch)")
    assert without_mark(name) == name[:-8]


def test_a_name_that_is_cut_off_may_be_of_several_queues():
    session = session_name(CONSUMER_SESSION, ("mail", "b" * 100))
    assert may_be_of_queue(session, "b" * 60)
    assert queues_of(session) == "mail, " + "b" * 30
