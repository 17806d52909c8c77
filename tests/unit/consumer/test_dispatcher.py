"""What starts when: redelivered messages alone, batches after their linger, other keys past one that waits."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outboxkit import Outcome, Reject, inbox_handler, tables
from outboxkit.codec.headers import DeliveryHeaders
from outboxkit.consumer import Concurrency, ConsumerPolicy, decisions, dispatcher
from tests.support.polling import eventually_async
from tests.unit.consumer.conftest import IN_AN_HOUR, Bench, order, work
from tests.unit.shop import OrderConfirmed, StockChanged, message


class Trace:
    """Handlers that say when they begin and end; inside the transaction only one runs at a time on SQLite."""

    def __init__(self) -> None:
        self.now = 0
        self.seen: list[tuple[int, int]] = []

        @inbox_handler("Traced")
        async def handler(session: AsyncSession, event: OrderConfirmed) -> None:
            self.seen.append((event.order_id, self.now))

        self.handler = handler


async def test_a_redelivered_message_runs_with_nothing_beside_it_and_its_start_is_forgotten(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    trace, handle = Trace(), dispatcher.Dispatcher._handle

    async def counted(self: Any, *given: Any) -> None:
        """From before the transaction until after the ack."""
        trace.now += 1
        await asyncio.sleep(0.01)
        try:
            await handle(self, *given)
        finally:
            trace.now -= 1

    monkeypatch.setattr(dispatcher.Dispatcher, "_handle", counted)
    bench.put(*map(order, range(4)))
    for number in (100, 101):
        bench.put_redelivered(order(number))
    bench.put(*map(order, range(4, 8)))
    consumer = await bench.run_until_settled(trace.handler, concurrency=Concurrency(4))
    assert consumer.outcomes == {Outcome.PROCESSED: 10}
    beside = dict(trace.seen)
    assert (beside[100], beside[101]) == (1, 1)
    assert max(beside.values()) > 1, "the others share the time"
    assert bench.rows(tables.attempt) == []


async def test_after_so_many_starts_without_an_end_it_is_not_called_again(bench: Bench):
    trace = Trace()
    consumer = bench.consumer(trace.handler)
    records = consumer._runner.records
    for _ in range(3):
        await records.start("m-1", bench.stop)
    bench.put_redelivered(order(1))
    bench.put_redelivered(order(2))
    done = await bench.drain(trace.handler)
    assert done.outcomes == {Outcome.DEAD: 1, Outcome.PROCESSED: 1}
    assert [number for number, _ in trace.seen] == [2]
    (letter,) = bench.letters()
    assert (letter["message_id"], letter["reason"]) == ("m-1", "crash")
    assert bench.rows(tables.attempt) == []


async def test_the_most_crashes_that_a_policy_may_allow_come_before_it_is_renewed(bench: Bench):
    trace = Trace()
    policy = ConsumerPolicy(max_crashes=decisions.MOST_CRASHES)
    bench.put_redelivered(order(1))
    queue, records = bench.subscriber.queue, bench.consumer(trace.handler)._runner.records
    for _ in range(decisions.MOST_CRASHES):  # as often as a process had it, and ended
        await records.start("m-1", bench.stop)
        queue.requeue(queue.ready.pop())
    assert (await bench.drain(trace.handler, policy=policy)).outcomes == {Outcome.DEAD: 1}
    assert [letter["reason"] for letter in bench.letters()] == ["crash"]


async def test_what_came_back_too_often_without_a_fault_is_renewed(bench: Bench):
    trace = Trace()
    bench.put_redelivered(order(1), times=10)
    assert (await bench.drain(trace.handler)).outcomes == {Outcome.PROCESSED: 1}
    assert bench.rows(tables.attempt) == []


@pytest.mark.parametrize("is_stopped", [True, False])
async def test_a_start_without_an_end_counts_unless_a_stop_did_not_wait_for_it(bench: Bench, *, is_stopped: bool):
    """A handler may cancel every task there is, and so end its process."""
    began = asyncio.Event()

    @inbox_handler("Waits")
    async def waits(session: AsyncSession, event: OrderConfirmed) -> None:
        began.set()
        await asyncio.Event().wait()

    bench.put_redelivered(order(1))
    running = asyncio.create_task(bench.consumer(waits).run(bench.stop))
    await began.wait()
    if is_stopped:
        bench.stop.set()
    running.cancel()
    await asyncio.wait((running,))
    starts = [row["starts"] for row in bench.rows(tables.attempt) if row["starts"]]
    assert starts == ([] if is_stopped else [1])


async def test_a_single_message_is_not_held_up_by_batches_for_ever(bench: Bench):
    handled: list[str] = []

    @inbox_handler("Endless", batch=True)
    async def endless(session: AsyncSession, event: OrderConfirmed) -> None:
        handled.append("batched")
        if len(handled) < 40:
            bench.put(order(len(handled)))

    @inbox_handler("Single")
    async def single(session: AsyncSession, event: StockChanged) -> None:
        handled.append("single")

    bench.put(order(0), message(id="single", type="StockChanged", payload=b'{"sku":"1","amount":"1"}'))
    await bench.run_until_settled(endless, single, concurrency=Concurrency(1, batch=1))
    assert (len(handled), handled[1]) == (40, "single")


def failing_first(number: int, failures: int, *, batch: bool = False) -> tuple[list[int], Callable[..., Any]]:
    calls: list[int] = []

    @inbox_handler("InOrder", batch=batch)
    async def handler(session: AsyncSession, event: OrderConfirmed) -> None:
        calls.append(event.order_id)
        if event.order_id == number and calls.count(number) <= failures:
            raise ValueError("boom")

    return calls, handler


@pytest.mark.parametrize("batch", [False, True])
async def test_in_order_a_failing_key_waits_while_other_keys_flow(bench: Bench, *, batch: bool):
    calls, handler = failing_first(1, 3, batch=batch)
    bench.put(*(order(number, key="ab"[number % 2]) for number in range(1, 9)))
    consumer = await bench.run_until_settled(handler, concurrency=Concurrency(4, ordered=True), max_attempts=9)
    retried = 2 if batch else 3  # the failure of the batch is no attempt
    assert consumer.outcomes == {Outcome.PROCESSED: 8, Outcome.RETRIED: retried}
    assert [number for number in calls if number % 2] == [1, 1, 1, 1, 3, 5, 7]
    assert [number for number in calls if not number % 2] == [2, 4, 6, 8]
    assert bench.rows(tables.attempt) == []
    attempts = {row["message_id"]: row["attempts"] for row in bench.rows(tables.inbox)}
    assert attempts["m-1"] == retried + 1


async def test_in_order_a_key_that_is_held_waits_from_the_start_while_other_keys_flow(bench: Bench):
    """As in a new shard, while an old one has earlier messages of the key."""
    bench.put(*(order(number, key="ab"[number % 2]) for number in range(1, 5)))
    consumer = bench.consumer(work, concurrency=Concurrency(4, ordered=True))
    consumer.hold(frozenset("b"))
    running = asyncio.create_task(consumer.run(bench.stop))
    try:
        first = await eventually_async(lambda: asyncio.sleep(0, bench.done()), lambda done: len(done) > 1)
        consumer.hold(frozenset())
        done = await eventually_async(lambda: asyncio.sleep(0, bench.done()), lambda done: len(done) > 3)
    finally:
        bench.stop.set()
        await running
    assert (first, done) == (["order 2", "order 4"], ["order 2", "order 4", "order 1", "order 3"])


async def test_in_order_the_key_goes_on_behind_a_dead_letter(bench: Bench):
    calls, handler = failing_first(1, 100)
    bench.put(*(order(number, key="a") for number in range(1, 4)))
    consumer = await bench.run_until_settled(handler, concurrency=Concurrency(4, ordered=True), max_attempts=3)
    assert consumer.outcomes == {Outcome.PROCESSED: 2, Outcome.RETRIED: 2, Outcome.DEAD: 1}
    assert calls == [1, 1, 1, 2, 3]
    (letter,) = bench.letters()
    assert (letter["attempts"], letter["reason"]) == (3, "failed")
    assert letter["first_failed_at"] is not None


async def test_a_drain_in_order_does_not_wait_for_a_retry(bench: Bench):
    _, handler = failing_first(1, 100)
    bench.subscriber.delays = IN_AN_HOUR
    bench.put(*(order(number, key="ab"[number % 2]) for number in range(1, 7)))
    done = await bench.drain(
        handler, concurrency=Concurrency(4, ordered=True), policy=ConsumerPolicy(delays=IN_AN_HOUR)
    )
    assert done.outcomes == {Outcome.RETRIED: 1, Outcome.PROCESSED: 3}
    assert done.waiting == 3
    assert bench.ready() == ["m-1", "m-3", "m-5"]
    assert [(row["message_id"], row["failures"]) for row in bench.rows(tables.attempt)] == [("m-1", 1)]


async def test_the_attempts_of_a_consumer_in_order_outlive_it(bench: Bench):
    _, handler = failing_first(1, 100)
    bench.put(order(1, key="a"))
    for _ in range(2):
        await bench.drain(handler, concurrency=Concurrency(ordered=True), policy=ConsumerPolicy(delays=IN_AN_HOUR))
    assert [(row["failures"], row["starts"]) for row in bench.rows(tables.attempt)] == [(2, 0)]


async def test_a_cancellation_that_the_client_library_swallows_ends_it_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    """`asyncio.wait_for` does so before Python 3.12, if the answer comes at the same moment."""
    ceasing, started = asyncio.Event(), asyncio.Event()

    async def stop_receiving() -> None:
        ceasing.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    @inbox_handler("Endless")
    async def endless(session: AsyncSession, event: OrderConfirmed) -> None:
        started.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(bench.subscriber, "stop_receiving", stop_receiving)
    bench.put(order(1))
    running = asyncio.create_task(bench.consumer(endless).run(bench.stop))
    await started.wait()
    bench.stop.set()
    await ceasing.wait()
    running.cancel()
    await asyncio.wait((running,), timeout=10)
    assert running.cancelled()


@pytest.mark.parametrize("newer", [(), ("Newer",)])
@pytest.mark.parametrize("ordered", [True, False])
async def test_a_handler_that_has_buried_a_redelivered_message_does_not_run_again(
    bench: Bench, ordered: bool, newer: tuple[str, ...]
):
    """A process ended after the dead letter of one handler; another one fails once more."""
    calls = Counter[str]()

    @inbox_handler("Rejects")
    def rejects(session: Session, event: OrderConfirmed) -> None:
        calls["Rejects"] += 1
        raise Reject("no such order")

    @inbox_handler("Stumbles")
    def stumbles(session: Session, event: OrderConfirmed) -> None:
        calls["Stumbles"] += 1
        if calls["Stumbles"] < 3:
            raise ValueError("boom")

    row = {"side": "inbox", "queue": "billing", "handler": "Rejects", "message_id": "m-1", "type": "OrderConfirmed"}
    known = {"payload": b"{}", "headers": b"{}", "content_type": "application/json", "version": 1, "attempts": 1}
    async with bench.engine.begin() as connection:
        await connection.execute(insert(tables.dead_letter).values(**row, **known, reason="rejected"))
    names = ("Rejects", "Stumbles", *newer) if newer else ()
    bench.subscriber.queue.put(order(1, key="k"), DeliveryHeaders(handlers=names))
    bench.subscriber.queue.requeue(bench.subscriber.queue.ready.pop())
    await bench.run_until_settled(rejects, stumbles, concurrency=Concurrency(2, ordered=ordered))
    assert calls == {"Stumbles": 3}
    letters = {row["handler"]: row["reason"] for row in bench.letters()}
    assert letters == {"Rejects": "rejected"} | dict.fromkeys([None] * len(newer), "no handler")
