"""The tables in a schema of their own, which the URL's search_path chooses."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from sqlalchemy import Engine, create_engine, inspect, make_url, text
from sqlalchemy.orm import Session

from outboxkit import Message, Outcome, event, inbox, inbox_handler, outbox
from outboxkit.brokers.rabbitmq import RabbitPublisher
from outboxkit.relay import Relay
from outboxkit.runtime import process
from tests.processes import COMMAND, run_to_end
from tests.support.plain_client import PlainClient


@event("Ordered")
@dataclass(frozen=True)
class Ordered:
    number: int


@inbox_handler("BillOrder")
def bill(session: Session, event: Ordered) -> None:
    outbox.add(session, event)


@pytest.fixture
def own_schema(empty_postgresql_url: str) -> Iterator[Engine]:
    """An engine whose tables are in schema `messages`, made by `outboxkit migrate`."""
    admin = create_engine(empty_postgresql_url)
    with admin.begin() as connection:
        connection.execute(text("CREATE SCHEMA messages"))
    admin.dispose()
    made = create_engine(make_url(empty_postgresql_url).set(query={"options": "-csearch_path=messages"}))
    migrated = run_to_end([COMMAND, "migrate", "--database-url", made.url.render_as_string(hide_password=False)], {})
    assert migrated.returncode == 0, migrated.stderr
    yield made
    made.dispose()


async def test_everything_finds_its_tables(own_schema: Engine, broker: PlainClient):
    broker.bind("Ordered")
    with Session(own_schema) as session, session.begin():
        sent = outbox.add(session, Ordered(1))
    for expected in (Outcome.PROCESSED, Outcome.DUPLICATE):
        with Session(own_schema) as session, session.begin():
            assert inbox.run_once(session, Message("m", "Ordered", b'{"number":2}'), bill) is expected
    engine = process.engine(own_schema.url.render_as_string(hide_password=False), name="test")
    publisher = RabbitPublisher(broker.url, exchange=broker.exchange)
    await publisher.connect()
    drained = await Relay(engine, publisher).drain(asyncio.Event())
    await publisher.close()
    await engine.dispose()
    assert drained.published == 2
    assert broker.take_all()[0].properties.message_id == sent.id
    assert inspect(own_schema).get_table_names(schema="public") == []
