"""Handlers that consumers register: names that two queues share, and queues that are forgotten."""

import asyncio
import secrets
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import Engine, delete, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import BrokerUnavailable, ConfigurationError, inbox, inbox_handler, tables
from outboxkit.brokers.rabbitmq import RabbitSubscriber
from outboxkit.consumer import Consumer
from outboxkit.consumer.registration import Registration
from outboxkit.operators.doctor import retention
from outboxkit.operators.handlers import forget_queue
from outboxkit.runtime import known_handlers, process
from outboxkit.runtime.outage import utc_now
from outboxkit.runtime.retention import Periods, Retention
from outboxkit.statements import shards
from tests.integration.broker.broker_users import NOTHING, broker_user
from tests.integration.consumer.running_consumer import Billed, Ordered
from tests.integration.operators.doctoring import connected, look
from tests.processes import COMMAND, run_to_end
from tests.servers import OwnServer
from tests.support.delays import DELAYS, DELAYS_TEXT
from tests.support.plain_client import PlainClient


@inbox_handler("Handle")
def bill(session: Session, event: Ordered) -> None: ...


@inbox_handler("Handle")
def ship(session: Session, event: Ordered) -> None: ...


@inbox_handler("Handle")
def billed(session: Session, event: Billed) -> None: ...


Place = tuple[str, Callable[..., None]]


@inbox_handler("shipping.Other")
def other(session: Session, event: Ordered) -> None: ...


def known(engine: Engine) -> list[str]:
    """The queues whose handlers are known."""
    with engine.connect() as connection:
        return [each.queue for each in known_handlers.read_handlers(connection)]


def clashes(engine: Engine) -> list[bool]:
    """Of each name that two queues share, whether it is a clash."""
    with engine.connect() as connection:
        return [each.is_clash for each in known_handlers.read_shared(connection, utc_now())]


def registration(engine: AsyncEngine, queue: str, *functions: object) -> Registration:
    return Registration(engine, [inbox.handler_of(function) for function in functions], queue=queue)


async def test_the_second_queue_is_told_of_the_first(async_engine: AsyncEngine, engine: Engine):
    with capture_logs() as quiet:
        await registration(async_engine, "billing", bill).begin()
        await registration(async_engine, "billing", bill).begin()  # another process of the same queue
        await registration(async_engine, "none").begin()
    assert quiet == []
    with capture_logs() as told:
        await registration(async_engine, "shipping", ship, other).begin()
    (warning,) = told
    assert (warning["log_level"], warning["event"]) == ("warning", "two queues use one handler name")
    assert "Queues billing (last seen" in warning["what"]
    assert "and both take Ordered" in warning["what"]
    assert warning["cure"].startswith("Rename one of them before it handles a message")
    assert warning["cure"].endswith("forget it with: outboxkit handlers forget billing")
    with engine.begin() as connection:
        functions = connection.execute(text("SELECT function FROM outboxkit_handler ORDER BY queue, handler")).scalars()
        assert [path.rpartition(".")[2] for path in functions] == ["bill", "ship", "other"]
        types = connection.execute(text("SELECT types FROM outboxkit_handler")).scalars().all()
        assert types == ['["Ordered"]'] * 3
        connection.execute(insert(tables.inbox).values(handler="Handle", message_id="m-1", type="Ordered"))
        (handled,) = known_handlers.read_shared(connection, utc_now())
    assert handled.cure.startswith("Do not rename it: the inbox has messages of this name")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (("steps.4.0", bill), ("steps.4.3", ship), None),
        (("steps", bill), ("steps.4.0", ship), None),
        (("steps.0", bill), ("mails.0", bill), False),
        (("billing", bill), ("biling", bill), False),
        (("billing", bill), ("shipping", ship), True),
        (("billing", bill), ("shipping", billed), None),
    ],
    ids=["shards", "a queue and its shard", "shards of two", "one function", "two functions", "other types"],
)
async def test_two_queues_share_a_name_only_for_messages_that_may_reach_both(
    async_engine: AsyncEngine, engine: Engine, one: Place, other: Place, expected: bool | None
):
    with capture_logs() as told:
        for queue, function in (one, other):
            await registration(async_engine, queue, function).begin()
    same, two = "a new queue has the handlers of another one: is its name right?", "two queues use one handler name"
    assert [line["event"] for line in told] == ([] if expected is None else [two if expected else same])
    assert clashes(engine) == ([] if expected is None else [expected])


