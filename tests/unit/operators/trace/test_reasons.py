"""The reason for which a message is where it is."""

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from outboxkit.operators.trace import reasons
from outboxkit.operators.trace.reading import Surroundings
from outboxkit.statements.handlers import NEVER
from tests.unit.operators.trace.rows import NOW, SECOND, crashes, database, kept, letter, registered, waiting

DUE = "2026-03-01 12:00:01 UTC"
PARKED = {"held": True, "due_at": reasons.PARKED_AS_READ}
RETRY = {"held": True, "due_at": NOW + SECOND, "attempts": 2, "last_error": "unroutable: NO_ROUTE"}
EARLIER = waiting("m-0", 5)
FAILED, HELD = waiting("m-0", 5, **RETRY), waiting("m-0", 5, due_at=reasons.PARKED_AS_READ)
SENDING = ("outboxkit dead show 3", "outboxkit dead replay 3", "outboxkit dead discard 3")
PARKING = letter("m-0", error="too large", reason="rejected")


def lock(name: str, since: datetime | None) -> Any:
    return SimpleNamespace(pid=7, name=name, since=since)


def why(row: Any, around: Surroundings | None = None) -> reasons.Explanation:
    return reasons.why_it_waits(row, database(row, around=around))


@pytest.mark.parametrize(
    ("row", "around", "kind", "text", "cure"),
    [
        ({}, Surroundings(), "ready", "it waits for the relay of default; it is the next one", ""),
        ({}, Surroundings(ahead=5), "ready", "of default; 5 messages to default are before it", ""),
        ({}, Surroundings(relays=0), "no relay", "no relay of default is connected to this database; it is", "relay"),
        ({}, Surroundings(ready=EARLIER), "behind", "it is behind message m-0 of its key order-1", "trace m-0"),
        ({}, Surroundings(parking=PARKING, held=FAILED), "parked", "parked by dead letter 3", "dead replay 3"),
        (
            {},
            Surroundings(held=FAILED, ready=EARLIER),
            "behind",
            f"whose next attempt is due at {DUE} after attempt 2: unroutable: NO_ROUTE",
            "trace m-0",
        ),
        ({}, Surroundings(held=HELD, ready=EARLIER), "behind", "of its key order-1, which is parked", "trace m-0"),
        (
            RETRY,
            Surroundings(),
            "retry",
            f"attempt 2 failed, and the next one is due at {DUE}: unroutable",
            "Mend what",
        ),
        (RETRY | {"due_at": NOW - SECOND}, Surroundings(relays=0), "no relay", "no relay of default is", "relay"),
        (
            PARKED,
            Surroundings(parking=PARKING),
            "parked",
            "its key order-1 is parked by dead letter 3, message m-0, rejected: too large",
            "dead replay 3",
        ),
        (PARKED, Surroundings(), "parked", "no open dead letter parks it any more", ""),
        ({"due_at": NOW + SECOND}, Surroundings(), "delayed", f"delayed by its deliver_at, and due at {DUE}", ""),
        ({"due_at": NOW - SECOND}, Surroundings(), "ready", "it waits for the relay", ""),
        (
            {},
            Surroundings(lock=lock("outboxkit relay", NOW), parking=PARKING),
            "locked",
            "a relay has it in hand: session 7, since 2026-03-01 12:00:00 UTC",
            "",
        ),
        ({}, Surroundings(lock=lock("psql", None)), "locked", "session 7 (psql) has locked", "backend(7)"),
    ],
)
def test_a_row_waits_for_one_thing(row: dict[str, Any], around: Surroundings, kind: str, text: str, cure: str):
    reason = why(waiting(**row), around)
    assert reason.kind == kind
    assert text in reason.text
    assert cure in "".join(reason.cure)
    assert bool(cure) is bool(reason.cure)


def test_what_waits_for_long_behind_a_relay_that_is_connected_has_a_cure():
    """It may hang. What came just now, or waits on SQLite, needs none."""
    old, ended = NOW - timedelta(minutes=1), "end the relay's process: its supervisor starts it again"
    late = waiting(destination="mail", created_at=old)
    cure = why(late, Surroundings(relays=1)).cure
    assert ended in cure[0]
    assert cure[1:] == ("outboxkit relay --destination mail --broker-url URL --drain",)
    assert why(waiting(destination="mail", due_at=NOW - SECOND), Surroundings(relays=1)).cure == ()
    assert why(late).cure == ()
    assert ended in why(waiting(), Surroundings(lock=lock("outboxkit relay", old))).cure[0]


