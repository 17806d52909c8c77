"""The consumer against PostgreSQL and RabbitMQ: times, days of the inbox, and cancellations that nobody asked for."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outboxkit import BrokerUnavailable, ids, inbox_handler
from tests.integration.consumer.running_consumer import Ordered, Start, bill, publish, starter, subscriber_of
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async


@pytest.fixture(params=["thread", pytest.param("loop", marks=pytest.mark.night)])
def start(async_pg_engine: AsyncEngine, broker: PlainClient, request: pytest.FixtureRequest) -> Start:
    return starter(async_pg_engine, broker, in_loop=request.param == "loop")


async def test_a_consumer_reads_times_whatever_format_of_dates_the_database_has_set(
    start: Start, pg_engine: Engine, broker: PlainClient
):
    now: list[datetime] = []

    @inbox_handler("Now")
    def tell(session: Session, event: Ordered) -> None:
        now.append(session.execute(text("SELECT now()")).scalar_one())

    with pg_engine.begin() as connection:
        connection.execute(text(f"ALTER DATABASE {pg_engine.url.database} SET datestyle = 'SQL, DMY'"))
    async with start(tell) as consumer:
        publish(broker, 1, "m-1")
        await consumer.reaches(processed=1)
    assert now[0].tzinfo is not None


async def test_a_day_that_has_no_partition_gets_one_when_a_message_of_it_comes(
    start: Start, pg_engine: Engine, broker: PlainClient
):
    made = datetime.now(UTC) - timedelta(days=3)
    id_ = ids.new(at=made)
    async with start(bill) as consumer:
        publish(broker, 1, id_)
        publish(broker, 2, "an id of another kind")
        await consumer.reaches(processed=2)

        def places() -> dict[str, str]:
            asked = text("SELECT message_id, tableoid::regclass::text FROM outboxkit_inbox")
            with pg_engine.connect() as connection:
                return dict(connection.execute(asked).all())

        day = f"outboxkit_inbox_{made:%Y%m%d}"
        wanted = {id_: day, "an id of another kind": "outboxkit_inbox_default"}
        # in a thread, for the consumer's loop must go on while this waits for the partition that is being made
        await eventually_async(lambda: asyncio.to_thread(places), lambda found: found == wanted)


async def test_a_cancellation_that_nobody_asked_for_is_a_lost_connection(
    broker: PlainClient, monkeypatch: pytest.MonkeyPatch
):
    async def cancelled(*_: object, **__: object) -> None:
        await asyncio.sleep(0)
        raise asyncio.CancelledError

    subscriber = subscriber_of(broker, {"Ordered"})
    for target in ("aio_pika.Connection.connect", "aio_pika.Channel.declare_queue", "aio_pika.Channel.set_qos"):
        with monkeypatch.context() as patched:
            patched.setattr(target, cancelled)
            with pytest.raises(BrokerUnavailable, match="the connection ended meanwhile"):
                await subscriber.connect()
    await subscriber.connect()
    broker.publish(b"{}", topic="Ordered", message_id="m", type="Ordered")
    with monkeypatch.context() as patched:
        patched.setattr("aiormq.Channel.basic_consume", cancelled)
        with pytest.raises(BrokerUnavailable):
            await subscriber.receive()
    await subscriber.connect()
    delivery = await subscriber.receive()
    assert delivery is not None
    asked = asyncio.create_task(subscriber.receive())
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await subscriber.close()
