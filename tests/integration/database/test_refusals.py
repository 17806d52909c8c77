"""Rights and settings that are wrong: named at the start, with the line that mends them; no outage."""

import asyncio
import re
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from structlog.testing import capture_logs

from outboxkit import Message, SchemaError, ids, inbox, inbox_handler, schema
from outboxkit.brokers.rabbitmq import RabbitPublisher, RabbitSubscriber, connection
from outboxkit.consumer import Consumer
from outboxkit.errors import BrokerRefused
from outboxkit.relay import Relay
from outboxkit.runtime import compose, process, urls
from outboxkit.runtime.outage import is_refusal
from tests.integration.broker.broker_users import NOTHING, broker_user
from tests.integration.consumer.running_consumer import Ordered
from tests.integration.operators.doctoring import connected, role
from tests.servers import OwnServer
from tests.support.delays import DELAYS, DELAYS_TEXT
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

GIVE = re.compile(r"rabbitmqctl (set_permissions (?:-p \S+) \S+ '[^']+' '[^']+' '[^']+')")
PATIENT = timedelta(seconds=60)


@inbox_handler("Work")
async def work(session: AsyncSession, event: Ordered) -> None: ...


@asynccontextmanager
async def consumer(engine: AsyncEngine, url: str, broker: PlainClient) -> AsyncIterator[Consumer]:
    subscriber = RabbitSubscriber(url, broker.queue, exchange=broker.exchange, topics=["Ordered"], delays=DELAYS)
    yield Consumer(engine, subscriber, [inbox.handler_of(work)], queue=broker.queue, patience=PATIENT)
    await subscriber.close()


async def publish(publisher: RabbitPublisher) -> str:
    await publisher.connect()
    (receipt,) = await publisher.publish([Message(id=ids.new(), type="Ordered", payload=b"{}")])
    return str(receipt.verdict)


async def test_a_consumer_without_rights_is_told_the_line_that_gives_them(
    own_rabbitmq: OwnServer, async_pg_engine: AsyncEngine
):
    broker = PlainClient(own_rabbitmq.url)
    with broker_user(own_rabbitmq) as url:
        async with consumer(async_pg_engine, url, broker) as made:
            with pytest.raises(
                BrokerRefused, match=r"this user may not: ACCESS_REFUSED.* with --no-declare"
            ) as refused:
                await made.drain(asyncio.Event())
        text, code = compose.explain(refused.value)
        assert code == 2
        assert "away" not in text
        own_rabbitmq.execute("rabbitmqctl", *shlex.split(GIVE.search(text)[1]))  # type: ignore[index]
        async with consumer(async_pg_engine, url, broker) as made:
            await made.drain(asyncio.Event())
            broker.publish(b'{"number":1}', topic="Ordered", message_id="m-1", type="Ordered")
            assert (await made.drain(asyncio.Event())).outcomes.total() == 1
    broker.clean_up(DELAYS_TEXT.split(","))


@pytest.mark.parametrize("configure", [NOTHING, ".*"], ids=["may not declare", "may not publish"])
async def test_a_publisher_without_rights_is_told_the_line_that_gives_them(own_rabbitmq: OwnServer, configure: str):
    broker = PlainClient(own_rabbitmq.url)
    with broker_user(own_rabbitmq, configure=configure) as url:
        publisher = RabbitPublisher(url, exchange=broker.exchange)
        with pytest.raises(BrokerRefused, match="this user may not: ACCESS_REFUSED") as refused:
            await publish(publisher)
        own_rabbitmq.execute("rabbitmqctl", *shlex.split(GIVE.search(str(refused.value))[1]))  # type: ignore[index]
        broker.bind("Ordered")
        assert await publish(publisher) == "confirmed"
        await publisher.close()
    broker.clean_up()


async def test_a_running_consumer_whose_right_is_taken_away_waits_and_says_so(
    own_rabbitmq: OwnServer, async_pg_engine: AsyncEngine
):
    broker, stop = PlainClient(own_rabbitmq.url), asyncio.Event()

    async def said(event: str) -> None:
        await eventually_async(lambda: asyncio.sleep(0, [line for line in told if line["event"] == event]))

    with broker_user(own_rabbitmq, configure=".*", write=".*", read=".*") as url:
        user = str(make_url(url).username)
        async with consumer(async_pg_engine, url, broker) as running:
            with capture_logs() as told:
                task = asyncio.create_task(running.run(stop))
                await said("consumer connected")
                control = (own_rabbitmq.execute, "rabbitmqctl")
                await asyncio.to_thread(*control, "set_permissions", user, NOTHING, ".*", ".*")
                await asyncio.to_thread(*control, "close_all_user_connections", user, "a new right")
                await said("broker refuses this process, waiting")
                assert not task.done()
                await asyncio.to_thread(*control, "set_permissions", user, ".*", ".*", ".*")
                await said("broker is back, work goes on")
                stop.set()
                await task
        (line,) = [line for line in told if line["event"] == "broker refuses this process, waiting"]
        assert GIVE.search(line["error"])
    broker.clean_up(DELAYS_TEXT.split(","))


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"password": "hunter2"}, "login", "are user 'outboxkit' and the password in OUTBOXKIT_BROKER_URL right"),
        ({"database": "nowhere"}, "vhost", "vhost nowhere not found; is the name right?"),
    ],
)
async def test_a_wrong_setting_of_the_broker_is_named(
    broker: PlainClient, change: dict[str, str], kind: str, text: str
):
    url = make_url(broker.url).set(**change).render_as_string(hide_password=False)  # type: ignore[arg-type]
    publisher = RabbitPublisher(url, exchange=broker.exchange)
    with pytest.raises(BrokerRefused) as refused:
        await publisher.connect()
    told, code = compose.explain(refused.value)
    assert (refused.value.kind, code) == (kind, 2)
    assert text in told
    assert "hunter2" not in told


