"""What a consumer lets go of at once: an event may be large, and an error lives as long as a cycle that it is in."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import Outcome, Reject, inbox_handler
from outboxkit.brokers import Delivery
from outboxkit.brokers.memory import MemoryDelivery
from outboxkit.consumer import Concurrency
from outboxkit.consumer.reports import HANDLERS_LOGGER
from outboxkit.consumer.routing import Arrival
from outboxkit.consumer.transactions import Transactions
from outboxkit.errors import BrokerUnavailable
from outboxkit.errors.failures import forget_locals
from outboxkit.runtime.outage import Outage
from tests.support.polling import eventually_async
from tests.unit.consumer.conftest import Bench, order
from tests.unit.consumer.test_transactions import failure
from tests.unit.shop import OrderConfirmed

COUNT = 4


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The garbage collector breaks cycles, but nobody knows when. And pytest keeps all errors that are logged."""
    monkeypatch.setattr(HANDLERS_LOGGER, "disabled", True)
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Seen:
    """The events that handlers got."""

    def __init__(self) -> None:
        self._events = list[weakref.ref[object]]()

    def __call__(self, event: object) -> None:
        self._events.append(weakref.ref(event))

    def __len__(self) -> int:
        return len(self._events)

    def alive(self) -> int:
        return sum(event() is not None for event in self._events)


def count(class_: type) -> int:
    """The objects of a class that are alive."""
    return sum(isinstance(each, class_) for each in gc.get_objects())


@pytest.mark.parametrize("error", [Reject, ValueError])
@pytest.mark.parametrize("kind", ["async", "thread", "batch", "raised again", "group"])
async def test_a_handler_that_failed_leaves_no_event_behind(bench: Bench, kind: str, error: type[Exception]):
    seen, noted = Seen(), list[int]()

    def fail(event: OrderConfirmed) -> None:
        seen(event)
        raise error("no")

    @inbox_handler("Fails", batch=kind == "batch")
    async def fails(session: AsyncSession, event: OrderConfirmed) -> None:
        fail(event)

    @inbox_handler("Fails")
    def fails_in_thread(session: Session, event: OrderConfirmed) -> None:
        fail(event)

    @inbox_handler("Fails")
    async def raises_again(session: AsyncSession, event: OrderConfirmed) -> None:
        try:
            fail(event)
        except error:
            noted.append(event.order_id)
            raise

    @inbox_handler("Fails")
    async def fails_in_group(session: AsyncSession, event: OrderConfirmed) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails(session, event))

    handlers = {"thread": fails_in_thread, "raised again": raises_again, "group": fails_in_group}
    bench.put(*map(order, range(COUNT)))
    handler = handlers.get(kind, fails)
    consumer = await bench.run_until_settled(handler, concurrency=Concurrency(1, batch=2), max_attempts=2)
    assert consumer.outcomes[Outcome.DEAD] == COUNT
    assert seen.alive() == 0


async def test_a_transaction_that_is_tried_again_has_let_go_of_what_the_first_try_had(async_engine: AsyncEngine):
    seen, alive_before = Seen(), list[int]()

    def work(_: Session) -> str:
        alive_before.append(seen.alive())
        event = OrderConfirmed(order_id=1, total="1")
        seen(event)
        if len(seen) < 3:
            raise failure("57P01" if len(seen) == 1 else "40001")
        return "done"

    assert await Transactions(async_engine, Outage("test")).run(work, asyncio.Event()) == "done"
    assert alive_before == [0, 0, 0]


async def test_a_lost_connection_keeps_no_delivery_that_had_not_started(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    before, receive, lost = count(Arrival), bench.subscriber.receive, asyncio.Event()
    has_begun, goes_on = asyncio.Event(), asyncio.Event()

    async def received(*, wait: bool = True) -> Delivery | None:
        if bench.subscriber.queue.ready:
            return await receive(wait=wait)
        if lost.is_set():
            return await asyncio.Future()
        await has_begun.wait()
        lost.set()
        raise BrokerUnavailable("the connection was lost")

    async def ack(_: MemoryDelivery) -> None:
        raise BrokerUnavailable("the connection was lost")

    @inbox_handler("Slow")
    async def slow(session: AsyncSession, event: OrderConfirmed) -> None:
        has_begun.set()
        await goes_on.wait()

    monkeypatch.setattr(bench.subscriber, "receive", received)
    monkeypatch.setattr(MemoryDelivery, "ack", ack)
    bench.put(*map(order, range(COUNT)))
    running = asyncio.create_task(bench.consumer(slow, concurrency=Concurrency(1)).run(bench.stop))
    await lost.wait()
    try:
        kept = await eventually_async(lambda: asyncio.sleep(0, count(Arrival) - before), lambda kept: kept < COUNT)
    finally:
        bench.stop.set()
        goes_on.set()
        await running
    assert kept == 1, "the one that has started"
    assert count(Arrival) == before


@pytest.mark.parametrize("again", [False, True])
async def test_a_task_that_handed_its_error_on_goes_on(*, again: bool):
    """As a loader does, whose error a handler awaits: the task waits for its next piece of work meanwhile."""
    first, goes_on, done = asyncio.get_running_loop().create_future(), asyncio.Event(), list[str]()

    async def step() -> None:
        if not first.done():
            raise ValueError("no")
        await goes_on.wait()

    async def load() -> None:
        for _ in range(2):
            try:
                await step()
            except ValueError as error:
                first.set_exception(error)
                if not again:
                    await goes_on.wait()
        done.append("all")

    loading = asyncio.create_task(load())
    with pytest.raises(ValueError, match="no") as caught:
        await first
    await asyncio.sleep(0)
    forget_locals(caught.value)
    goes_on.set()
    await loading
    assert done == ["all"]


async def test_a_task_goes_on_whose_error_a_handler_raises_after_its_timeout(bench: Bench):
    first, goes_on, done = asyncio.get_running_loop().create_future(), asyncio.Event(), list[str]()

    async def load() -> None:
        try:
            int("no")
        except ValueError as error:
            first.set_exception(error)
        await goes_on.wait()
        done.append("all")

    @inbox_handler("Slow", timeout=0.05)
    async def slow(session: AsyncSession, event: OrderConfirmed) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await first

    loading = asyncio.create_task(load())
    bench.put(order(1))
    consumer = await bench.run_until_settled(slow, max_attempts=1)
    assert consumer.outcomes[Outcome.DEAD] == 1
    goes_on.set()
    await asyncio.wait((loading,), timeout=10)
    assert done == ["all"]
