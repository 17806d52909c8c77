"""A rename and a new required field on real servers: old and new processes side by side, and what goes wrong."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outboxkit import outbox
from outboxkit.brokers.rabbitmq import RabbitPublisher
from outboxkit.consumer import ConsumerPolicy
from outboxkit.operators.deadletters import DeadLetters, Resolved, Selection
from outboxkit.relay import Relay
from tests.integration.consumer import new_release, old_release
from tests.integration.consumer.running_consumer import Start, dead_letters, processed, starter
from tests.processes import COMMAND, run_to_end
from tests.support.delays import DELAYS, DELAYS_TEXT
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

SOON = DELAYS[:1]
PATIENT = ConsumerPolicy(max_attempts=1000, delays=SOON)
ORDERS = 40


@pytest.fixture
def start(async_pg_engine: AsyncEngine, broker: PlainClient) -> Start:
    return starter(async_pg_engine, broker, SOON)


@pytest.fixture
def effects(pg_engine: Engine) -> Iterator[Engine]:
    old_release.metadata.create_all(pg_engine)
    yield pg_engine
    old_release.metadata.drop_all(pg_engine)


@asynccontextmanager
async def relaying(engine: AsyncEngine, broker: PlainClient) -> AsyncIterator[None]:
    stop = asyncio.Event()
    publisher = RabbitPublisher(broker.url, exchange=broker.exchange)
    task = asyncio.create_task(Relay(engine, publisher).run(stop))
    yield
    stop.set()
    await task
    await publisher.close()


def what(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.scalars(select(old_release.effects.c.what)))


def place(engine: Engine, numbers: range, *, old: bool) -> None:
    """The orders of a producer of the old release, or of the new one."""
    with Session(engine) as session, session.begin():
        for number in numbers:
            if old:
                outbox.add_all(session, [old_release.OrderApproved(number), old_release.OrderPriced(number, 100)])
            else:
                new = [new_release.OrderConfirmed(number, "DE"), new_release.OrderPriced(number, 100, "EUR")]
                outbox.add_all(session, new)


def expected(orders: int) -> list[str]:
    return sorted(f"{verb} {number}" for number in range(orders) for verb in ("ship", "bill"))


async def test_both_releases_work_side_by_side_on_one_queue(
    start: Start, effects: Engine, async_pg_engine: AsyncEngine, broker: PlainClient
):
    async def done() -> list[str]:
        return what(effects)

    async with relaying(async_pg_engine, broker):
        async with start(old_release.ship, old_release.bill, policy=PATIENT) as old:
            place(effects, range(ORDERS), old=True)
            await eventually_async(done, lambda found: found == expected(ORDERS))
            async with start(new_release.ship, new_release.bill, policy=PATIENT) as new:
                await eventually_async(lambda: asyncio.to_thread(broker.consumers), lambda count: count == 2)
                for number in range(ORDERS, 3 * ORDERS):
                    place(effects, range(number, number + 1), old=number % 2 == 0)
                await eventually_async(done, lambda found: found == expected(3 * ORDERS))
            assert old.consumer.outcomes["retried"] > 0, "the old one has met events of the new release"
            assert new.consumer.outcomes["processed"] > ORDERS
        async with start(new_release.ship, new_release.bill, policy=PATIENT):
            place(effects, range(3 * ORDERS, 4 * ORDERS), old=False)
            await eventually_async(done, lambda found: found == expected(4 * ORDERS))
    assert what(effects) == expected(4 * ORDERS)
    assert len(processed(effects)) == 8 * ORDERS
    assert dead_letters(effects) == []
    assert broker.depth() == 0


async def test_a_version_that_nobody_knows_in_time_is_dead_and_can_be_replayed(
    start: Start, effects: Engine, async_pg_engine: AsyncEngine, broker: PlainClient
):
    async with relaying(async_pg_engine, broker):
        async with start(old_release.bill, policy=ConsumerPolicy(max_attempts=2, delays=SOON)) as old:
            with Session(effects) as session, session.begin():
                sent = outbox.add(session, new_release.OrderPriced(7, 100, "EUR"), key="k")
            await old.reaches(retried=1, dead=1)
        (letter,) = dead_letters(effects)
        assert (letter.reason, letter.version, letter.handler, letter.attempts) == ("newer version", 2, "BillOrder", 2)
        assert letter.error == (
            "NewerVersion: it has version 2 of 'OrderPriced', and OrderPriced here knows versions up to 1: a consumer "
            "of a newer release can read it"
        )
        assert letter.traceback is None
        assert processed(effects) == what(effects) == []
        await DeadLetters(async_pg_engine).resolve("replayed", Selection(), asyncio.Event(), Resolved())
        async with start(new_release.bill) as new:
            await new.reaches(processed=1)
    assert processed(effects) == [("BillOrder", sent.id)]
    assert what(effects) == ["bill 7"]


def test_the_command_binds_its_queue_to_every_name(effects: Engine, postgresql_url: str, broker: PlainClient):
    environment = {"OUTBOXKIT_DATABASE_URL": postgresql_url, "OUTBOXKIT_BROKER_URL": broker.url}
    environment |= {"OUTBOXKIT_EXCHANGE": broker.exchange, "OUTBOXKIT_RETRY_DELAYS": DELAYS_TEXT}
    command = [COMMAND, "consume", "tests.integration.consumer.new_release", "--queue", broker.queue, "--drain"]
    assert run_to_end(command, environment).stdout == "nothing to do\n"
    for number, type_ in enumerate(("OrderConfirmed", "OrderApproved")):
        broker.publish(b'{"order":%d}' % number, topic=type_, message_id=type_, type=type_)
    assert run_to_end(command, environment).stdout == "processed 2\n"
    assert what(effects) == ["ship 0", "ship 1"]
