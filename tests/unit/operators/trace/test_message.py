"""The trace of a message, put together from what several databases say."""

from datetime import timedelta

from outboxkit import ids
from outboxkit.operators.trace import TraceQuery
from outboxkit.operators.trace.message import ORDER, assemble
from tests.unit.operators.trace.rows import (
    DATABASE,
    NOW,
    SECOND,
    crashes,
    database,
    handled,
    kept,
    letter,
    registered,
    traced,
    waiting,
)

DAY = timedelta(days=1)
PARENT = b'{"traceparent": "00-4bf9-00f0-01"}'
HERE, THERE = "postgresql://shop", "postgresql://billing"
RESOLVED = {"resolved_by": "ann", "resolved_at": NOW}


def test_one_timeline_of_two_databases():
    id_ = ids.new(at=NOW)
    row = letter(
        id_, first_failed_at=NOW + 2 * SECOND, resolution="replayed", resolved_by="ann", resolved_at=NOW + 9 * SECOND
    )
    here = database(kept(id_, causation_id="m-0", headers=PARENT), name=HERE)
    there = database(handled(id_, attempts=3, processed_at=NOW + 10 * SECOND), row, name=THERE)
    found = traced(id_, here, there)
    assert [(event.what, event.text) for event in found.timeline] == [
        ("added", "added, by the producer's clock, caused by m-0, in trace 4bf9"),
        ("published", "published to the broker"),
        ("refused", "failed for the first time"),
        ("dead", "dead letter 3 of the inbox in queue q, handler H, failed after 10 attempts: ValueError: no"),
        ("replayed", "dead letter 3 replayed by ann"),
        ("handled", "handled by H, attempt 3"),
    ]
    assert found.state == "handled"
    assert found.unknown == ("the errors of the attempts of H before the last: its log has them",)


def test_the_state_is_what_matters_most():
    states = {
        "waiting": database(waiting(), handled()),
        "dead": database(kept(), letter(), handled(handler="G")),
        "retried": database(kept(), crashes(starts=0, error="ValueError: no", attempt=3, next_at=NOW, handler="H")),
        "started": database(kept(), crashes()),
        "not handled": database(kept(), handlers=[registered()]),
        "published": database(kept()),
        "handled": database(kept(), handled()),
        "discarded": database(handled(), letter(resolution="discarded", **RESOLVED)),
    }
    for state, there in states.items():
        assert traced("m", there).state == state
    assert traced("m", database(letter(resolution="replayed", **RESOLVED))).state == "published"
    assert {*states, "replayed"} == set(ORDER)


def test_the_messages_that_it_caused_are_listed_by_time():
    here = database(kept("a"), kept("b", 8, causation_id="a", published_at=NOW + SECOND))
    there = database(kept("c", 9, causation_id="a"), kept("d", 10, causation_id="b"), kept("e", 11, causation_id="e"))
    found = {id_: [each.message_id for each in traced(id_, here, there).caused] for id_ in "abe"}
    assert found == {"a": ["c", "b"], "b": ["d"], "e": []}
    of_key = assemble(TraceQuery(key="order-1"), [here, there])
    assert [each.message_id for each in of_key.messages] == ["b", "e", "d", "c", "a"], "the newest first"
    assert assemble(TraceQuery(key="order-2"), [here, there]).messages == ()


def test_of_a_key_those_come_first_that_wait_then_the_newest_and_the_rest_is_counted():
    many_ = [kept(f"k{n}", n, published_at=NOW + n * SECOND) for n in range(60)]
    there = database(
        *many_, waiting("w2", 101, created_at=NOW - SECOND), waiting("w1", 100, created_at=NOW - 2 * SECOND)
    )
    shown = assemble(TraceQuery(key="order-1", limit=4), [there])
    assert [each.message_id for each in shown.messages] == ["w1", "w2", "k59", "k58"]
    assert shown.more == 58
    lately = assemble(TraceQuery(key="order-1", since=NOW + 59 * SECOND), [there])
    assert [each.message_id for each in lately.messages] == ["k59"]


def test_a_message_that_is_tried_again_is_found_by_its_key_and_names_error_and_time():
    record = crashes(starts=0, error="ValueError: no", attempt=3, next_at=NOW + SECOND, handler="H", key="order-9")
    (message,) = assemble(TraceQuery(key="order-9"), [database(record, handlers=[registered("G")])]).messages
    assert (message.state, message.key) == ("retried", "order-9")
    assert (
        message.why[0].text
        == "attempt 3 failed in queue q, handler H, and the next one is due at 2026-03-01 12:00:01 UTC: ValueError: no"
    )


