"""Lives, assembled from what several databases say."""

from dataclasses import replace
from datetime import timedelta

from outboxkit import ids
from outboxkit.operators.trace import Clue, lives, selected
from outboxkit.operators.trace.entries import Crashes, Identity, Kept
from outboxkit.operators.trace.story import ORDER
from tests.unit.operators.trace.entries import (
    DATABASE,
    NOW,
    SECOND,
    archive,
    handled,
    identity,
    kept,
    letter,
    registered,
    waiting,
)

DAY = timedelta(days=1)
HERE, THERE = "postgresql://shop", "postgresql://billing"


def test_one_timeline_of_two_databases():
    id_ = ids.new(at=NOW)
    row = letter(
        id_, first_failed_at=NOW + 2 * SECOND, resolution="replayed", resolved_by="ann", resolved_at=NOW + 9 * SECOND
    )
    here = archive(kept(id_, causation_id="m-0", trace_id="4bf9"), database=HERE)
    there = archive(handled(id_, attempts=3, duration_ms=120, processed_at=NOW + 10 * SECOND), row, database=THERE)
    life = lives([here, there])[id_]
    assert [(event.what, event.text) for event in life.timeline] == [
        ("added", "added, by the producer's clock, caused by m-0, in trace 4bf9"),
        ("published", "published to the broker"),
        ("refused", "failed for the first time"),
        ("dead", "dead letter 3 of the inbox in queue q, handler H, failed after 10 attempts: ValueError: no"),
        ("replayed", "dead letter 3 replayed by ann"),
        ("handled", "handled by H, attempt 3, in 120 ms"),
    ]
    assert life.state == "handled"
    assert life.unknown == ("the errors of the attempts of H before the last: its log has them",)


def test_the_state_is_what_matters_most():
    states = {
        "waiting": archive(waiting(), handled()),
        "dead": archive(kept(), letter(), handled(handler="G")),
        "started": archive(kept(), Crashes("db", "m", "q", 1, 0, None, NOW)),
        "not handled": archive(kept(), handlers=(registered(),)),
        "published": archive(kept()),
        "handled": archive(kept(), handled()),
        "discarded": archive(handled(), letter(resolution="discarded", resolved_by="ann", resolved_at=NOW)),
    }
    for state, there in states.items():
        assert lives([there])["m"].state == state
    sent_back = archive(letter(resolution="replayed", resolved_by="ann", resolved_at=NOW))
    assert lives([sent_back])["m"].state == "published"
    assert {*states, "replayed"} == set(ORDER)


def test_causes_are_a_tree_that_knows_both_databases():
    here = archive(kept("a"), kept("b", 8, causation_id="a"))
    there = archive(kept("c", 9, causation_id="b"), kept("d", 10, causation_id="b"), kept("e", 11, causation_id="e"))
    known = lives([here, there])
    assert {id_: life.caused for id_, life in known.items()} == {
        "a": ("b",),
        "b": ("c", "d"),
        "c": (),
        "d": (),
        "e": (),
    }
    assert [life.message.message_id for life in selected(Clue(correlation_id="s"), known)] == ["a", "e"]
    assert [life.message.message_id for life in selected(Clue(message_id="b"), known)] == ["b"]
    assert len(selected(Clue(key="order-1"), known)) == 5
    assert selected(Clue(key="order-2"), known) == []


def test_a_message_that_only_the_inbox_knows():
    life = lives([archive(handled(), handlers=(registered(),))])["m"]
    assert (life.message.type, life.message.key, life.state) == ("OrderConfirmed", None, "handled")
    (unknown,) = life.unknown
    assert "OUTBOXKIT_PUBLISHED_RETENTION" in unknown


def test_what_cannot_be_known_names_the_setting():
    old = ids.new(at=NOW - 100 * SECOND)
    (published, processed) = lives([archive(Crashes("db", old, "q", 1, 0, None, NOW), oldest_kept=NOW)])[old].unknown
    assert "A longer OUTBOXKIT_PUBLISHED_RETENTION keeps more" in published
    assert "Add the database of its consumer with --also" in processed
    new = ids.new(at=NOW + SECOND)
    there = archive(Crashes("db", new, "q", 1, 0, None, NOW), oldest_kept=NOW, handlers=(registered(),))
    published, processed = lives([there])[new].unknown
    assert "not among the kept messages" in published
    assert "OUTBOXKIT_INBOX_RETENTION" in processed
    there.cut["published"] = "the rest"
    assert len(lives([there])[new].unknown) == 1


def test_a_copy_for_one_queue_does_not_hide_the_message_for_all():
    there = archive(kept(), kept(position=8, queue="q"), handlers=(registered("G", "other"),))
    assert lives([there])["m"].message.queue is None
    assert lives([there])["m"].state == "not handled"


