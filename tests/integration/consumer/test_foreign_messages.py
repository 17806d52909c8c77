"""Messages of other systems on a real RabbitMQ: each is handled once, or a dead letter that a reader can bring back."""

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit import Message, Retry, event, inbox, inbox_handler, outbox
from outboxkit.brokers.rabbitmq import RabbitPublisher
from outboxkit.codec.compression import deflate
from outboxkit.codec.envelopes import CloudEvents, Envelope, Reader
from outboxkit.consumer import Concurrency, Consumer, ConsumerPolicy
from outboxkit.operators.deadletters import DeadLetters, ReplayRules, Resolved, Selection
from outboxkit.relay import Relay
from tests.integration.consumer.running_consumer import dead_letters, declare, processed, subscriber_of
from tests.support.delays import DELAYS
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async
from tests.unit.codec.envelopes import samples
from tests.unit.codec.envelopes.test_envelope import CONTENT_TYPES, HOSTILE_DOCUMENTS

NAME = "OrderConfirmed"
AGES = timedelta(days=36_500)
"""The retention: the samples have a time of their own."""
SINGLE, ORDERED = Concurrency(8), Concurrency(4, ordered=True)


def till(envelope: Envelope) -> Message | None:
    """A reader of one's own: tills send their receipts without an id and a type."""
    if "receipt" not in envelope.headers:
        return None
    return Message(id=f"till-{envelope.headers['receipt']}", type=NAME, payload=envelope.document())


RECEIPT = Envelope(samples.BODY, headers={"receipt": 1}, content_type="application/json")
READERS: tuple[Reader, ...] = (CloudEvents({"com.example.order.confirmed": NAME}), till)


@event(NAME)
@dataclass(frozen=True)
class OrderConfirmed:
    order_id: int
    total: str