async def test_a_user_without_rights_in_the_virtual_host_is_told(own_rabbitmq: OwnServer):
    with broker_user(own_rabbitmq) as url:
        user = str(make_url(url).username)
        own_rabbitmq.execute("rabbitmqctl", "clear_permissions", user)
        with pytest.raises(BrokerRefused, match=f"user '{user}' has no rights in it") as refused:
            await connection.connect(url, name="test", timeout=5)
    assert refused.value.kind == "access"


async def test_a_file_of_a_certificate_that_is_not_there_is_named(tmp_path: Path):
    missing = tmp_path / "ca.pem"
    with pytest.raises(
        BrokerRefused, match=rf"'{missing}', which \?cafile= .* cannot be read: No such file"
    ) as refused:
        await connection.connect(f"amqps://mq/?cafile={missing}", name="test", timeout=5)
    assert compose.explain(refused.value)[1] == 2


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"password": "hunter2"}, "are user and password right?"),
        ({"database": "nowhere"}, 'database "nowhere" does not exist; is the name right?'),
    ],
)
@pytest.mark.parametrize("start", ["relay", "consumer"])
async def test_a_wrong_setting_of_the_database_is_named(
    postgresql_url: str, broker: PlainClient, change: dict[str, str], text: str, start: str
):
    url = make_url(postgresql_url).set(**change).render_as_string(hide_password=False)  # type: ignore[arg-type]
    engine = process.engine(url, name="test")
    relay = Relay(engine, RabbitPublisher(broker.url, exchange=broker.exchange))
    async with consumer(engine, broker.url, broker) as made:
        with pytest.raises(DBAPIError) as refused, urls.naming(url):
            await {"relay": relay, "consumer": made}[start].run(asyncio.Event())  # type: ignore[attr-defined]
    told, code = compose.explain(refused.value)
    assert code == 2
    assert told.startswith("postgresql://")
    assert ": the database refuses the connection: " in told
    assert text in told
    assert is_refusal(refused.value)
    await engine.dispose()


@pytest.mark.parametrize("start", ["relay", "consumer", "command"])
async def test_a_role_without_rights_is_told_with_its_table_and_the_grant(
    postgresql_url: str, broker: PlainClient, start: str
):
    with role(postgresql_url) as (name, url):
        engine = process.engine(url, name="test")
        relay = Relay(engine, RabbitPublisher(broker.url, exchange=broker.exchange))

        async def command() -> None:
            async with engine.connect() as opened:
                await opened.run_sync(schema.check)

        async with consumer(engine, broker.url, broker) as made:
            runs = {"relay": lambda: relay.run(asyncio.Event()), "consumer": lambda: made.run(asyncio.Event())}
            with pytest.raises((DBAPIError, SchemaError)) as refused:
                await (runs | {"command": command})[start]()
        await engine.dispose()
    told, code = compose.explain(refused.value)
    assert code == 1
    assert f"as role {name} lacks a right on outboxkit's tables" in told
    assert f"let their owner GRANT SELECT ON outboxkit_schema_version TO {name}" in told
    assert "docs/how-to/grant-least-privileges.md" in told
    assert "outboxkit doctor" in told


async def test_a_consumer_that_may_not_write_the_inbox_ends_and_blames_no_message(
    postgresql_url: str, broker: PlainClient
):
    with role(postgresql_url) as (name, url), connected(postgresql_url) as owner:
        owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name}")
        owner.execute(f"REVOKE INSERT ON outboxkit_inbox FROM {name}")
        engine = process.engine(url, name="test")
        async with consumer(engine, broker.url, broker) as made:
            await made.drain(asyncio.Event())
            broker.publish(b'{"number":1}', topic="Ordered", message_id="m-1", type="Ordered")
            with pytest.raises(SchemaError, match=f"GRANT INSERT ON outboxkit_inbox TO {name}"):
                await made.run(asyncio.Event())
        await engine.dispose()
        assert owner.execute("SELECT count(*) FROM outboxkit_attempt WHERE failures > 0").fetchone() == (0,)
        assert owner.execute("SELECT count(*) FROM outboxkit_dead_letter").fetchone() == (0,)
    assert await eventually_async(lambda: asyncio.to_thread(broker.depth), lambda depth: depth == 1) == 1