def test_the_relay_of_a_destination_is_named():
    assert why(waiting(destination="payments"), Surroundings(relays=0)).cure == (
        "outboxkit relay --destination payments --broker-url URL",
    )


def test_names_cannot_move_the_cursor():
    reason = why(waiting(key="a\x1b[2J"), Surroundings(ready=waiting("m\n", 1)))
    assert reason.text == r"it is behind message m\n of its key a\x1b[2J"


def of_letter(*queues: str, **more: Any) -> reasons.Explanation:
    return reasons.of_letter(letter(**more), database(), queues)


def test_a_dead_letter_says_what_repairs_it():
    reason = of_letter(parked=True)
    assert reason.text == "dead letter 3 of the inbox of handler H, failed: ValueError: no; it parks the key order-1"
    assert reason.cure == SENDING
    done = of_letter(resolution="replayed", resolved_by="ann", resolved_at=NOW)
    assert (done.kind, done.cure) == ("replayed", ())
    assert done.text == "dead letter 3 was replayed by ann at 2026-03-01 12:00:00 UTC"


def test_an_unroutable_dead_letter_needs_a_queue_before_its_replay():
    dead = {"side": "outbox", "handler": None, "reason": "unroutable", "queue": None}
    assert (
        of_letter(**dead | {"error": "unroutable: NO_ROUTE"}).text
        == "dead letter 3 of the outbox, unroutable: NO_ROUTE"
    )
    one, other = (f"outboxkit consume MODULE --queue {queue}" for queue in ("billing", "'my mail'"))
    assert of_letter("my mail", "billing", **dead).cure[1:] == (one, other, *SENDING)
    assert "that binds its queue" in of_letter(**dead).cure[0]
    assert of_letter(**dead).cure[1:] == ("outboxkit consume MODULE --queue QUEUE", *SENDING)
    assert of_letter(**dead | {"queue": "billing"}).cure[1:] == (one, *SENDING)
    assert of_letter(**dead, destination="payments").cure == SENDING
    assert of_letter(**dead | {"reason": "rejected"}).cure == SENDING


def test_a_crash_record_is_a_start_or_a_failure():
    assert "started it 2 times without an end" in reasons.of_crashes(crashes(starts=2), database()).text
    assert "after 3 failures" in reasons.of_crashes(crashes(starts=0, failures=3), database()).text


def test_handlers_that_have_not_handled_it_are_known_by_their_types():
    there = database(
        handlers=[
            registered("H"),
            registered("G", "other"),
            registered("Retired", last_seen=NEVER),
            registered("Unknown", types=None),
            registered("Else", types=("OrderCancelled",)),
        ]
    )
    (reason,) = reasons.not_handled(kept(), there, {"H"}, (), None)
    assert reason.text.startswith("not handled by G of queue other. It is in the queue")
    assert reason.text.endswith("or its queue was not bound")
    (young,) = reasons.not_handled(kept(), there, {"H"}, (), NOW)
    assert "bound" not in young.text
    assert [each.handler for each in there.expected(kept(queue="q"))] == ["H"]
    assert there.expected(kept(destination="payments")) == []
    (elsewhere,) = reasons.not_handled(kept(), there, (), {"q", "a queue without handlers"}, NOW)
    assert elsewhere.text.startswith("not handled by G of queue other. ")
    assert list(reasons.not_handled(kept(), there, (), {"q", "other"}, None)) == []
    assert list(reasons.not_handled(kept(), there, {"H", "G"}, (), None)) == []


def test_handlers_that_came_after_the_message_are_named_as_such():
    later = {"first_seen": NOW + timedelta(seconds=1)}
    there = database(
        handlers=[registered("Old", first_seen=NOW), registered("New", **later), registered("Newer", **later)]
    )
    left, late = reversed(list(reasons.not_handled(kept(), there, (), (), NOW)))
    assert (left.kind, late.kind, late.cure) == ("not handled", "younger", ())
    assert "by Old of queue q. " in left.text
    assert "New of queue q (first seen at 2026-03-01 12:00:01 UTC), Newer of queue q" in late.text
