"""Many deliveries in one transaction, and what becomes of them where one fails."""

import threading
from collections import deque
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, delete, event, insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Session

from outboxkit import Message, Outcome, Reject, inbox_handler, tables
from outboxkit.codec.headers import DeliveryHeaders
from outboxkit.consumer import Concurrency
from tests.unit.consumer.conftest import Bench, in_both_places, order
from tests.unit.shop import OrderConfirmed, StockChanged, effects

pytestmark = in_both_places


@inbox_handler("Together", batch=True)
def together(session: Session, event: OrderConfirmed) -> None:
    session.execute(insert(effects).values(what=f"order {event.order_id}"))


def failing(*numbers: int, error: Exception | None = None):
    @inbox_handler("Failing", batch=True)
    def handler(session: Session, event: OrderConfirmed) -> None:
        together(session, event)
        if event.order_id in numbers:
            raise error or ValueError("boom")

    return handler


async def drained(bench: Bench, *functions: Any, **more: Any) -> tuple[dict[Outcome, int], int]:
    """The outcomes of a drain, and how many transactions it commits beside those of a drain without messages."""
    counts, queue = list[int](), bench.subscriber.queue

    def note(_: object) -> None:
        counts[-1] += 1

    event.listen(Engine, "commit", note)
    try:
        for ready in (deque(), queue.ready):
            queue.ready = ready
            counts.append(0)
            found = await bench.drain(*functions, **more)
    finally:
        event.remove(Engine, "commit", note)
    return found.outcomes, counts[1] - counts[0]


async def test_a_batch_is_one_transaction_in_the_order_of_arrival(bench: Bench):
    bench.put(*map(order, range(50)))
    assert await drained(bench, together) == ({Outcome.PROCESSED: 50}, 1)
    assert bench.done() == [f"order {number}" for number in range(50)]
    assert not bench.subscriber.unacked


async def test_a_message_is_handled_once_however_many_handlers_it_has(bench: Bench):
    @inbox_handler("Other", batch=True)
    def other(session: Session, event: OrderConfirmed) -> None: ...

    bench.put(*map(order, range(50)))
    consumer = await bench.run_until_settled(together, other)
    assert (consumer.outcomes, consumer.handled) == ({Outcome.PROCESSED: 100}, 50)


async def test_no_batch_is_larger_than_allowed(bench: Bench):
    bench.put(*map(order, range(50)))
    assert await drained(bench, together, concurrency=Concurrency(2, batch=20)) == ({Outcome.PROCESSED: 50}, 3)


async def test_a_poison_in_the_middle_takes_its_failure_alone(bench: Bench):
    bench.put(*map(order, range(50)))
    outcomes, count = await drained(bench, failing(30, error=Reject("poison")))
    assert outcomes == {Outcome.PROCESSED: 49, Outcome.DEAD: 1}
    assert count == 3, "what is before it, its dead letter, what is behind it"
    assert bench.done() == [f"order {number}" for number in range(50) if number != 30]
    (letter,) = bench.letters()
    assert (letter["message_id"], letter["reason"], letter["error"]) == ("m-30", "rejected", "Reject: poison")


async def test_what_fails_only_when_it_is_written_is_found_by_halves(bench: Bench):
    class Mapped(DeclarativeBase): ...

    class Row(Mapped):
        __table__ = effects

    @inbox_handler("Writes", batch=True)
    def writes(session: Session, event: OrderConfirmed) -> None:
        session.add(Row(id=1 if event.order_id in (3, 11) else 100 + event.order_id, what=f"order {event.order_id}"))

    bench.put(*map(order, range(16)))
    consumer = await bench.run_until_settled(writes, max_attempts=1)
    assert consumer.outcomes == {Outcome.PROCESSED: 15, Outcome.DEAD: 1}
    assert len(bench.rows(effects)) == 15
    (letter,) = bench.letters()
    assert letter["message_id"] == "m-11"


async def test_the_attempts_of_a_retried_message_are_recorded(bench: Bench):
    bench.subscriber.queue.put(order(1), DeliveryHeaders(attempt=4))
    bench.put(order(2))
    await bench.drain(together)
    assert [row["attempts"] for row in bench.rows(tables.inbox)] == [4, 1]