def test_a_circle_of_causes_has_all_its_messages():
    circle = [kept(id_, n, causation_id=cause) for n, (id_, cause) in enumerate(zip("abc", "cab", strict=True))]
    for row in circle:
        row.correlation_id = "s"
    found = assemble(TraceQuery(correlation_id="s"), [database(*circle)])
    assert [each.message_id for each in found.messages] == ["a", "b", "c"]
    assert [each.message_id for each in found.messages[0].caused] == ["b"]
    assert [(depth, each.message_id) for depth, each in found.tree] == [(0, "a"), (0, "b"), (0, "c")]


def test_a_tree_has_each_message_below_the_one_that_caused_it():
    causes = {"a": None, "b": "a", "x": "unknown", "c": "b", "d": "a", "e": "x"}
    rows = [
        kept(id_, n, causation_id=cause, published_at=NOW + n * SECOND) for n, (id_, cause) in enumerate(causes.items())
    ]
    for row in rows:
        row.correlation_id = "s"
    found = assemble(TraceQuery(correlation_id="s"), [database(*rows)])
    tree = [(depth, each.message_id) for depth, each in found.tree]
    assert tree == [(0, "a"), (1, "b"), (2, "c"), (1, "d"), (0, "x"), (1, "e")]


def test_a_message_that_only_the_inbox_knows():
    found = traced("m", database(handled(), handlers=[registered()]))
    assert (found.type, found.key, found.state) == ("OrderConfirmed", None, "handled")
    (unknown,) = found.unknown
    assert "OUTBOXKIT_PUBLISHED_RETENTION" in unknown


def test_a_copy_for_one_queue_does_not_hide_the_message_for_all():
    found = traced("m", database(kept(), kept(position=8, queue="q"), handlers=[registered("G", "other")]))
    assert (found.queue, found.state) == (None, "not handled")
    died = letter(resolution="replayed", **RESOLVED)
    assert traced("m", database(died, kept(position=8, queue="q"))).queue is None


def test_a_message_that_no_queue_got_is_not_said_to_be_in_one():
    def gone(**more: object) -> object:
        return letter(**{"side": "outbox", "handler": None, "reason": "unroutable", "queue": None} | more)

    there = database(handlers=[registered(queue="billing")], name=THERE)
    found = traced("m", database(gone()), there)
    assert [(reason.kind, reason.database) for reason in found.why] == [("dead", DATABASE)]
    assert "--queue billing" in found.why[0].cure[1]
    assert traced("m", database(gone(resolution="discarded", **RESOLVED)), there).state == "discarded"
    assert traced("m", database(gone(resolution="replayed", **RESOLVED)), there).state == "not handled"
    assert [reason.kind for reason in traced("m", database(gone(), kept()), there).why] == ["dead", "not handled"]
    assert [reason.kind for reason in traced("m", database(gone(queue="mail")), there).why] == ["dead"]


def test_a_message_that_still_waits_is_in_no_queue():
    here, there = database(waiting(), name=HERE), database(name=THERE, handlers=[registered()])
    for databases in ((here, there), (there, here)):
        assert [why.kind for why in traced("m", *databases).why] == ["ready"]


def test_a_message_whose_handler_works_elsewhere_has_not_been_forgotten():
    there = database(kept(id_ := ids.new(at=NOW)), handlers=[registered(types=("OrderCancelled",), retention=14 * DAY)])
    (unknown,) = traced(id_, there).unknown
    assert "no consumer of OrderConfirmed is registered in these databases" in unknown
    for retention, lines in ((14 * DAY, 0), (SECOND, 1), (None, 1)):
        there = database(kept(id_, created_at=NOW - DAY), handlers=[registered(retention=retention)])
        there.now = NOW + 60 * SECOND
        assert len(traced(id_, there).unknown) == lines


def test_an_id_of_several_messages_is_said():
    found = traced("m", database(kept(), kept(position=8, digest="other"), handled()))
    assert (found.why[0].kind, found.state) == ("ambiguous", "handled")
    assert found.why[0].text.startswith("2 messages have this id, with 2 payloads")
    assert traced("m", database(kept(), kept(position=8))).why == ()


def test_how_many_handlers_have_it_is_counted_without_younger_ones():
    late = registered("Late", first_seen=NOW + SECOND)
    found = traced("m", database(kept(), handled("m", "H"), handlers=[registered("H"), registered("G"), late]))
    assert (found.state, found.handled_by, found.handlers) == ("not handled", 1, 2)
    assert [reason.kind for reason in found.why] == ["handled", "younger", "not handled"]
    alone = traced("m", database(kept(), handled(), handlers=[registered("H"), late]))
    assert (alone.state, alone.handled_by, alone.handlers) == ("handled", 1, 1)