class Handled:
    """A handler that notes what it gets."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.failures = 0

        @inbox_handler("Note")
        async def note(session: AsyncSession, event: OrderConfirmed, message: Message) -> None:
            assert event == OrderConfirmed(7, "19.90")
            if self.failures:
                self.failures -= 1
                raise Retry
            self.messages.append(message)

        self.handler = inbox.handler_of(note)


@pytest.fixture
def handled() -> Handled:
    return Handled()


def send(broker: PlainClient, envelope: Envelope, **more: Any) -> None:
    """Publish an envelope as its publisher does, with its own properties and headers."""
    names = ("message_id", "type", "content_type", "content_encoding", "correlation_id")
    properties = {name: getattr(envelope, name) for name in names if getattr(envelope, name) is not None}
    broker.publish(envelope.body, topic=envelope.routing_key, headers=dict(envelope.headers), **properties, **more)


async def drain(
    engine: AsyncEngine,
    broker: PlainClient,
    handled: Handled,
    readers: tuple[Reader, ...],
    *,
    concurrency: Concurrency = SINGLE,
    **rules: Any,
) -> dict[str, int]:
    """The outcomes of a consumer that handles what is there."""
    subscriber = subscriber_of(broker, {"#"}, ordered=concurrency.ordered)
    policy = ConsumerPolicy(**{"retention": AGES, "delays": DELAYS} | rules)
    options = {"queue": broker.queue, "policy": policy, "readers": readers, "concurrency": concurrency}
    done = await Consumer(engine, subscriber, [handled.handler], **options).drain(asyncio.Event())
    return {str(outcome): count for outcome, count in done.outcomes.items()}


@pytest.fixture
async def bound(broker: PlainClient) -> PlainClient:
    """A broker whose queue gets every routing key."""
    await declare(broker, {"#"})
    return broker


async def test_each_system_is_read_and_a_duplicate_recognised(
    async_pg_engine: AsyncEngine, pg_engine: Engine, bound: PlainClient, handled: Handled
):
    for envelope in (*samples.ALL, RECEIPT, RECEIPT):
        send(bound, envelope)
    outcomes = await drain(async_pg_engine, bound, handled, READERS)
    # CloudEvents have one source and id here, whatever their form.
    assert outcomes == {"processed": 2, "duplicate": len(samples.ALL) - 1 + 1}
    ids = {message.id for message in handled.messages}
    assert ids == {"till-1", CloudEvents()(samples.KNATIVE).id}  # type: ignore[union-attr]
    assert dead_letters(pg_engine) == []


async def test_an_alias_is_the_foreign_name(async_pg_engine: AsyncEngine, bound: PlainClient, handled: Handled):
    @event("OrderAccepted", aliases=("com.example.order.confirmed",))
    @dataclass(frozen=True)
    class OrderAccepted:
        order_id: int

    numbers: list[int] = []

    @inbox_handler("Accept")
    async def accept(session: AsyncSession, event: OrderAccepted) -> None:
        numbers.append(event.order_id)

    handled.handler = inbox.handler_of(accept)
    send(bound, samples.STRUCTURED)
    await drain(async_pg_engine, bound, handled, (CloudEvents(),))
    assert numbers == [7]


async def test_a_retry_comes_back_in_its_envelope(async_pg_engine: AsyncEngine, bound: PlainClient, handled: Handled):
    for envelope in (samples.KNATIVE, RECEIPT):
        send(bound, envelope)
    handled.failures = 2
    outcomes: dict[str, int] = {}

    async def all_processed() -> int:
        for outcome, count in (await drain(async_pg_engine, bound, handled, READERS)).items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
        return outcomes.get("processed", 0)

    await eventually_async(all_processed, lambda count: count == 2)
    assert outcomes == {"processed": 2, "retried": 2}


async def replayed(engine: AsyncEngine, broker: PlainClient, **rules: Any) -> Resolved:
    """Replay all dead letters, and publish what that added."""
    done = Resolved()
    await DeadLetters(engine, rules=ReplayRules(AGES, **rules)).resolve("replayed", Selection(), asyncio.Event(), done)
    publisher = RabbitPublisher(broker.url, exchange=broker.exchange)
    await Relay(engine, publisher).drain(asyncio.Event())
    await publisher.close()
    return done


async def test_what_nobody_could_read_is_replayed_once_there_is_a_reader(
    async_pg_engine: AsyncEngine, pg_engine: Engine, bound: PlainClient, handled: Handled
):
    compressed = deflate(samples.STRUCTURED.body, "gzip")
    zipped = Envelope(compressed, content_type=samples.STRUCTURED.content_type, content_encoding="gzip")
    for envelope in (samples.KNATIVE, RECEIPT, zipped):
        send(bound, envelope)
    assert await drain(async_pg_engine, bound, handled, ()) == {"dead": 3}
    letters = dead_letters(pg_engine)
    assert {letter.reason for letter in letters} == {"malformed"}
    assert RECEIPT.body in {letter.payload for letter in letters}
    assert (await replayed(async_pg_engine, bound)).refused.total() == 3

    assert (await replayed(async_pg_engine, bound, has_readers=True)).count == 3
    assert await drain(async_pg_engine, bound, handled, ()) == {"dead": 3}  # too early: it stays what it was
    again = [letter for letter in dead_letters(pg_engine) if letter.resolution is None]
    columns = ("message_id", "type", "payload", "headers", "content_encoding", "topic", "reason", "error")
    assert sorted(str([getattr(row, name) for name in columns]) for row in again) == sorted(
        str([getattr(row, name) for name in columns]) for row in letters
    )

    assert (await replayed(async_pg_engine, bound, has_readers=True)).count == 3
    handled.failures = 1
    outcomes = Counter(await drain(async_pg_engine, bound, handled, READERS))
    assert outcomes.pop("retried") == 1

    async def rest() -> int:
        outcomes.update(await drain(async_pg_engine, bound, handled, READERS))
        return outcomes.total()

    await eventually_async(rest, lambda count: count == 3)
    assert outcomes == {"processed": 2, "duplicate": 1}  # the two CloudEvents are one
    send(bound, RECEIPT)
    assert await drain(async_pg_engine, bound, handled, READERS) == {"duplicate": 1}
    assert all(letter.resolution == "replayed" for letter in dead_letters(pg_engine))


def dated(envelope: Envelope) -> Message | None:
    message = till(envelope)
    return None if message is None else replace(message, created_at=envelope.timestamp)


async def test_an_envelope_that_cannot_be_read_is_a_dead_letter_with_its_body(
    async_pg_engine: AsyncEngine, pg_engine: Engine, bound: PlainClient, handled: Handled
):
    send(bound, Envelope(b"\x1f\x8b", content_type="application/cloudevents+json", content_encoding="gzip"))
    send(bound, RECEIPT, timestamp=1)
    found = await drain(async_pg_engine, bound, handled, (CloudEvents(), dated), retention=timedelta(days=14))
    assert found == {"dead": 1, "stale": 1}
    damaged = max(dead_letters(pg_engine), key=lambda letter: letter.error)
    assert (damaged.reason, damaged.payload, damaged.content_encoding) == ("undecodable", b"\x1f\x8b", "gzip")
    assert damaged.error.startswith("reader CloudEvents: ")


async def test_what_the_relay_writes_as_cloud_events_keeps_its_id(
    async_pg_engine: AsyncEngine, bound: PlainClient, handled: Handled
):
    async with AsyncSession(async_pg_engine) as session, session.begin():
        added = outbox.add(session, OrderConfirmed(7, "19.90"), key="order-7", headers={"tenant": "a"})
    publisher = RabbitPublisher(bound.url, exchange=bound.exchange, cloudevents_source="/shop")
    await Relay(async_pg_engine, publisher).drain(asyncio.Event())
    await publisher.close()
    assert await drain(async_pg_engine, bound, handled, (CloudEvents(),)) == {"processed": 1}
    (message,) = handled.messages
    assert (message.id, message.type, message.payload) == (added.id, added.type, added.payload)
    assert (message.key, message.created_at) == (added.key, added.created_at)
    assert dict(message.headers) == {"tenant": "a", "ce-source": "/shop"}


@pytest.mark.parametrize(
    "concurrency",
    [SINGLE, pytest.param(ORDERED, marks=pytest.mark.night)],
    ids=["single", "ordered"],
)
async def test_hostile_envelopes_stop_nothing(
    async_pg_engine: AsyncEngine, pg_engine: Engine, broker: PlainClient, handled: Handled, concurrency: Concurrency
):
    await declare(broker, {"#"}, ordered=concurrency.ordered)
    count = 0
    for body in HOSTILE_DOCUMENTS:
        for content_type in CONTENT_TYPES:
            send(broker, Envelope(body, content_type=content_type))
        send(broker, Envelope(body, content_encoding="zstd"))
        count += len(CONTENT_TYPES) + 1
    for headers in ({"ce-specversion": [[1]]}, {"id": {"a": [1]}}, {"task": "t", "id": "x" * 10_000}, {"id": None}):
        send(broker, Envelope(samples.BODY, headers=headers, content_type="application/json"))
        count += 1
    send(broker, replace(RECEIPT, headers={"receipt": "healthy"}))
    outcomes = await drain(async_pg_engine, broker, handled, READERS, concurrency=concurrency, max_attempts=1)
    assert sum(outcomes.values()) == count + 1
    assert ("Note", "till-healthy") in processed(pg_engine)
    letters = dead_letters(pg_engine)
    assert {letter.reason for letter in letters} <= {"malformed", "undecodable", "no handler"}
    assert all(0 < len(letter.error) <= 1000 for letter in letters)
    assert broker.depth() == 0