async def test_failures_on_record_are_forgotten_with_the_batch_that_handles_their_messages(bench: Bench):
    async with bench.engine.begin() as connection:
        noted = [{"queue": "billing", "message_id": f"m-{number}"} for number in (1, 2)]
        await connection.execute(insert(tables.attempt), noted)
    for number in (1, 2):
        bench.subscriber.queue.put(order(number), DeliveryHeaders(attempt=3))
    assert (await bench.drain(together)).outcomes == {Outcome.PROCESSED: 2}
    assert bench.rows(tables.attempt) == []


async def test_a_message_that_is_also_for_a_handler_of_another_version_is_not_acked_with_its_batch(bench: Bench):
    bench.subscriber.queue.put(order(1), DeliveryHeaders(handlers=("Together", "Newer")))
    bench.put(order(2))
    consumer = await bench.run_until_settled(together)
    assert consumer.outcomes == {Outcome.PROCESSED: 2, Outcome.DUPLICATE: 2, Outcome.RETRIED: 2, Outcome.DEAD: 1}
    (letter,) = bench.letters()
    assert (letter["message_id"], letter["handler"], letter["reason"]) == ("m-1", None, "no handler")


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    numbers=st.lists(st.integers(0, 15), max_size=40),
    poison=st.sets(st.integers(0, 15), max_size=6),
    undecodable=st.sets(st.integers(0, 15), max_size=3),
    size=st.integers(1, 12),
)
@pytest.mark.parametrize("ordered", [False, True])
async def test_a_batch_does_what_its_messages_do_one_by_one(
    bench: Bench,
    ordered: bool,
    numbers: list[int],
    poison: set[int],
    undecodable: set[int],
    size: int,
):
    async with bench.engine.begin() as connection:
        for table in (effects, tables.inbox, tables.dead_letter):
            await connection.execute(delete(table))
    for number in numbers:
        payload = {"payload": b"[]"} if number in undecodable else {}
        bench.put(order(number, key=str(number % 3), **payload))
    await bench.run_until_settled(failing(*poison), concurrency=Concurrency(3, size, ordered=ordered), max_attempts=2)
    bench.stop.clear()
    wanted = [number for number in dict.fromkeys(numbers) if number not in poison | undecodable]
    found = [int(what.split()[1]) for what in bench.done()]
    assert sorted(found) == sorted(wanted)
    for key in range(3):
        of_key = [number for number in found if number % 3 == key]
        assert not ordered or of_key == [number for number in wanted if number % 3 == key]
    letters = {str(row["message_id"]) for row in bench.letters()}
    assert letters == {f"m-{number}" for number in numbers if number in poison | undecodable}


@inbox_handler("StockTogether", batch=True)
async def stock_together(session: AsyncSession, event: StockChanged) -> None:
    await session.execute(insert(effects).values(what=f"stock {event.sku}"))


def stock(number: int, **more: Any) -> Message:
    return order(number, id=f"s-{number}", type="StockChanged", payload=b'{"sku":"%d","amount":"1"}' % number, **more)


async def test_handlers_in_a_thread_and_in_the_loop_have_a_transaction_each(bench: Bench):
    for number in range(20):
        bench.put(order(number), stock(number))
    count = 1 if bench.in_loop else 2
    assert await drained(bench, together, stock_together) == ({Outcome.PROCESSED: 40}, count)


async def test_within_a_key_the_order_goes_before_that(bench: Bench):
    for number in range(10):
        bench.put(order(number, key="k"), stock(number, key="k"))
    found = await bench.drain(together, stock_together, concurrency=Concurrency(2, ordered=True))
    assert found.outcomes == {Outcome.PROCESSED: 20}
    assert bench.done() == [f"{kind} {number}" for number in range(10) for kind in ("order", "stock")]


async def test_beside_an_awaited_one_of_its_type_a_plain_handler_stays_in_its_place(bench: Bench):
    threads: set[threading.Thread] = set()

    @inbox_handler("Awaited", batch=True)
    async def awaited(session: AsyncSession, event: OrderConfirmed) -> None: ...

    @inbox_handler("Placed", batch=True)
    def placed(session: Session, event: OrderConfirmed) -> None:
        threads.add(threading.current_thread())

    bench.put(*map(order, range(4)))
    assert (await bench.drain(placed, awaited)).outcomes == {Outcome.PROCESSED: 8}
    assert (threads == {threading.main_thread()}) is bench.in_loop
