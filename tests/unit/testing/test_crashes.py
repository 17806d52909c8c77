"""A process that kills itself at a step, here with the kill put aside; and deliveries that chaos has disturbed."""

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outboxkit import Message, inbox, tables
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.consumer import Consumer
from outboxkit.inbox import call, handler_of, inbox_handler
from outboxkit.runtime import process
from outboxkit.testing import chaos, crash_at, crashes
from tests.unit.shop import OrderConfirmed, count, message

SECOND = timedelta(seconds=1)


@dataclass
class Life:
    """What a process has done so far, and what it had done at each of its kills."""

    done: list[str]
    kills: list[list[str]]

    def begin(self, step: str, monkeypatch: pytest.MonkeyPatch, also: Callable[[], str] = str) -> type[Session]:
        """From here on it ends at the step; the class of sessions that it listens to."""

        class Watched(Session): ...

        def kill(pid: int, number: int) -> None:
            assert (pid, number) == (os.getpid(), signal.SIGKILL)
            self.kills.append([*self.done, also()])

        monkeypatch.setattr(os, "kill", kill)
        monkeypatch.setattr(crashes, "Session", Watched)
        monkeypatch.setattr(call, "handling", call.handling)  # is put back behind the test, as the next one
        monkeypatch.setattr(process, "publisher", process.publisher)
        event.listen(Watched, "before_commit", lambda _: self.done.append("commits"))
        crashes._die_at(step)
        return Watched


CONSUMER = {
    "before handler": ["commits", "0 rows"],
    "after handler": ["commits", "handled", "0 rows"],
    "before commit": ["commits", "handled", "commits", "0 rows"],
    "after commit": ["commits", "handled", "commits", "1 rows"],
}


@pytest.mark.parametrize("step", CONSUMER)
def test_a_consumer_ends_at_its_step_and_no_commit_before_a_handler_counts(
    step: str, engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
):
    life = Life([], [])
    session_class = life.begin(step, monkeypatch, lambda: f"{count(database_url, tables.inbox)} rows")

    @inbox_handler("Books")
    def books(session: Session, event: OrderConfirmed) -> None:
        life.done.append("handled")

    with session_class(engine) as session:
        with session.begin():
            session.execute(select(1))
        with session.begin():
            inbox.run_once(session, message(), handler_of(books))
    assert life.kills == [CONSUMER[step]]


@pytest.mark.parametrize(("step", "published"), [("before publish", 0), ("after publish", 1)])
async def test_a_relay_ends_at_its_step(step: str, published: int, monkeypatch: pytest.MonkeyPatch):
    broker = MemoryBroker()
    queue = broker.queue("billing", ["#"])
    life = Life([], [])
    monkeypatch.setattr(process, "publisher", lambda *_, **__: MemoryPublisher(broker))
    life.begin(step, monkeypatch, lambda: f"published {len(queue.ready)}")
    publisher: Any = process.publisher("memory://", exchange="outboxkit")
    assert len(await publisher.publish([message()])) == 1
    assert life.kills == [[f"published {published}"]]


def test_a_worker_that_takes_too_long_is_told():
    with pytest.raises(AssertionError, match="outboxkit relay did not come to 'before publish' in 0 s"):
        crash_at("before publish", ["relay"], timeout=0)


async def test_a_disturbed_delivery_does_all_that_one_of_the_broker_does(async_engine: AsyncEngine):
    @inbox_handler("Books")
    async def books(session: Any, event: OrderConfirmed) -> None: ...

    subscriber = MemorySubscriber(MemoryBroker(), "billing", ["#"], [timedelta(microseconds=1)])
    consumer = Consumer(async_engine, subscriber, [handler_of(books)], queue="billing")
    chaos(consumer, seed=1, share=0)
    subscriber.queue.put(message(headers={"tenant": "a"}))

    async def receive() -> Any:
        async with asyncio.timeout(60):
            return await consumer._subscriber.receive()

    delivery = await receive()
    assert isinstance(delivery.message, Message)
    assert (delivery.envelope.message_id, delivery.envelope.headers) == ("m-1", {"tenant": "a"})
    await delivery.requeue()
    assert (again := await receive()).redeliveries == 1
    assert await again.retry(SECOND, handlers=("Books",)) == timedelta(microseconds=1)
    retried = await receive()
    assert (retried.delivery_headers.attempt, retried.delivery_headers.handlers) == (2, ("Books",))
    await retried.requeue_fresh()
    fresh = await receive()
    assert (fresh.redeliveries, fresh.delivery_headers.attempt) == (0, 2)
    await fresh.ack()
    assert not subscriber.unacked
