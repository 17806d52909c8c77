"""An ordered queue that is split into shards, as `outboxkit doctor` judges it."""

import json
import shlex

from sqlalchemy import delete, insert
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.brokers.rabbitmq import RabbitSubscriber, ShardMove
from outboxkit.operators.doctor.broker import expected_broker
from outboxkit.operators.doctor.broker.checks import rights_to_work
from outboxkit.operators.doctor.broker.expected import TableFacts, with_facts
from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.findings import Diagnosis
from outboxkit.runtime.settings import Settings
from outboxkit.runtime.sources import Shards
from outboxkit.tables import sharding
from tests.integration.operators.doctor_broker.examining import TYPE, Admin, as_user, examined, handlers_of, settings_of
from tests.servers.rabbitmq import PrivateRabbitmq
from tests.support.delays import DELAYS
from tests.support.plain_client import PlainClient

UNFED = {"queue-unbound"}


def rights_of(settings: Settings) -> str:
    return rights_to_work(with_facts(expected_broker(Installation(settings)), TableFacts())).command("/", "user")


async def test_the_shards_are_fed_in_place_of_the_queue(
    server: PrivateRabbitmq, admin: Admin, client: PlainClient, async_pg_engine: AsyncEngine
):
    two = Shards(client.queue, 2)
    await ShardMove(client.url, client.exchange, [TYPE], DELAYS).bind(two)
    settings = settings_of(server, client, ordered=True)
    findings, _ = await examined(settings, handlers_of(TYPE), engine=async_pg_engine)
    assert findings.keys() & UNFED == {"queue-unbound"}, "a queue of which the tables do not say that it is split"
    async with async_pg_engine.begin() as connection:
        await connection.execute(insert(sharding).values(queue=client.queue, shards=2))
    findings, _ = await examined(settings_of(server, client), handlers_of(TYPE), engine=async_pg_engine)
    assert findings.keys() & (UNFED | {"queue-kind", "queue-missing"}) == set()
    consume = f"outboxkit consume MODULE --queue {client.queue} --ordered --shards 2"
    assert findings["queue-unconsumed"].commands == (consume,)
    assert client.queue + ".2.1" in findings["queue-unconsumed"].what
    admin.delete("exchanges", "/", two.exchange)
    findings, _ = await examined(settings, handlers_of(TYPE), engine=async_pg_engine)
    assert f"{client.queue}.2." in findings["queue-unbound"].what


async def test_the_printed_rights_are_enough_for_a_consumer_of_shards(
    server: PrivateRabbitmq, admin: Admin, client: PlainClient
):
    two = Shards(client.queue, 2)
    settings = settings_of(server, client, shards=2)
    findings, _ = await examined(settings, handlers_of(TYPE))
    assert f"{two.exchange}.1" in findings["queue-missing"].what
    *_, configure, write, read = shlex.split(rights_of(settings))
    admin.user(two.exchange, configure=configure, write=write, read=read)
    url = as_user(client.url, two.exchange)
    await ShardMove(url, client.exchange, [TYPE], DELAYS).bind(two)
    subscriber = RabbitSubscriber(
        url, two.names[1], exchange=client.exchange, topics=[TYPE], delays=DELAYS, ordered=True, shards=two
    )
    await subscriber.connect()
    assert await subscriber.receive(wait=False) is None
    await subscriber.close()


async def test_a_move_is_named_with_what_it_waits_for_and_new_shards_may_wait(
    server: PrivateRabbitmq, client: PlainClient, async_pg_engine: AsyncEngine
):
    move, one, two = (
        ShardMove(client.url, client.exchange, [TYPE], DELAYS),
        Shards(client.queue, 1),
        Shards(client.queue, 2),
    )
    await move.bind(one)
    old = await move.begin(one, two, 1)

    async def examined_with(draining: dict[str, list[str] | None], **row: object) -> dict[str, Diagnosis]:
        values = {"queue": client.queue, "shards": 2, "draining": json.dumps(draining), "move": 1} | row
        async with async_pg_engine.begin() as connection:
            await connection.execute(delete(sharding))
            await connection.execute(insert(sharding).values(**values))
        return (await examined(settings_of(server, client), handlers_of(TYPE), engine=async_pg_engine))[0]

    findings = await examined_with(dict.fromkeys(old))
    assert f"Nobody consumes queue {client.queue!r}, and nothing" in findings["queue-unconsumed"].what
    subscriber = RabbitSubscriber(
        client.url, client.queue, exchange=client.exchange, topics=[TYPE], delays=DELAYS, ordered=True, shards=two
    )
    await subscriber.connect()
    await subscriber.start_receiving()
    for moved_from in (1, None):
        findings = await examined_with(dict.fromkeys(old), moved_from=moved_from)
        assert "queue-unconsumed" not in findings
    findings = await examined_with({client.queue: ["k7", "k8"]})
    assert (
        f"Nobody consumes queues '{client.queue}.2.0', '{client.queue}.2.1', and" in findings["queue-unconsumed"].what
    )
    await subscriber.close()
