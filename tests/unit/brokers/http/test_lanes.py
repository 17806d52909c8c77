"""Which message goes when, and what is said of what nobody answered for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit.brokers import CONFIRMED, Receipt, Verdict
from outboxkit.brokers.http.order import Answered, Lost, SendOrder, Unreached
from outboxkit.errors import BrokerUnavailable
from outboxkit.message import Message

YES, NO = Answered(CONFIRMED), Answered(Receipt(Verdict.REJECTED, "500"))


def batch(*keys: str | None) -> list[Message]:
    return [Message(id=str(number), type="T", payload=b"", key=key) for number, key in enumerate(keys)]


def verdicts(lanes: SendOrder) -> list[str]:
    return [str(receipt.verdict) for receipt in lanes.receipts()]


def taken(lanes: SendOrder) -> list[int]:
    found = []
    while (index := lanes.next()) is not None:
        found.append(index)
    return found


def test_one_of_each_key_is_ready_and_the_next_one_once_it_is_confirmed():
    lanes = SendOrder(batch("a", "a", None, "b", "a", None))
    assert taken(lanes) == [0, 2, 3, 5]
    lanes.put(2, YES)
    assert taken(lanes) == []
    lanes.put(0, YES)
    assert taken(lanes) == [1]


def test_the_oldest_ready_message_goes_first():
    lanes = SendOrder(batch("a", "a", None))
    assert lanes.next() == 0
    lanes.put(0, YES)
    assert lanes.next() == 1


def test_a_failure_holds_what_is_behind_it_of_its_key():
    lanes = SendOrder(batch("a", "b", "a", "b", "a"))
    for index, outcome in ((0, NO), (1, YES)):
        assert lanes.next() == index
        lanes.put(index, outcome)
    assert lanes.next() == 3
    lanes.put(3, YES)
    assert verdicts(lanes) == ["rejected", "confirmed", "not sent", "confirmed", "not sent"]
    assert "'a'" in str(lanes.receipts()[2].reason)


def test_a_lost_one_is_to_blame_only_where_the_destination_answered_others():
    lanes = SendOrder(batch(None, None, None))
    for index in taken(lanes):
        lanes.put(index, Lost("no answer"))
    assert verdicts(lanes) == ["unknown"] * 3
    assert lanes.still_suspect() == {"0", "1", "2"}
    lanes.put(2, NO)
    assert verdicts(lanes) == ["rejected"] * 3
    assert lanes.still_suspect() == set()


def test_what_was_refused_here_says_nothing_of_the_destination():
    lanes = SendOrder(batch(None, None))
    lanes.put(0, Lost("no answer"))
    lanes.put(1, Answered(Receipt(Verdict.REJECTED, "no request"), heard=False))
    assert verdicts(lanes) == ["unknown", "rejected"]


def test_nobody_there_is_an_outage():
    lanes = SendOrder(batch(None, None))
    assert lanes.next() == 0
    lanes.put(0, Unreached("refused"))
    assert lanes.next() is None, "there is no sense in trying the others"
    with pytest.raises(BrokerUnavailable, match="refused"):
        lanes.receipts()


@pytest.mark.parametrize("first", [YES, Lost("no answer")])
def test_who_went_away_in_the_middle_has_been_there(first: Answered | Lost):
    lanes = SendOrder(batch(None, None, None))
    lanes.put(0, first)
    lanes.put(1, Unreached("refused"))
    assert verdicts(lanes) == ["confirmed" if first is YES else "unknown", "unknown", "not sent"]


REFUSED = Answered(Receipt(Verdict.POSTPONED, "401"), unauthorized=True)


def test_a_refusal_of_the_sender_ends_the_batch_and_is_no_fault_of_any_message():
    lanes = SendOrder(batch("a", "a", None, None))
    assert [lanes.next(), lanes.next()] == [0, 2]
    lanes.put(0, REFUSED)
    assert (lanes.next(), lanes.refusal) == (None, "401")
    lanes.put(2, YES)
    assert (lanes.next(), lanes.refusal) == (None, "401"), "that one was sent before"
    assert verdicts(lanes) == ["postponed", "not sent", "confirmed", "not sent"]
    assert lanes.still_suspect() == {"0"}


def test_one_that_was_refused_before_says_nothing_of_the_others_that_are_accepted():
    lanes = SendOrder(batch(None, None, None), suspects={"0"})
    assert lanes.next() == 1
    lanes.put(1, YES)
    lanes.put(0, REFUSED)
    assert (lanes.refusal, lanes.next()) == (None, 2)
    alone = SendOrder(batch(None), suspects={"0"})
    alone.put(0, REFUSED)
    assert alone.refusal == "401"


def test_a_suspect_and_what_is_behind_it_go_last():
    lanes = SendOrder(batch("a", "a", None), suspects={"0"})
    assert lanes.next() == 2
    assert lanes.next() == 0
    assert lanes.next() is None


def test_a_suspect_stays_one_until_it_has_had_its_turn():
    lanes = SendOrder(batch(None, None), suspects={"0", "gone"})
    assert lanes.next() == 1
    lanes.put(1, YES)
    assert verdicts(lanes) == ["not sent", "confirmed"]
    assert lanes.still_suspect() == {"0"}


@given(st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from([YES, NO, Lost("lost")])), max_size=20))
def test_each_message_has_one_receipt_and_each_key_its_order(plan: list[tuple[str | None, Answered | Lost]]):
    messages = batch(*(key for key, _ in plan))
    lanes, sent = SendOrder(messages), []
    while (index := lanes.next()) is not None:
        sent.append(index)
        lanes.put(index, plan[index][1])
    receipts = lanes.receipts()
    assert len(receipts) == len(plan)
    assert len(set(sent)) == len(sent)
    for key in ("a", "b"):
        mine = [index for index, message in enumerate(messages) if message.key == key]
        failed = next((index for index in mine if plan[index][1] is not YES), len(plan))
        assert [index for index in sent if messages[index].key == key] == [index for index in mine if index <= failed]
        assert all(receipts[index].verdict is Verdict.NOT_SENT for index in mine if index > failed)