def test_a_message_that_no_queue_got_is_not_said_to_be_in_one():
    gone = replace(letter(side="outbox", handler=None, reason="unroutable"), message=identity())
    here, there = archive(gone, database=HERE), archive(handlers=(registered(queue="billing"),), database=THERE)
    life = lives([here, there])["m"]
    assert [(reason.kind, reason.database) for reason in life.reasons] == [("dead", DATABASE)]
    assert "--queue billing" in life.reasons[0].cure[0]
    discarded = replace(gone, resolution="discarded", resolved_by="ann", resolved_at=NOW)
    assert lives([archive(discarded), there])["m"].state == "discarded"
    replayed = replace(gone, resolution="replayed", resolved_by="ann", resolved_at=NOW)
    assert lives([archive(replayed), there])["m"].state == "not handled"
    assert [reason.kind for reason in lives([archive(gone, kept()), there])["m"].reasons] == ["dead", "not handled"]
    copy = replace(gone, message=identity(queue="mail"))
    assert [reason.kind for reason in lives([archive(copy), there])["m"].reasons] == ["dead"]


def test_a_delayed_message_does_not_know_when_it_was_added():
    delayed = waiting(message=identity(created_at=NOW + SECOND), due_at=NOW + SECOND)
    (event,) = lives([archive(delayed)])["m"].timeline
    assert (event.at, event.text) == (None, "added at a time that is not kept: it has a deliver_at")


def test_a_message_whose_handler_works_elsewhere_has_not_been_forgotten():
    there = archive(kept(id_ := ids.new(at=NOW)), handlers=(registered(types=("OrderCancelled",), retention=14 * DAY),))
    (unknown,) = lives([there])[id_].unknown
    assert "no consumer of OrderConfirmed is registered in these databases" in unknown
    for retention, lines in ((14 * DAY, 0), (SECOND, 1), (None, 1)):
        there = archive(kept(id_, created_at=NOW - DAY), handlers=(registered(retention=retention),))
        there.now = NOW + 60 * SECOND
        assert len(lives([there])[id_].unknown) == lines


def test_a_time_to_come_is_the_producers():
    id_ = ids.new(at=NOW + DAY)
    life = lives([archive(kept(id_), handled(id_, processed_at=NOW + DAY))])[id_]
    assert life.reasons[0].text.endswith(", dated by its producer, whose clock was ahead")
    assert [event.text for event in life.timeline] == [
        "added, by the producer's clock, which is ahead: this is still to come",
        "published to the broker",
        "handled by H, attempt 1, within 100 ms, dated by its producer, whose clock was ahead",
    ]


def test_an_id_of_several_messages_is_said():
    there = archive(kept(), kept(position=8), handled(), payloads={"m": 2})
    life = lives([there])["m"]
    assert (life.reasons[0].kind, life.state) == ("ambiguous", "handled")
    assert life.reasons[0].text.startswith("2 messages have this id, with 2 payloads")
    assert lives([archive(kept(), kept(position=8), payloads={"m": 1})])["m"].reasons == ()


def test_how_many_handlers_have_it_is_counted_without_younger_ones():
    late = registered("Late", first_seen=NOW + SECOND)
    there = archive(kept(), handled("m", "H"), handlers=(registered("H"), registered("G"), late))
    life = lives([there])["m"]
    assert (life.state, life.handled_by, life.handlers) == ("not handled", 1, 2)
    assert [reason.kind for reason in life.reasons] == ["handled", "younger", "not handled"]
    alone = lives([archive(kept(), handled(), handlers=(registered("H"), late))])["m"]
    assert (alone.state, alone.handled_by, alone.handlers) == ("handled", 1, 1)


def test_a_circle_of_causes_begins_with_the_oldest():
    circle = [kept(id_, n, causation_id=cause) for n, (id_, cause) in enumerate(zip("abc", "cab", strict=True))]
    known = lives([archive(*circle, kept("x", 7), kept("y", 8, causation_id="x"))])
    found = [life.message.message_id for life in selected(Clue(correlation_id="s"), known)]
    assert found == ["a", "x"]


def test_a_long_story_takes_no_longer_for_each_of_its_messages():
    """The work is counted, and not the time: each entry is looked at as often, whatever the number of messages."""
    looks = []
    for number in (50, 500):
        entries = [Counted(f"m-{n}", causation_id=f"m-{n - 1}" if n % 2 else "m-0") for n in range(number)]
        Counted.looks = 0
        rows = [Kept(DATABASE, message, n, NOW) for n, message in enumerate(entries)]
        assert len(selected(Clue(correlation_id="s"), lives([archive(*rows)]))) > 0
        looks.append(Counted.looks / number)
    assert looks[1] <= looks[0] * 1.1


class Counted(Identity):
    """An identity that counts how often its id is read."""

    looks = 0

    def __init__(self, id_: str, **more: str) -> None:
        super().__init__(message_id=id_, type="OrderConfirmed", **more)  # type: ignore[arg-type]

    def __getattribute__(self, name: str) -> object:
        Counted.looks += name == "message_id"
        return super().__getattribute__(name)
