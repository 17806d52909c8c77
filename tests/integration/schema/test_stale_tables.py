"""Tables that are changed under a running worker: it ends, names the part, and blames no message for it."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import Reject, SchemaError, inbox, inbox_handler, outbox
from outboxkit.consumer import Consumer
from outboxkit.relay import Relay
from tests.integration.consumer.running_consumer import Ordered, processed, publish, subscriber_of
from tests.integration.relay.recording import Recorder, add
from tests.support.plain_client import PlainClient
from tests.support.polling import DEADLINE_SECONDS, eventually_async

DROP = "ALTER TABLE outboxkit_{} DROP COLUMN {}"
MISSING = r"column outboxkit_{}\.{}: undo what dropped it"


@pytest.mark.parametrize(
    ("batch", "table", "column"),
    [(False, "inbox", "attempts"), (True, "inbox", "attempts"), (False, "dead_letter", "reason")],
)
async def test_a_consumer_ends_and_its_messages_stay(
    pg_engine: Engine, async_pg_engine: AsyncEngine, broker: PlainClient, batch: bool, table: str, column: str
):
    @inbox_handler("Bill", batch=batch)
    async def bill(session: AsyncSession, event: Ordered) -> None:
        if table == "dead_letter" and event.number == 2:
            raise Reject("no such order")

    async def done() -> list[tuple[str, str]]:
        return await asyncio.to_thread(processed, pg_engine)

    def change() -> None:
        with pg_engine.begin() as connection:
            connection.execute(text(DROP.format(table, column)))

    subscriber = subscriber_of(broker, {"Ordered"})
    consumer = Consumer(async_pg_engine, subscriber, [inbox.handler_of(bill)], queue=broker.queue)
    await subscriber.connect()
    running = asyncio.create_task(consumer.run(asyncio.Event()))
    publish(broker, 1, "m-1")
    await eventually_async(done)
    await asyncio.to_thread(change)
    publish(broker, 2, "m-2")
    with pytest.raises(SchemaError, match=MISSING.format(table, column)):
        await asyncio.wait_for(running, DEADLINE_SECONDS)
    await subscriber.close()
    await eventually_async(lambda: asyncio.to_thread(broker.depth), lambda depth: depth == 1)
    with pg_engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM outboxkit_dead_letter")) == 0


@pytest.mark.parametrize("drain", [False, True])
async def test_a_relay_ends_and_names_the_part(pg_engine: Engine, async_pg_engine: AsyncEngine, drain: bool):
    """A drain waits for the row that this transaction holds, and goes on when it has changed the table."""
    add(pg_engine, 1)
    relay, stop = Relay(async_pg_engine, Recorder(), poll_interval=timedelta(milliseconds=50)), asyncio.Event()

    async def has_started() -> bool:
        return any(line["event"] == "relay started" for line in said)

    def change(connection: Connection) -> None:
        connection.execute(text(DROP.format("outbox", "expires_at")))
        connection.commit()

    with capture_logs() as said, pg_engine.connect() as connection:
        connection.execute(text("SELECT 1 FROM outboxkit_outbox FOR UPDATE"))
        running = asyncio.create_task(relay.drain(stop) if drain else relay.run(stop))
        await eventually_async(has_started)
        await asyncio.to_thread(change, connection)
        with pytest.raises(SchemaError, match=MISSING.format("outbox", "expires_at")):
            await asyncio.wait_for(running, DEADLINE_SECONDS)
    assert async_pg_engine.pool.checkedout() == 0


def test_an_application_s_error_has_the_cure_as_its_note(engine: Engine):
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE outboxkit_outbox"))
    with Session(engine) as session:
        outbox.add(session, Ordered(1))
        with pytest.raises(DBAPIError) as failed:
            session.flush()
    assert "run `outboxkit migrate`" in failed.value.__notes__[0]
