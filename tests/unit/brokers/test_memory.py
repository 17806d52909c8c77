"""The broker inside the process: routing, redelivery, retries."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit.brokers import Verdict
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber, matches
from outboxkit.codec.envelopes.envelope import Malformed
from outboxkit.message import Message, changed

AT_ONCE = (timedelta(microseconds=1), timedelta(microseconds=2))
WORDS = st.lists(st.sampled_from(["a", "b", "*", "#"]), max_size=5)


@pytest.mark.parametrize(
    ("pattern", "key", "accepted"),
    [
        ("OrderConfirmed", "OrderConfirmed", True),
        ("OrderConfirmed", "OrderConfirmed.eu", False),
        ("orders.*", "orders.confirmed", True),
        ("orders.*", "orders", False),
        ("orders.*", "orders.confirmed.eu", False),
        ("*.confirmed", "orders.confirmed", True),
        ("*", "", True),
        ("orders.#", "orders", True),
        ("orders.#", "orders.confirmed.eu", True),
        ("#", "", True),
        ("#", "anything.at.all", True),
        ("#.eu", "eu", True),
        ("#.eu", "orders.confirmed.eu", True),
        ("#.eu", "orders.eu.confirmed", False),
        ("orders.#.eu", "orders.eu", True),
        ("orders.#.*", "orders", False),
        ("orders.#.*", "orders.confirmed", True),
        ("#.#", "a", True),
        ("Orders", "orders", False),
        ("orders.+", "orders.+", True),
    ],
)
def test_a_binding_accepts_a_routing_key(pattern: str, key: str, accepted: bool):
    assert matches(pattern.split("."), key.split(".")) is accepted


@given(WORDS, st.lists(st.sampled_from(["a", "b"]), max_size=5))
def test_a_hash_is_any_number_of_stars(pattern: list[str], words: list[str]):
    if "#" in pattern:
        at = pattern.index("#")
        spelled = (pattern[:at] + ["*"] * stars + pattern[at + 1 :] for stars in range(len(words) + 1))
        assert matches(pattern, words) is any(matches(one, words) for one in spelled)


async def test_a_row_that_outboxkit_would_not_write_is_rejected_and_others_arrive():
    broker = MemoryBroker()
    broker.queue("q", ["T"])
    good = Message("good", "T", b"{}")
    receipts = await MemoryPublisher(broker).publish([changed(good, id="bad", version=0), good])
    assert [receipt.verdict for receipt in receipts] == [Verdict.REJECTED, Verdict.CONFIRMED]


async def test_something_that_is_no_message_travels_too():
    broker = MemoryBroker()
    subscriber = MemorySubscriber(broker, "billing", [], AT_ONCE)
    subscriber.queue.put(Malformed(b"?", reason="no id"))
    await (await subscriber.receive()).retry()
    assert (await subscriber.receive()).message == Malformed(b"?", reason="no id")
