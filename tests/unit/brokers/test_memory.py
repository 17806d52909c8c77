"""The broker inside the process: routing, redelivery, retries."""

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit.brokers import CONFIRMED
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber, matches
from outboxkit.codec.envelopes.envelope import Malformed
from tests.unit.shop import message

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


@given(st.lists(st.sampled_from(["a", "b", ""]), max_size=6))
def test_a_key_is_accepted_by_itself_and_by_everything(words: list[str]):
    assert matches(words, words)
    assert matches(["#"], words)
    assert matches(["*"] * len(words), words)
    assert not matches(["*"] * (len(words) + 1), words)


@given(WORDS, st.lists(st.sampled_from(["a", "b"]), max_size=5))
def test_a_hash_is_any_number_of_stars(pattern: list[str], words: list[str]):
    if "#" in pattern:
        at = pattern.index("#")
        spelled = (pattern[:at] + ["*"] * stars + pattern[at + 1 :] for stars in range(len(words) + 1))
        assert matches(pattern, words) is any(matches(one, words) for one in spelled)


async def test_a_message_reaches_every_queue_that_is_bound_to_it_once():
    broker = MemoryBroker()
    billing = MemorySubscriber(broker, "billing", ["OrderConfirmed", "Order*", "#"])
    mail = MemorySubscriber(broker, "mail", ["OrderConfirmed"])
    other = MemorySubscriber(broker, "other", ["StockChanged"])
    assert await MemoryPublisher(broker).publish([message()]) == [CONFIRMED]
    for subscriber, expected in ((billing, 1), (mail, 1), (other, 0)):
        assert len(subscriber.queue.ready) == expected


async def test_two_subscribers_of_one_queue_share_it():
    broker = MemoryBroker()
    first, second = (MemorySubscriber(broker, "billing", ["OrderConfirmed"]) for _ in range(2))
    await MemoryPublisher(broker).publish([message(id="a"), message(id="b")])
    got = [await first.receive(wait=False), await second.receive(wait=False), await first.receive(wait=False)]
    assert [delivery and delivery.message.id for delivery in got] == ["a", "b", None]


@pytest.fixture
async def subscriber() -> MemorySubscriber:
    broker = MemoryBroker()
    made = MemorySubscriber(broker, "billing", ["#"], AT_ONCE)
    await made.connect()
    await MemoryPublisher(broker).publish([message(id="a"), message(id="b")])
    return made


async def test_a_retried_delivery_waits_and_then_is_the_next_attempt(subscriber: MemorySubscriber):
    await (await subscriber.receive()).ack()
    for attempt, delay in ((1, AT_ONCE[0]), (2, AT_ONCE[1]), (3, AT_ONCE[1])):
        delivery = await subscriber.receive()
        assert delivery.delivery_headers.attempt == attempt
        assert await subscriber.postponed() == 0
        assert await delivery.retry() == delay
        assert await subscriber.postponed() == 1
    assert (await subscriber.receive()).delivery_headers.attempt == 4
    assert await subscriber.postponed() == 0


async def test_a_retry_takes_the_step_that_is_nearest_to_what_was_asked_for(subscriber: MemorySubscriber):
    assert await (await subscriber.receive()).retry(timedelta(days=1)) == AT_ONCE[-1]


async def test_a_waiting_receiver_is_woken():
    broker = MemoryBroker()
    subscriber = MemorySubscriber(broker, "billing", ["#"])
    waiting = asyncio.create_task(subscriber.receive())
    await asyncio.sleep(0)
    assert not waiting.done()
    await MemoryPublisher(broker).publish([message(id="a")])
    assert (await waiting).message.id == "a"


async def test_several_waiting_receivers_get_a_message_each():
    broker = MemoryBroker()
    subscriber = MemorySubscriber(broker, "billing", ["#"])
    waiting = [asyncio.create_task(subscriber.receive()) for _ in range(3)]
    await asyncio.sleep(0)
    await MemoryPublisher(broker).publish([message(id=id_) for id_ in "abc"])
    assert sorted([(await delivery).message.id for delivery in waiting]) == ["a", "b", "c"]


async def test_something_that_is_no_message_travels_too():
    broker = MemoryBroker()
    subscriber = MemorySubscriber(broker, "billing", [], AT_ONCE)
    subscriber.queue.put(Malformed(b"?", reason="no id"))
    await (await subscriber.receive()).retry()
    assert (await subscriber.receive()).message == Malformed(b"?", reason="no id")


async def test_delivery_headers_are_read_off_what_is_published(subscriber: MemorySubscriber):
    broker = MemoryBroker()
    queue = broker.queue("billing", ["#"])
    headers = {"outboxkit-handlers": ["One"], "outboxkit-accepted-at": 1000, "a": 1}
    await MemoryPublisher(broker).publish([message(headers=headers)])
    assert dict(queue.ready[0].message.headers) == {"a": 1}
    assert queue.ready[0].delivery_headers.handlers == ("One",)
