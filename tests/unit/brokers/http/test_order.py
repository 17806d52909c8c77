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


def verdicts(order: SendOrder) -> list[str]:
    return [str(receipt.verdict) for receipt in order.receipts()]


def taken(order: SendOrder) -> list[int]:
    found = []
    while (index := order.next()) is not None:
        found.append(index)
    return found


def test_one_of_each_key_is_ready_and_the_next_one_once_it_is_confirmed():
    order = SendOrder(batch("a", "a", None, "b", "a", None))
    assert taken(order) == [0, 2, 3, 5]
    order.put(2, YES)
    assert taken(order) == []
    order.put(0, YES)
    assert taken(order) == [1]


def test_the_oldest_ready_message_goes_first():
    order = SendOrder(batch("a", "a", None))
    assert order.next() == 0
    order.put(0, YES)
    assert order.next() == 1


def test_a_lost_one_is_to_blame_only_where_the_destination_answered_others():
    order = SendOrder(batch(None, None, None))
    for index in taken(order):
        order.put(index, Lost("no answer"))
    assert verdicts(order) == ["unknown"] * 3
    assert order.unclear() == {"0", "1", "2"}
    order.put(2, NO)
    assert verdicts(order) == ["rejected"] * 3
    assert order.unclear() == set()


def test_what_was_refused_here_says_nothing_of_the_destination():
    order = SendOrder(batch(None, None))
    order.put(0, Lost("no answer"))
    order.put(1, Answered(Receipt(Verdict.REJECTED, "no request"), responded=False))
    assert verdicts(order) == ["unknown", "rejected"]


def test_nobody_there_is_an_outage():
    order = SendOrder(batch(None, None))
    assert order.next() == 0
    order.put(0, Unreached("refused"))
    assert order.next() is None, "there is no sense in trying the others"
    with pytest.raises(BrokerUnavailable, match="refused"):
        order.receipts()


@pytest.mark.parametrize("first", [YES, Lost("no answer")])
def test_who_went_away_in_the_middle_has_been_there(first: Answered | Lost):
    order = SendOrder(batch(None, None, None))
    order.put(0, first)
    order.put(1, Unreached("refused"))
    assert verdicts(order) == ["confirmed" if first is YES else "unknown", "unknown", "not sent"]


def test_a_message_that_takes_the_destination_down_is_to_blame_the_second_time():
    """Its connection was lost, and no new one could be made. Once that may have been a restart."""
    down, first = Unreached("refused", was_sent=True), SendOrder(batch(None, None))
    first.put(1, YES)
    first.put(0, down)
    assert (verdicts(first), first.unclear()) == (["unknown", "confirmed"], {"0"})
    second = SendOrder(batch(None, None), first.unclear())
    assert taken(second) == [1, 0], "it is sent last"
    second.put(1, YES)
    second.put(0, down)
    assert (verdicts(second), second.unclear()) == (["rejected", "confirmed"], set())


REFUSED = Answered(Receipt(Verdict.POSTPONED, "401"), unauthorized=True)


def test_a_refusal_of_the_sender_ends_the_batch_and_is_no_fault_of_any_message():
    order = SendOrder(batch("a", "a", None, None))
    assert [order.next(), order.next()] == [0, 2]
    order.put(0, REFUSED)
    assert (order.next(), order.refusal) == (None, "401")
    order.put(2, YES)
    assert (order.next(), order.refusal) == (None, "401"), "that one was sent before"
    assert verdicts(order) == ["postponed", "not sent", "confirmed", "not sent"]
    assert order.unclear() == {"0"}


def test_one_that_was_refused_before_says_nothing_of_the_others_that_are_accepted():
    order = SendOrder(batch(None, None, None), unclear={"0"})
    assert order.next() == 1
    order.put(1, YES)
    order.put(0, REFUSED)
    assert (order.refusal, order.next()) == (None, 2)
    alone = SendOrder(batch(None), unclear={"0"})
    alone.put(0, REFUSED)
    assert alone.refusal == "401"


def test_an_unclear_message_and_what_is_behind_it_go_last():
    order = SendOrder(batch("a", "a", None), unclear={"0"})
    assert order.next() == 2
    assert order.next() == 0
    assert order.next() is None


def test_a_message_stays_unclear_until_it_was_sent():
    order = SendOrder(batch(None, None), unclear={"0", "gone"})
    assert order.next() == 1
    order.put(1, YES)
    assert verdicts(order) == ["not sent", "confirmed"]
    assert order.unclear() == {"0"}


@given(st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from([YES, NO, Lost("lost")])), max_size=20))
def test_each_message_has_one_receipt_and_each_key_its_order(plan: list[tuple[str | None, Answered | Lost]]):
    messages = batch(*(key for key, _ in plan))
    order, sent = SendOrder(messages), []
    while (index := order.next()) is not None:
        sent.append(index)
        order.put(index, plan[index][1])
    receipts = order.receipts()
    assert len(receipts) == len(plan)
    assert len(set(sent)) == len(sent)
    for key in ("a", "b"):
        mine = [index for index, message in enumerate(messages) if message.key == key]
        failed = next((index for index in mine if plan[index][1] is not YES), len(plan))
        assert [index for index in sent if messages[index].key == key] == [index for index in mine if index <= failed]
        assert all(receipts[index].verdict is Verdict.NOT_SENT for index in mine if index > failed)