async def test_an_operator_forgets_a_queue_that_was_a_mistake(async_pg_engine: AsyncEngine, pg_engine: Engine):
    await registration(async_pg_engine, "biling", bill, other).begin()
    await registration(async_pg_engine, "billing", ship).begin()
    with pg_engine.begin() as connection:
        with pytest.raises(ConfigurationError, match="of queue 'bill' is known here; known are biling, billing"):
            forget_queue(connection, "bill")
        assert forget_queue(connection, "biling", by="ada") == ["Handle", "shipping.Other"]
        actions = connection.execute(select(tables.audit.c.action, tables.audit.c.filter, tables.audit.c.affected))
        assert actions.all() == [("handlers forget", '{"queue":"biling"}', 2)]
    assert known(pg_engine) == ["billing"]


async def test_a_queue_whose_consumer_lives_is_not_forgotten(
    async_pg_engine: AsyncEngine, pg_engine: Engine, postgresql_url: str
):
    await registration(async_pg_engine, "billing", bill).begin()
    with connected(postgresql_url, name="outboxkit consumer mails, billing"), pg_engine.begin() as connection:
        with pytest.raises(ConfigurationError, match="a consumer of queue 'billing' is connected"):
            forget_queue(connection, "billing")
        assert [each.is_connected for each in known_handlers.read_handlers(connection)] == [True]


async def test_a_split_queue_is_forgotten_once_no_process_shares_it(
    async_pg_engine: AsyncEngine, pg_engine: Engine, postgresql_url: str
):
    await registration(async_pg_engine, "steps", bill).begin()
    member = {"queue": "steps", "member": "one", "shards": 2}
    with pg_engine.begin() as connection:
        connection.execute(
            insert(tables.sharding).values(queue="steps", shards=2, draining='{"steps.3.1": null}', move=3)
        )
        connection.execute(shards.register_member("postgresql"), member)
        connection.execute(update(tables.shard_member).values(seen_at=utc_now() + timedelta(minutes=1)))
    command, chosen = [COMMAND, "handlers", "forget", "steps"], {"OUTBOXKIT_DATABASE_URL": postgresql_url}
    assert "a process has shared the shards of queue 'steps' in the last 10 s" in run_to_end(command, chosen).stderr
    with pg_engine.begin() as connection:
        connection.execute(update(tables.shard_member).values(seen_at=utc_now() - timedelta(minutes=1)))
    forgotten, left = run_to_end(command, chosen).stdout.splitlines()
    assert forgotten == "forgot 1 handler of queue steps: Handle"
    assert left.endswith(": exchanges steps.2 and steps.2.0, queues steps.2.0 to steps.2.1, queue steps.3.1")
    with pg_engine.connect() as connection:
        sharding = select(tables.sharding.c.shards, tables.sharding.c.draining, tables.sharding.c.move)
        assert connection.execute(sharding).all() == [(1, None, 3)]
        assert connection.execute(select(tables.shard_member)).all() == []


