"""Deliveries that a consumer gives back: in the middle of an outage, for their limits, or when the broker is lost."""

import asyncio
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outboxkit import BrokerUnavailable, Outcome, inbox_handler, tables
from outboxkit.consumer import Concurrency, ConsumerPolicy
from outboxkit.consumer.attempts import Records
from outboxkit.consumer.transactions import Transactions
from tests.support.polling import eventually_async
from tests.unit.consumer.conftest import IN_AN_HOUR, Bench, fails, order, rejects, work
from tests.unit.shop import OrderConfirmed, StockChanged

ORDERED = Concurrency(2, ordered=True)


def left_to_the_close(bench: Bench) -> list[str]:
    """Messages that were neither acked nor given back when the consumer left its queue."""
    left, close = list[str](), bench.subscriber.close

    async def noting() -> None:
        left.extend(delivery.message.id for delivery in bench.subscriber.unacked)  # type: ignore[union-attr,misc]
        await close()

    bench.subscriber.close = noting  # type: ignore[method-assign]
    return left


@pytest.mark.parametrize(
    ("handlers", "number", "redelivered", "concurrency"),
    [
        pytest.param([work], 1, True, Concurrency(2), id="its start"),
        pytest.param([fails], 2, True, Concurrency(2), id="the end of its start"),
        pytest.param([fails], 1, False, ORDERED, id="its failure"),
        pytest.param([rejects, fails], 1, False, Concurrency(2), id="one dead letter of two failures"),
    ],
)
async def test_what_a_stop_keeps_from_being_recorded_comes_again(
    bench: Bench,
    handlers: list[Any],
    number: int,
    redelivered: bool,
    concurrency: Concurrency,
    monkeypatch: pytest.MonkeyPatch,
):
    """The database is away at this write, and the stop comes before it is back."""
    write, writes = Records._write, 0

    async def away(self: Records, statement: Any, parameters: Any, stop: asyncio.Event) -> Any:
        nonlocal writes
        writes += 1
        if writes < number:
            return await write(self, statement, parameters, stop)
        bench.stop.set()
        return None

    monkeypatch.setattr(Records, "_write", away)
    bench.put_redelivered(order(1, key="k"), times=int(redelivered))
    consumer, left = bench.consumer(*handlers, concurrency=concurrency), left_to_the_close(bench)
    await consumer.run(bench.stop)
    assert (writes, consumer.outcomes) == (number, {})
    assert (bench.ready(), left, bench.subscriber.queue.waiting) == (["m-1"], ["m-1"] if concurrency.ordered else [], 0)


async def test_a_batch_that_a_stop_keeps_from_its_transaction_comes_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    @inbox_handler("Together", batch=True)
    async def together(session: AsyncSession, event: OrderConfirmed) -> None: ...

    async def away(self: Transactions, *_: Any, **__: Any) -> None:
        bench.stop.set()

    monkeypatch.setattr(Transactions, "run", away)
    bench.put(*map(order, range(3)))
    consumer, left = bench.consumer(together), left_to_the_close(bench)
    await consumer.run(bench.stop)
    assert (consumer.outcomes, sorted(bench.ready()), left) == ({}, ["m-0", "m-1", "m-2"], [])


@pytest.mark.parametrize("together", [1, 2])
async def test_behind_a_part_of_a_batch_that_a_stop_gave_back_nothing_of_its_key_is_handled(
    bench: Bench, together: int, monkeypatch: pytest.MonkeyPatch
):
    """The database is away for the part in a thread, and back for the one in the event loop."""
    run = Transactions.run

    async def away_in_thread(self: Transactions, *given: Any, in_thread: bool = False) -> Any:
        if in_thread:
            bench.stop.set()
            return None
        return await run(self, *given)

    @inbox_handler("In a thread", batch=True)
    def in_thread(session: Session, event: StockChanged) -> None: ...

    @inbox_handler("In the loop", batch=True)
    async def in_loop(session: AsyncSession, event: OrderConfirmed) -> None:
        await work(session, event)

    monkeypatch.setattr(Transactions, "run", away_in_thread)
    stock = {"type": "StockChanged", "payload": b'{"sku":"1","amount":"1"}'}
    bench.put(*(order(number, key="k", **stock) for number in range(together)))
    bench.put(order(8, key="k"), order(9, key="another"))
    await bench.consumer(in_thread, in_loop, concurrency=ORDERED).run(bench.stop)
    assert bench.done() == ["order 9"]
    assert sorted(bench.ready()) == [*(f"m-{number}" for number in range(together)), "m-8"]


async def test_what_runs_is_finished_if_the_broker_is_lost_at_the_stop(bench: Bench):
    began, may_end = asyncio.Event(), asyncio.Event()

    @inbox_handler("Waits")
    async def waits(session: AsyncSession, event: OrderConfirmed) -> None:
        began.set()
        await may_end.wait()

    async def lost() -> None:
        may_end.set()
        raise BrokerUnavailable("gone")

    bench.subscriber.stop_receiving = lost  # type: ignore[method-assign]
    bench.put(order(1))
    consumer = bench.consumer(waits)
    running = asyncio.create_task(consumer.run(bench.stop))
    await began.wait()
    bench.stop.set()
    await running
    assert consumer.outcomes == {Outcome.PROCESSED: 1}
    assert [row["message_id"] for row in bench.rows(tables.inbox)] == ["m-1"]


async def test_a_stopped_drain_counts_also_what_failed_after_the_stop(bench: Bench):
    async def given_back() -> bool:
        return bench.ready() == ["m-2"]

    @inbox_handler("Fails late")
    async def fails_late(session: AsyncSession, event: OrderConfirmed) -> None:
        bench.stop.set()
        await eventually_async(given_back)
        raise ValueError("boom")

    bench.put(order(1, key="a"), order(2))
    policy = ConsumerPolicy(delays=IN_AN_HOUR)
    done = await bench.drain(fails_late, concurrency=Concurrency(1, ordered=True), policy=policy)
    assert (done.outcomes, done.waiting) == ({Outcome.RETRIED: 1}, 1)
    assert sorted(bench.ready()) == ["m-1", "m-2"]
