"""Which handlers a delivery is for, and how it is handled."""

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from outboxkit import Message, Outcome, event, ids, inbox_handler
from outboxkit.brokers.memory import MemoryBroker, MemoryDelivery, MemorySubscriber
from outboxkit.codec.compression import deflate
from outboxkit.codec.envelopes.envelope import Malformed
from outboxkit.codec.headers import FRESH, DeliveryHeaders
from outboxkit.consumer import ConsumerPolicy, decisions
from outboxkit.consumer.decisions import Decision
from outboxkit.consumer.routing import Arrival, Mode, Routing
from outboxkit.events import COMPRESSIONS, Compression
from outboxkit.inbox import handler_of
from tests.unit.shop import NOW, OrderConfirmed, StockChanged, message


@inbox_handler("Bill")
def bill(session: Session, event: OrderConfirmed) -> None: ...


@inbox_handler("Count", batch=True)
def count_orders(session: Session, event: OrderConfirmed) -> None: ...


@inbox_handler("Restock", batch=True)
def restock(session: Session, event: StockChanged) -> None: ...


@dataclass
class Member:
    names: set[str] = field(default_factory=set)
    tags: list[str] = field(default_factory=list)


POLICY = ConsumerPolicy(retention=timedelta(days=14), skew=timedelta(minutes=5))


def routing(*functions: object, ordered: bool = False) -> Routing:
    return Routing([handler_of(function) for function in functions], policy=POLICY, ordered=ordered)


def delivery(
    found: Message | Malformed, *, delivery_headers: DeliveryHeaders = FRESH, redeliveries: int = 0
) -> MemoryDelivery:
    subscriber = MemorySubscriber(MemoryBroker(), "billing", [])
    subscriber.queue.put(found, delivery_headers)
    kept = subscriber.queue.ready.pop()
    for _ in range(redeliveries):
        subscriber.queue.requeue(kept)
        kept = subscriber.queue.ready.pop()
    return MemoryDelivery(kept, subscriber)


def test_many_small_objects_count_as_what_they_take_in_memory():
    @event("Crowd")
    @dataclass
    class Crowd:
        members: list[Member]

    @inbox_handler("Admit")
    def admit(session: Session, event: Crowd) -> None: ...

    plain = message(type="Crowd", payload=b'{"members":[' + b"{}," * 700_000 + b"{}]}")
    packed = message(type="Crowd", payload=deflate(plain.payload, "gzip"), content_encoding="gzip")
    few = message(type="Crowd", payload=b'{"members":[' + b"{}," * 200_000 + b"{}]}")
    route = routing(admit)
    results = [route.handlers(route.arrival(delivery(each)), NOW) for each in (plain, packed, few)]
    assert results[:2] == [decisions.too_large(POLICY.max_message_bytes)] * 2
    assert results[2] == [handler_of(admit)]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_compressed_payload_counts_as_what_it_becomes(compression: Compression):
    plain = message(payload=b"1" * 10_000)
    packed = message(payload=deflate(plain.payload, compression), content_encoding=compression)
    assert len(packed.payload) < 100
    assert [routing(bill).arrival(delivery(each)).size for each in (plain, packed)] == [10_000, 10_000]


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_payload_over_the_limit_goes_to_no_handler(is_packed: bool):
    size = POLICY.max_message_bytes
    for payload in (b"1" * size, b"1" * (size + 1)):
        sent = message(payload=payload)
        if is_packed:
            sent = message(payload=deflate(payload, "gzip"), content_encoding="gzip")
        decided = routing(bill).handlers(routing(bill).arrival(delivery(sent)), NOW)
        if len(payload) > size:
            assert isinstance(decided, Decision)
            assert (decided.outcome, decided.reason) == (Outcome.DEAD, "undecodable")
            assert str(size) in decided.error
        else:
            assert names(decided) == ["Bill"]


def names(found: object) -> list[str]:
    assert not isinstance(found, Decision)
    return [handler.name for handler in found]  # type: ignore[attr-defined]


def test_a_delivery_is_handled_together_only_where_all_its_handlers_allow_it():
    both = routing(bill, count_orders, restock)
    assert both.arrival(delivery(message())).mode is Mode.SINGLE
    assert both.arrival(delivery(message(type="StockChanged"))).mode is Mode.BATCHED
    assert routing(count_orders).arrival(delivery(message())).mode is Mode.BATCHED


def test_what_came_back_is_handled_alone():
    assert routing(count_orders).arrival(delivery(message(), redeliveries=1)).mode is Mode.ISOLATED
    assert routing(count_orders).arrival(delivery(Malformed(b"", reason="no id"), redeliveries=1)).mode is Mode.SINGLE