@pytest.mark.parametrize("refused_by", ["no such queue", "other arguments", "no right"])
async def test_a_start_that_was_refused_leaves_no_trace(
    refused_by: str, own_rabbitmq: OwnServer, async_pg_engine: AsyncEngine, pg_engine: Engine
):
    broker, arguments = PlainClient(own_rabbitmq.url), {} if refused_by == "other arguments" else None
    exchange = None if refused_by == "no such queue" else broker.exchange
    if refused_by != "no such queue":
        broker.bind(arguments=arguments)
    with broker_user(
        own_rabbitmq, read=NOTHING if refused_by == "no right" else ".*", write=".*", configure=".*"
    ) as url:
        subscriber = RabbitSubscriber(url, broker.queue, exchange=exchange, topics=["Ordered"], delays=DELAYS)
        consumer = Consumer(
            async_pg_engine, subscriber, [inbox.handler_of(bill)], queue=broker.queue, patience=timedelta(seconds=0.1)
        )
        with pytest.raises((ConfigurationError, BrokerUnavailable)):
            await consumer.drain(asyncio.Event())
        await subscriber.close()
    broker.clean_up(DELAYS_TEXT.split(","))
    assert known(pg_engine) == []


async def test_a_handler_that_was_renamed_is_its_queues_no_more(async_engine: AsyncEngine, engine: Engine):
    await registration(async_engine, "billing", bill).begin()
    await registration(async_engine, "shipping", ship, other).begin()
    with capture_logs() as told:
        await registration(async_engine, "shipping", other).begin()
    assert told == []
    assert not any(clashes(engine))
    with capture_logs() as told:
        await registration(async_engine, "shipping", ship, other).begin()  # an old process that still has it
    assert [entry["what"].count("billing (last seen") for entry in told] == [1]


async def test_a_queue_that_is_gone_is_forgotten(async_engine: AsyncEngine, engine: Engine):
    await registration(async_engine, "old", bill).begin()
    with engine.begin() as connection:
        connection.execute(update(tables.handler).values(last_seen=utc_now() - timedelta(days=2)))
    with capture_logs() as told:
        await registration(async_engine, "new", bill).begin()
    assert told == []
    assert not any(clashes(engine))
    await Retention(async_engine, Periods(timedelta(days=1))).prune()
    assert known(engine) == ["new"]


async def test_a_consumer_that_runs_for_long_stays_known(async_engine: AsyncEngine, engine: Engine):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            assert known(engine) == [], "nothing was consumed yet"
            await running.begin()
            with engine.begin() as connection:
                connection.execute(delete(tables.handler))
        if len(slept) == 3:
            raise asyncio.CancelledError

    running = Registration(async_engine, [inbox.handler_of(bill)], queue="billing", sleep=sleep)
    await asyncio.gather(running.run(), return_exceptions=True)
    assert slept == [3600, 3600, 3600]
    assert known(engine) == ["billing"]


async def test_a_role_without_the_right_goes_on(pg_engine: Engine, postgresql_url: str):
    role = f"consumer_{secrets.token_hex(6)}"
    with pg_engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role}; GRANT {role} TO CURRENT_USER"))
    engine = process.engine(f"{postgresql_url}?options=-crole%3D{role}", name="test")
    with capture_logs() as told:
        await registration(engine, "billing", bill).begin()
    await engine.dispose()
    with pg_engine.begin() as connection:
        connection.execute(text(f"DROP ROLE {role}"))
    assert [entry["event"] for entry in told] == ["handlers not compared with those of other queues"]
    assert "GRANT SELECT, INSERT, UPDATE ON outboxkit_handler" in told[0]["cure"]


async def test_a_consumer_that_counts_on_more_than_is_kept_is_found(async_pg_engine: AsyncEngine, postgresql_url: str):
    kept = [inbox.handler_of(bill)]
    for queue, days in (("billing", 14), ("mail", 7)):
        await Registration(async_pg_engine, kept, queue=queue, retention=timedelta(days=days)).begin()
    found = await asyncio.to_thread(look, postgresql_url, retention.check_retention, inbox_retention="7d")
    (finding,) = found
    assert (finding.code, finding.severity) == ("retention-differs", "problem")
    assert finding.what.endswith(" here, and consumers count on more: billing 14 d 0 h.")
    assert finding.commands == ("OUTBOXKIT_INBOX_RETENTION=14d",)
    assert await asyncio.to_thread(look, postgresql_url, retention.check_retention, inbox_retention="14d") == []
