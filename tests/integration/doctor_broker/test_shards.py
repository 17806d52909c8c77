"""An ordered queue that is split into shards, as `outboxkit doctor` judges it."""

import shlex

from sqlalchemy import insert

from outboxkit import process
from outboxkit.brokers.rabbitmq import RabbitSubscriber, ShardMove
from outboxkit.sources import Shards
from outboxkit.tables import sharding
from tests.delays import DELAYS
from tests.integration.doctor_broker.examining import TYPE, Admin, as_user, examined, handlers_of, settings_of
from tests.plain_client import PlainClient
from tests.servers.rabbitmq import PrivateRabbitmq

UNFED = {"queue-unbound", "handler-unbound"}


async def test_the_shards_are_fed_in_place_of_the_queue(
    server: PrivateRabbitmq, admin: Admin, client: PlainClient, postgresql_url: str
):
    engine = process.engine(postgresql_url, name="test")
    two = Shards(client.queue, 2)
    await ShardMove(client.url, client.exchange, [TYPE], DELAYS).bind(two)
    settings = settings_of(server, client, ordered=True)
    findings, _ = await examined(settings, handlers_of(TYPE), engine=engine)
    assert findings.keys() & UNFED == {"queue-unbound"}, "a queue of which the tables do not say that it is split"
    async with engine.begin() as connection:
        await connection.execute(insert(sharding).values(queue=client.queue, shards=2))
    findings, _ = await examined(settings_of(server, client), handlers_of(TYPE), engine=engine)
    assert findings.keys() & (UNFED | {"queue-order", "queue-missing"}) == set()
    consume = f"outboxkit consume MODULE --queue {client.queue} --ordered --shards 2"
    assert findings["queue-unconsumed"].commands == (consume,)
    assert client.queue + ".2.1" in findings["queue-unconsumed"].what
    admin.delete("exchanges", "/", two.exchange)
    findings, _ = await examined(settings, handlers_of(TYPE), engine=engine)
    assert f"{client.queue}.2." in findings["queue-unbound"].what
    await engine.dispose()


async def test_the_printed_rights_are_enough_for_a_consumer_of_shards(
    server: PrivateRabbitmq, admin: Admin, client: PlainClient
):
    two = Shards(client.queue, 2)
    settings = settings_of(server, client, shards=2)
    findings, _ = await examined(settings, handlers_of(TYPE))
    assert f"{two.exchange}.1" in findings["queue-missing"].what
    *_, configure, write, read = shlex.split(findings["broker-rights-wide"].commands[0])
    admin.user(two.exchange, configure=configure, write=write, read=read)
    url = as_user(client.url, two.exchange)
    await ShardMove(url, client.exchange, [TYPE], DELAYS).bind(two)
    subscriber = RabbitSubscriber(
        url, two.names[1], exchange=client.exchange, topics=[TYPE], delays=DELAYS, ordered=True, shards=two
    )
    await subscriber.connect()
    assert await subscriber.receive(wait=False) is None
    await subscriber.close()