def test_the_key_counts_only_in_order():
    assert routing(bill).arrival(delivery(message(key="k"))).key is None
    assert routing(bill, ordered=True).arrival(delivery(message(key="k"))).key == "k"


def test_every_handler_of_the_type_runs_or_those_that_are_named():
    both, plain = routing(bill, count_orders), delivery(message())
    assert names(both.handlers(Arrival(plain, Mode.SINGLE), NOW)) == ["Bill", "Count"]
    marked = delivery(message(), delivery_headers=DeliveryHeaders(handlers=("Count", "Gone")))
    assert names(both.handlers(Arrival(marked, Mode.SINGLE), NOW)) == ["Count"]
    again = Arrival(plain, Mode.SINGLE, handlers=("Bill",))
    assert names(both.handlers(again, NOW)) == ["Bill"]


@pytest.mark.parametrize(
    ("found", "delivery_headers", "reason"),
    [
        (Malformed(b"", reason="the message has no id"), FRESH, "malformed"),
        (message(type="Unknown"), FRESH, "no handler"),
        (message(), DeliveryHeaders(handlers=("Gone",)), "no handler"),
        (message(created_at=NOW - timedelta(days=14)), FRESH, "stale"),
    ],
)
def test_what_none_may_handle(found: Message | Malformed, delivery_headers: DeliveryHeaders, reason: str):
    decision = routing(bill).handlers(Arrival(delivery(found, delivery_headers=delivery_headers), Mode.SINGLE), NOW)
    assert isinstance(decision, Decision)
    assert decision.reason == reason


def test_what_the_broker_has_dropped_is_handled_by_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(MemoryDelivery, "dropped", True)
    decision = routing(bill).handlers(Arrival(delivery(message()), Mode.SINGLE), NOW)
    assert isinstance(decision, Decision)
    assert (decision.outcome, decision.reason) == (Outcome.DEAD, "dropped")


def test_staleness_is_judged_by_the_id_and_on_the_safe_side():
    limit = POLICY.retention - POLICY.skew
    young, old = (
        message(id=ids.new(at=NOW - limit - extra)) for extra in (-timedelta(seconds=1), timedelta(seconds=1))
    )
    assert names(routing(bill).handlers(Arrival(delivery(young), Mode.SINGLE), NOW)) == ["Bill"]
    decision = routing(bill).handlers(Arrival(delivery(old), Mode.SINGLE), NOW)
    assert isinstance(decision, Decision)
    assert decision.outcome is Outcome.STALE
    accepted = delivery(old, delivery_headers=DeliveryHeaders(accepted_at=NOW - timedelta(days=1)))
    assert names(routing(bill).handlers(Arrival(accepted, Mode.SINGLE), NOW)) == ["Bill"]


@event("OrderClosed", aliases=("OrderEnded",))
@dataclass
class OrderClosed:
    number: int


@inbox_handler("Close", batch=True)
def close(session: Session, event: OrderClosed) -> None: ...


def test_a_renamed_event_is_handled_under_all_its_names():
    closing = routing(close, bill)
    for type_ in ("OrderClosed", "OrderEnded"):
        arrival = closing.arrival(delivery(message(type=type_)))
        assert arrival.mode is Mode.BATCHED
        assert names(closing.handlers(arrival, NOW)) == closing.names(arrival) == ["Close"]
    unknown = closing.handlers(Arrival(delivery(message(type="OrderOpened")), Mode.SINGLE), NOW)
    assert isinstance(unknown, Decision)
    assert unknown.error.endswith("this consumer has handlers for OrderClosed, OrderConfirmed, OrderEnded")


def test_a_type_that_is_to_be_ignored_has_no_handler_and_no_decision():
    policy = ConsumerPolicy(ignore=("Partner.*", "Ping", "OrderConfirmed"))
    router = Routing([handler_of(bill)], policy=policy, ordered=False)
    for type_, expected in (("Partner.Moved", True), ("Ping", True), ("Pinged", False), ("Stock", False)):
        decided = router.handlers(router.arrival(delivery(message(type=type_))), NOW)
        assert (decided == ()) is expected, type_
    assert router.handlers(router.arrival(delivery(message())), NOW), "a handler takes it"


def test_what_is_for_a_handler_that_is_gone_is_not_ignored():
    router = Routing([handler_of(bill)], policy=ConsumerPolicy(ignore=("*",)), ordered=False)
    named = delivery(message(type="Stock"), delivery_headers=DeliveryHeaders(handlers=("Restock",)))
    assert isinstance(router.handlers(router.arrival(named), NOW), Decision)
