"""The reason for which a message is where it is."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from outboxkit.operators.trace import reasons
from outboxkit.operators.trace.entries import Crashes, Lock, Neighbour, Surroundings
from outboxkit.statements.activity import NEVER
from outboxkit.tables import PARKED
from tests.unit.operators.trace.entries import NOW, SECOND, archive, handled, identity, letter, registered, waiting

RETRY = {"held": True, "due_at": NOW + SECOND, "attempts": 2, "last_error": "unroutable: NO_ROUTE"}
EARLIER = Neighbour("m-0", 5)
FAILED = Neighbour("m-0", 5, NOW + SECOND, 2, "unroutable: NO_ROUTE")
PARKING = Neighbour("m-0", error="too large", number=3, reason="rejected")


@pytest.mark.parametrize(
    ("row", "around", "kind", "text", "cure"),
    [
        ({}, Surroundings(), "ready", "it waits for the relay of default; it is the next one", ""),
        (
            {},
            Surroundings(ahead=5),
            "ready",
            "it waits for the relay of default; 5 messages to default are before it",
            "",
        ),
        ({}, Surroundings(relays=0), "no relay", "no relay is connected to this database; it is the next one", "relay"),
        ({}, Surroundings(ready=EARLIER), "behind", "it is behind message m-0 of its key order-1", "trace m-0"),
        ({}, Surroundings(parking=PARKING, held=FAILED), "parked", "parked by dead letter 3", "dead replay 3"),
        (
            {},
            Surroundings(held=FAILED, ready=EARLIER),
            "behind",
            "whose next attempt is due at 2026-03-01 12:00:01 UTC after attempt 2: unroutable: NO_ROUTE",
            "trace m-0",
        ),
        (
            {},
            Surroundings(held=Neighbour("m-0", 5, PARKED), ready=EARLIER),
            "behind",
            "it is behind message m-0 of its key order-1, which is parked",
            "trace m-0",
        ),
        (
            RETRY,
            Surroundings(),
            "retry",
            "attempt 2 failed, and the next one is due at 2026-03-01 12:00:01 UTC: unroutable: NO_ROUTE",
            "doctor",
        ),
        (RETRY | {"due_at": NOW - SECOND}, Surroundings(relays=0), "no relay", "no relay is connected", "relay"),
        (
            {"held": True, "due_at": PARKED},
            Surroundings(parking=PARKING),
            "parked",
            "its key order-1 is parked by dead letter 3, message m-0, rejected: too large",
            "dead replay 3",
        ),
        ({"held": True, "due_at": PARKED}, Surroundings(), "parked", "no open dead letter parks it any more", ""),
        ({}, Surroundings(parking=PARKING), "parked", "is parked by dead letter 3", "dead replay 3"),
        (
            {"due_at": NOW + SECOND},
            Surroundings(),
            "delayed",
            "it is delayed by its deliver_at, and due at 2026-03-01 12:00:01 UTC",
            "",
        ),
        ({"due_at": NOW - SECOND}, Surroundings(), "ready", "it waits for the relay", ""),
        (
            {},
            Surroundings(lock=Lock(7, "outboxkit relay", NOW), parking=PARKING),
            "locked",
            "a relay has it in hand: session 7, since 2026-03-01 12:00:00 UTC",
            "",
        ),
        ({}, Surroundings(lock=Lock(7, "psql", None)), "locked", "session 7 (psql) has locked", "end that transaction"),
    ],
)
def test_a_row_waits_for_one_thing(row: dict[str, Any], around: Surroundings, kind: str, text: str, cure: str):
    reason = reasons.why_it_waits(waiting(**row, around=around), NOW)
    assert reason.kind == kind
    assert text in reason.text
    assert cure in "".join(reason.cure)
    assert bool(cure) is bool(reason.cure)


def test_what_waits_for_long_behind_a_relay_that_is_connected_has_a_cure():
    """It may hang. What came just now, or waits on SQLite, needs none."""
    old, ended = NOW - timedelta(minutes=1), "end its process: its supervisor starts it again"
    beside = (
        "meanwhile a relay beside it moves what waits and is not locked: outboxkit relay --destination mail --drain"
    )
    late = waiting(message=identity(destination="mail", created_at=old), around=Surroundings(relays=1))
    cure = reasons.why_it_waits(late, NOW).cure
    assert cure[0] == "outboxkit doctor"
    assert ended in cure[1]
    assert cure[2:] == (beside,)
    assert reasons.why_it_waits(replace(late, due_at=NOW - SECOND), NOW).cure == ()
    assert reasons.why_it_waits(replace(late, around=Surroundings()), NOW).cure == ()
    locked = waiting(around=Surroundings(lock=Lock(7, "outboxkit relay", old)))
    assert ended in reasons.why_it_waits(locked, NOW).cure[0]


def test_the_relay_of_a_destination_is_named():
    row = waiting(message=identity(destination="payments"), around=Surroundings(relays=0))
    assert reasons.why_it_waits(row, NOW).cure == ("outboxkit relay --destination payments",)


def test_names_cannot_move_the_cursor():
    row = waiting(message=identity(key="a\x1b[2J"), around=Surroundings(ready=Neighbour("m\n", 1)))
    assert reasons.why_it_waits(row, NOW).text == r"it is behind message m\n of its key a\x1b[2J"


def test_a_dead_letter_says_what_repairs_it():
    reason = reasons.of_letter(letter(parked=True))
    assert reason.text == "dead letter 3 of the inbox of handler H, failed: ValueError: no; it parks the key order-1"
    assert reason.cure == ("outboxkit dead replay 3", "outboxkit dead discard 3")
    done = reasons.of_letter(letter(resolution="replayed", resolved_by="ann", resolved_at=NOW))
    assert (done.kind, done.cure) == ("replayed", ())
    assert done.text == "dead letter 3 was replayed by ann at 2026-03-01 12:00:00 UTC"


def test_an_unroutable_dead_letter_needs_a_queue_before_its_replay():
    dead = replace(letter(side="outbox", handler=None, reason="unroutable"), message=identity())
    starting = "first start the consumer of OrderConfirmed, again if it runs, which binds its queue: "
    sending = ("outboxkit dead replay 3", "outboxkit dead discard 3")
    said = replace(dead, error="unroutable: NO_ROUTE")
    assert reasons.of_letter(said).text == "dead letter 3 of the outbox, unroutable: NO_ROUTE"
    one, other = (f"{starting}outboxkit consume MODULE --queue {queue}" for queue in ("billing", "'my mail'"))
    assert reasons.of_letter(dead, {"my mail", "billing"}).cure == (one, other, *sending)
    assert reasons.of_letter(dead).cure == (f"{starting}outboxkit consume MODULE --queue QUEUE", *sending)
    assert reasons.of_letter(replace(dead, message=identity(queue="billing"))).cure == (one, *sending)
    assert reasons.of_letter(replace(dead, message=identity(destination="payments"))).cure == sending
    assert reasons.of_letter(replace(dead, reason="rejected")).cure == sending


def test_a_crash_record_is_a_start_or_a_failure():
    record = Crashes("db", "m", "q", 2, 0, None, NOW)
    assert "started it 2 times without an end" in reasons.of_crashes(record).text
    assert "after 3 failures" in reasons.of_crashes(Crashes("db", "m", "q", 0, 3, NOW, NOW)).text


def test_handlers_that_have_not_handled_it_are_known_by_their_types():
    there = archive(
        handlers=(
            registered("H"),
            registered("G", "other"),
            registered("Retired", last_seen=NEVER),
            registered("Unknown", types=None),
            registered("Else", types=("OrderCancelled",)),
        )
    )
    (reason,) = reasons.not_handled(identity(), there, {handled().handler}, [], None)
    assert reason.text.startswith("not handled by G of queue other. It is in the queue")
    assert reason.text.endswith("or its queue was not bound")
    (young,) = reasons.not_handled(identity(), there, {handled().handler}, [], NOW)
    assert "bound" not in young.text
    assert [each.handler for each in reasons.expected(identity(queue="q"), there)] == ["H"]
    assert reasons.expected(identity(destination="payments"), there) == []
    assert list(reasons.not_handled(identity(), there, [], [letter(handler=None)], None)) == []
    assert list(reasons.not_handled(identity(), there, {handled().handler}, [letter(handler="G")], None)) == []


def test_handlers_that_came_after_the_message_are_named_as_such():
    later = {"first_seen": NOW + timedelta(seconds=1)}
    there = archive(
        handlers=(registered("Old", first_seen=NOW), registered("New", **later), registered("Newer", **later))
    )
    left, late = reversed(list(reasons.not_handled(identity(), there, [], [], NOW)))
    assert (left.kind, late.kind, late.cure) == ("not handled", "younger", ())
    assert "by Old of queue q. " in left.text
    assert "New of queue q (first seen at 2026-03-01 12:00:01 UTC), Newer of queue q" in late.text


def test_a_copy_for_one_queue_does_not_tell_that_a_message_was_never_sent():
    copy = letter(side="outbox", reason="unroutable")
    assert copy.message.queue is not None
    assert not reasons.was_never_sent([copy])
    assert reasons.was_never_sent([copy, replace(copy, message=identity())])
