"""What became of each message, against a model that is slow and plain."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from outboxkit.brokers import CONFIRMED, Verdict
from outboxkit.brokers.rabbitmq.confirms import FORGOTTEN_IDS, ConfirmTracker, Loss, Receipts

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 6)),
        st.tuples(st.sampled_from(["ack", "nack"]), st.integers(0, 30), st.booleans()),
        st.tuples(st.just("return"), st.integers(0, 29)),
    ),
    max_size=40,
)


class Model:
    """Each message by its tag, with its verdict; the first answer counts."""

    def __init__(self) -> None:
        self.verdicts: dict[int, Verdict | None] = {}
        self.sent = 0

    def play(self, event: tuple[Any, ...]) -> None:
        match event:
            case ("send", count):
                for _ in range(count):
                    self.sent += 1
                    self.verdicts[self.sent] = None
            case ("return", number):
                self._answer([number + 1], Verdict.UNROUTABLE)
            case (what, tag, multiple):
                all_up_to = range(1, (tag or self.sent) + 1)
                self._answer(
                    all_up_to if multiple else [tag], Verdict.CONFIRMED if what == "ack" else Verdict.POSTPONED
                )

    def _answer(self, tags: Any, verdict: Verdict) -> None:
        for tag in tags:
            if tag in self.verdicts and self.verdicts[tag] is None:
                self.verdicts[tag] = verdict


def play(tracker: ConfirmTracker, event: tuple[Any, ...], sent: int) -> None:
    match event:
        case ("send", count):
            tracker.sent([f"m-{sent + n}" for n in range(count)], [sent + n for n in range(count)])
        case ("return", number):
            tracker.returned(f"m-{number}", "NO_ROUTE")
        case ("ack", tag, multiple):
            tracker.ack(tag, multiple=multiple)
        case ("nack", tag, multiple):
            tracker.nack(tag, multiple=multiple)


@given(EVENTS)
def test_the_tracker_agrees_with_the_model(events: list[tuple[Any, ...]]):
    model, news = Model(), []
    tracker = ConfirmTracker(lambda: news.append(1))
    receipts: Receipts = [None] * 300
    tracker.begin(receipts)
    refused: list[int] = []
    for event in events:
        if event[0] in ("ack", "nack") and event[1] == 0 and not event[2]:
            continue  # no broker acks no message
        play(tracker, event, model.sent)
        model.play(event)
        refused += tracker.take_refused()
        found = [receipt.verdict if receipt else None for receipt in receipts[: model.sent]]
        assert found == list(model.verdicts.values())
        assert tracker.unconfirmed == found.count(None)
    assert sorted(refused) == [n for n, v in enumerate(model.verdicts.values()) if v not in (None, Verdict.CONFIRMED)]
    assert tracker.take_unanswered() == [n for n, v in enumerate(model.verdicts.values()) if v is None]
    assert tracker.unconfirmed == 0


def tracking(count: int) -> tuple[ConfirmTracker, Receipts]:
    tracker, receipts = ConfirmTracker(lambda: None), [None] * count
    tracker.begin(receipts)  # type: ignore[arg-type]
    tracker.sent([f"m-{n}" for n in range(count)], range(count))
    return tracker, receipts  # type: ignore[return-value]


def test_an_answer_to_an_earlier_batch_is_not_taken_for_one_to_this():
    tracker, _ = tracking(2)
    receipts: Receipts = [None, None]
    tracker.begin(receipts)
    tracker.sent(["m-0", "m-1"], [0, 1])
    tracker.ack(2, multiple=True)
    assert receipts == [None, None]
    tracker.ack(3, multiple=False)
    assert receipts == [CONFIRMED, None]
    tracker.returned("unheard-of", "NO_ROUTE")
    assert receipts == [CONFIRMED, None]


def test_a_loss_is_about_this_batch_only_once_the_broker_is_past_the_last():
    tracker, _ = tracking(2)
    assert tracker.may_blame
    tracker.begin([None])  # the batch before was given up
    assert not tracker.may_blame
    tracker.sent(["new"], [0])
    tracker.ack(2, multiple=True)
    assert not tracker.may_blame
    tracker.ack(3, multiple=False)
    assert tracker.may_blame
    tracker.begin([None])
    assert tracker.may_blame


def test_a_tag_that_was_never_given_takes_no_time():
    tracker, receipts = tracking(2)
    tracker.ack(2**64 - 1, multiple=False)
    assert receipts == [None, None]
    tracker.ack(2**64 - 1, multiple=True)
    assert receipts == [CONFIRMED, CONFIRMED]


def test_batches_without_an_end_leave_nothing_in_memory():
    tracker, _ = tracking(3)
    for number in range(20):
        tracker.begin([None])
        tracker.sent([f"new-{number}"], [0])
        tracker.ack(0, multiple=True)
    assert len(tracker._tags) == 1


def test_the_first_reason_of_a_loss_is_kept():
    tracker, _ = tracking(1)
    tracker.closed(406, "too large", connection_too=False)
    tracker.closed(0, "the socket is gone", connection_too=True)
    assert tracker.lost == Loss(406, "too large", connection_too=False)


def test_whoever_waits_hears_of_everything():
    news: list[int] = []
    tracker = ConfirmTracker(lambda: news.append(1))
    tracker.begin([None, None])
    tracker.sent(["a", "b"], [0, 1])
    tracker.ack(1, multiple=False)
    tracker.returned("b", "NO_ROUTE")
    tracker.blocked("low on disk")
    tracker.closed(0, "gone", connection_too=True)
    assert len(news) == 4
    assert tracker.blocked_by == "low on disk"


def test_a_batch_without_an_end_forgets_the_ids_that_are_answered():
    tracker, _ = tracking(0)
    tracker.begin({})
    for number in range(3 * FORGOTTEN_IDS):
        tracker.sent([f"id-{number}"], [number])
        assert tracker.is_unanswered(f"id-{number}")
        if number:
            tracker.ack(number + 1, multiple=False)
            assert not tracker.is_unanswered(f"id-{number}")
        assert len(tracker._tags) <= FORGOTTEN_IDS + 4
    tracker.returned("id-0", "NO_ROUTE")
    assert tracker.take_refused() == [0]
    assert tracker.unconfirmed == 0
