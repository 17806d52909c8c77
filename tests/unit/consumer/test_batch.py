"""Many deliveries in one transaction, and what becomes of them where one fails."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, delete, event, insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Session

from outboxkit import Outcome, Reject, inbox_handler, tables
from outboxkit.codec.headers import DeliveryHeaders
from outboxkit.consumer import Concurrency
from tests.unit.consumer.conftest import Bench, in_both_places
from tests.unit.shop import OrderConfirmed, StockChanged, count, effects, message, rows

pytestmark = in_both_places


class Commits:
    """How often any engine has committed something."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, _: object) -> None:
        self.count += 1


@pytest.fixture
def commits() -> Iterator[Commits]:
    counted = Commits()
    event.listen(Engine, "commit", counted.add)
    yield counted
    event.remove(Engine, "commit", counted.add)


def order(number: int, **more: Any):
    body = b'{"order_id":%d,"total":"1"}' % number
    return message(**({"id": f"m-{number:03}", "payload": body} | more))


def done(database_url: str) -> list[object]:
    return [row["what"] for row in rows(database_url, effects)]


@inbox_handler("Together", batch=True)
def together(session: Session, event: OrderConfirmed) -> None:
    session.execute(insert(effects).values(what=f"order {event.order_id}"))


@inbox_handler("TogetherToo", batch=True)
async def together_too(session: AsyncSession, event: OrderConfirmed) -> None:
    await session.execute(insert(effects).values(what=f"too {event.order_id}"))


@inbox_handler("Alone")
def alone(session: Session, event: OrderConfirmed) -> None:
    session.execute(insert(effects).values(what=f"alone {event.order_id}"))


def failing(*numbers: int, error: Exception | None = None):
    @inbox_handler("Failing", batch=True)
    def handler(session: Session, event: OrderConfirmed) -> None:
        together(session, event)
        if event.order_id in numbers:
            raise error or ValueError("boom")

    return handler


async def test_a_batch_is_one_transaction_in_the_order_of_arrival(bench: Bench, commits: Commits, database_url: str):
    bench.put(*map(order, range(50)))
    before = await commits_of_nothing(bench, commits)
    assert (await bench.drain(together)).outcomes == {Outcome.PROCESSED: 50}
    assert commits.count - before == 1 + before
    assert done(database_url) == [f"order {number}" for number in range(50)]
    assert not bench.subscriber.unacked


async def commits_of_nothing(bench: Bench, commits: Commits) -> int:
    """What a drain commits when there is nothing to do: its looks at the schema and at the clock."""
    kept, bench.subscriber.queue.ready = bench.subscriber.queue.ready, type(bench.subscriber.queue.ready)()
    await bench.drain(together)
    bench.subscriber.queue.ready = kept
    return commits.count


async def test_no_batch_is_larger_than_allowed(bench: Bench, commits: Commits):
    bench.put(*map(order, range(50)))
    before = await commits_of_nothing(bench, commits)
    await bench.drain(together, concurrency=Concurrency(2, batch=20))
    assert commits.count - before == 3 + before


async def test_beside_a_handler_that_may_not_be_run_again_nothing_is_in_a_batch(bench: Bench, commits: Commits):
    bench.put(*map(order, range(5)))
    before = await commits_of_nothing(bench, commits)
    assert (await bench.drain(together, alone)).outcomes == {Outcome.PROCESSED: 10}
    assert commits.count - before == 10 + before


async def test_a_poison_in_the_middle_takes_its_failure_alone(bench: Bench, commits: Commits, database_url: str):
    bench.put(*map(order, range(50)))
    before = await commits_of_nothing(bench, commits)
    found = await bench.drain(failing(30, error=Reject("poison")))
    assert found.outcomes == {Outcome.PROCESSED: 49, Outcome.DEAD: 1}
    assert commits.count - before == 3 + before, "what is before it, its dead letter, what is behind it"
    assert done(database_url) == [f"order {number}" for number in range(50) if number != 30]
    (letter,) = rows(database_url, tables.dead_letter)
    assert (letter["message_id"], letter["reason"], letter["error"]) == ("m-030", "rejected", "Reject: poison")


async def test_what_fails_only_when_it_is_written_is_found_by_halves(bench: Bench, database_url: str):
    class Mapped(DeclarativeBase): ...

    class Row(Mapped):
        __table__ = effects

    @inbox_handler("Writes", batch=True)
    def writes(session: Session, event: OrderConfirmed) -> None:
        session.add(Row(id=1 if event.order_id in (3, 11) else 100 + event.order_id, what=f"order {event.order_id}"))

    bench.put(*map(order, range(16)))
    consumer = await bench.run_until_settled(writes, max_attempts=1)
    assert consumer.outcomes == {Outcome.PROCESSED: 15, Outcome.DEAD: 1}
    assert count(database_url, effects) == 15
    (letter,) = rows(database_url, tables.dead_letter)
    assert letter["message_id"] == "m-011"


async def test_the_attempts_of_a_retried_message_are_recorded(bench: Bench, database_url: str):
    bench.subscriber.queue.put(order(1), DeliveryHeaders(attempt=4))
    bench.put(order(2))
    await bench.drain(together)
    assert [row["attempts"] for row in rows(database_url, tables.inbox)] == [4, 1]


async def test_failures_on_record_are_forgotten_with_the_batch_that_handles_their_messages(
    bench: Bench, database_url: str
):
    async with bench.engine.begin() as connection:
        noted = [{"queue": "billing", "message_id": f"m-{number:03}"} for number in (1, 2)]
        await connection.execute(insert(tables.attempt), noted)
    for number in (1, 2):
        bench.subscriber.queue.put(order(number), DeliveryHeaders(attempt=3))
    assert (await bench.drain(together)).outcomes == {Outcome.PROCESSED: 2}
    assert rows(database_url, tables.attempt) == []


async def test_a_message_that_is_also_for_a_handler_of_another_version_is_not_acked_with_its_batch(
    bench: Bench, database_url: str
):
    bench.subscriber.queue.put(order(1), DeliveryHeaders(handlers=("Together", "Newer")))
    bench.put(order(2))
    consumer = await bench.run_until_settled(together)
    assert consumer.outcomes == {Outcome.PROCESSED: 2, Outcome.DUPLICATE: 2, Outcome.RETRIED: 2, Outcome.DEAD: 1}
    (letter,) = rows(database_url, tables.dead_letter)
    assert (letter["message_id"], letter["handler"], letter["reason"]) == ("m-001", None, "no handler")


async def test_behind_a_message_that_waits_in_its_key_queue_nothing_of_its_key_is_handled(
    bench: Bench, database_url: str
):
    calls: list[int] = []

    @inbox_handler("InOrder", batch=True)
    def in_order(session: Session, event: OrderConfirmed) -> None:
        calls.append(event.order_id)
        together(session, event)
        if event.order_id == 2 and calls.count(2) < 4:
            raise ValueError("boom")

    bench.put(*(order(number, key="ab"[number % 2]) for number in range(1, 9)))
    consumer = await bench.run_until_settled(in_order, concurrency=Concurrency(2, ordered=True), max_attempts=9)
    assert consumer.outcomes == {Outcome.PROCESSED: 8, Outcome.RETRIED: 2}
    found = [int(str(what).split()[1]) for what in done(database_url)]
    assert [number for number in found if number % 2] == [1, 3, 5, 7]
    assert [number for number in found if not number % 2] == [2, 4, 6, 8]
    assert found.index(7) < found.index(2), "the other key flows meanwhile"
    assert rows(database_url, tables.attempt) == []


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
    database_url: str,
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
    found = [int(str(what).split()[1]) for what in done(database_url)]
    assert sorted(found) == sorted(wanted)
    for key in range(3):
        of_key = [number for number in found if number % 3 == key]
        assert not ordered or of_key == [number for number in wanted if number % 3 == key]
    letters = {str(row["message_id"]) for row in rows(database_url, tables.dead_letter)}
    assert letters == {f"m-{number:03}" for number in numbers if number in poison | undecodable}


@inbox_handler("StockTogether", batch=True)
async def stock_together(session: AsyncSession, event: StockChanged) -> None:
    await session.execute(insert(effects).values(what=f"stock {event.sku}"))


def stock(number: int, **more: Any):
    body = b'{"sku":"%d","amount":"1"}' % number
    return message(**({"id": f"s-{number:03}", "type": "StockChanged", "payload": body} | more))


async def test_handlers_in_a_thread_and_in_the_loop_have_a_transaction_each(
    bench: Bench, commits: Commits, database_url: str
):
    for number in range(20):
        bench.put(order(number), stock(number))
    before = await commits_of_nothing(bench, commits)
    assert (await bench.drain(together, stock_together)).outcomes == {Outcome.PROCESSED: 40}
    assert commits.count - before == (1 if bench.in_loop else 2) + before


async def test_within_a_key_the_order_goes_before_that(bench: Bench, database_url: str):
    for number in range(10):
        bench.put(order(number, key="k"), stock(number, key="k"))
    found = await bench.drain(together, stock_together, concurrency=Concurrency(2, ordered=True))
    assert found.outcomes == {Outcome.PROCESSED: 20}
    assert done(database_url) == [f"{kind} {number}" for number in range(10) for kind in ("order", "stock")]


async def test_beside_an_awaited_one_of_its_type_a_plain_handler_stays_in_its_place(bench: Bench):
    threads: set[threading.Thread] = set()

    @inbox_handler("Placed", batch=True)
    def placed(session: Session, event: OrderConfirmed) -> None:
        threads.add(threading.current_thread())

    bench.put(*map(order, range(4)))
    assert (await bench.drain(placed, together_too)).outcomes == {Outcome.PROCESSED: 8}
    assert (threads == {threading.main_thread()}) is bench.in_loop
