"""What a stranger may send, and what a handler may do: a running consumer on real servers lives and settles it all."""

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import aio_pika
import pika  # type: ignore[import-untyped]
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.pq import TransactionStatus
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import Message, Outcome, Reject, inbox_handler, statements
from outboxkit.brokers.rabbitmq import decode
from outboxkit.brokers.rabbitmq.decode import Properties
from outboxkit.codec.envelopes import CloudEvents
from outboxkit.codec.envelopes.envelope import Malformed
from outboxkit.codec.headers import MOST_ATTEMPTS, read_delivery_headers
from outboxkit.consumer import Concurrency, ConsumerPolicy
from outboxkit.consumer.decisions import Decision, dead_letter_row
from outboxkit.message import NAME_LIMIT
from tests.integration.consumer.running_consumer import (
    Ordered,
    Start,
    bill,
    dead_letters,
    declare,
    ended,
    processed,
    publish,
    starter,
    subscriber_of,
)
from tests.support.delays import DELAYS
from tests.support.grammar import Grammar
from tests.support.night import by_night, chance
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

TEXT = st.text(max_size=40) | st.sampled_from(["", "a\0b", "\ud800", "x" * 300, "é" * 200, "\x1b[31m", "a\nb", "no"])
ON_THE_WIRE = TEXT.filter(lambda text: not re.search("[\ud800-\udfff]", text) and len(text.encode()) <= NAME_LIMIT)
"""What a short string of AMQP can hold."""
NUMBER = st.integers() | st.sampled_from([0, -1, 2**31, 2**31 - 1, 3_000_000_000, 2**63 - 1, -(2**63), 253402300799999])
MOMENT = st.datetimes() | st.sampled_from([datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)])
SCALAR = (
    st.none()
    | st.booleans()
    | NUMBER
    | st.floats()
    | TEXT
    | st.binary(max_size=9)
    | MOMENT
    | st.decimals()
    | st.binary(max_size=9).map(bytearray)
)
ANYTHING = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)
READ = (
    *("outboxkit-attempt", "outboxkit-first-failed-at", "outboxkit-handlers", "outboxkit-accepted-at", "outboxkit-key"),
    *("outboxkit-causation-id", "outboxkit-topic", "outboxkit-queue", "x-death", "x-delivery-count", "traceparent"),
    "outboxkit-version",
)
HEADERS = st.dictionaries(st.sampled_from(READ) | TEXT, ANYTHING, max_size=5)


def without_surrogates(value: Any) -> Any:
    """What a decoder of AMQP can have made: text that is valid Unicode."""
    if isinstance(value, dict):
        return {without_surrogates(name): without_surrogates(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_surrogates(inner) for inner in value]
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


@settings(max_examples=by_night(300, else_=30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(headers=HEADERS, id_=TEXT, type_=TEXT, error=TEXT, handler=st.none() | TEXT, attempts=NUMBER, moment=MOMENT)
def test_anything_can_be_buried(
    engine: Engine, headers: Any, id_: str, type_: str, error: str, handler: str | None, attempts: int, moment: datetime
):
    found = Malformed(b"\xff\0", headers, "", id_, type_, type_, correlation_id=id_, reason=error)
    decision = Decision(Outcome.DEAD, "failed", error)
    row = dead_letter_row(found, decision, queue="billing", handler=handler, attempts=attempts, first_failed_at=moment)
    with engine.begin() as connection:
        connection.execute(statements.dead.bury_once(engine.dialect.name), [row])


@settings(max_examples=by_night(300, else_=30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(headers=HEADERS.map(without_surrogates), id_=ON_THE_WIRE, type_=ON_THE_WIRE, moment=MOMENT)
def test_what_is_read_of_any_message_fits_into_every_table(
    engine: Engine, headers: Any, id_: str, type_: str, moment: datetime
):
    properties = Properties(headers=headers, message_id=id_, message_type=type_, timestamp=moment.replace(tzinfo=UTC))
    message = decode.to_message(properties, b"{}", decode.topic_of(properties, "billing"))
    noted = read_delivery_headers(headers)
    assert 1 <= noted.attempt <= MOST_ATTEMPTS
    with engine.begin() as connection:
        decision = Decision(Outcome.DEAD, "failed", "boom")
        for handler in (*noted.handlers, None):
            first = noted.first_failed_at
            row = dead_letter_row(
                message, decision, queue="q", handler=handler, attempts=noted.attempt, first_failed_at=first
            )
            connection.execute(statements.dead.bury_once(engine.dialect.name), [row])
        if isinstance(message, Message):
            record = {"handler": "Bill", "message_id": message.id, "type": message.type, "attempts": noted.attempt}
            made = message.created_at if message.created_at and message.created_at.year < 9999 else None
            statement = statements.inbox.record_processed(connection.dialect.name)
            connection.execute(statement, record | {"payload_crc": 7, "made": made}).first()


def hostile() -> list[dict[str, Any]]:
    """Properties of messages: each reserved header with each kind of value, and odd properties.

    Neither infinity nor what is not a number: RabbitMQ itself ends the connection of a client that sends one.
    """
    values: list[Any] = [
        *(3_000_000_000, -(2**63), 2**63 - 1, -1, True, 1.5, None, Decimal("1.5"), datetime(9999, 12, 31, tzinfo=UTC)),
        *("9", "", "a\0b", "x" * 300, "é" * 200, "\x1b[31m\nforged", bytearray(b"\xff\xfe")),
        *([], ["x" * 300], ["a\0b"], ["Newer"], [["Odd"]], ["Odd"] * 500, [1, None, {"a": [1]}]),
        {"a": {"b": [bytearray(b"\xff")]}},
    ]
    made = [{"headers": {name: value}} for name in READ for value in values]
    made += [{"headers": {"outboxkit-handlers": [f"name-{number}" for number in range(3000)]}}]
    made += [{"message_id": "a\0b"}, {"type": "a\0b"}, {"type": "x\ny" * 80}, {"content_type": "a\0b"}]
    made += [{"content_encoding": name} for name in ("gzip", "zstd", "br")]
    made += [{"correlation_id": "\x00"}, {"timestamp": 253402300799}]
    made += [{"app_id": "\x1b"}, {"reply_to": "x" * 255}]
    return made


FULL = 130_900
"""Bytes of headers that a frame holds, and ours beside them not."""
FORGED = '"}\n{"event": "forged"}\n\x1b[31m'
NESTED: dict[str, Any] = {"n" * 200: {"m" * 255: [1, {FORGED: b"\xff"}]}}
FRAMES: tuple[dict[str, Any], ...] = (
    {"headers": {"one": "x" * FULL}},
    {"headers": {f"{number:08}": "y" * 100 for number in range(FULL // 114)}},
    {"headers": {"outboxkit-key": "k" * 255, "b": "x" * (FULL - 300)}},
    {"headers": {"n" * 255: 1, FORGED: "x", "a" * 129: None}},
    {"headers": {"deep": NESTED, "list": [NESTED, [b"\x00\xff"]]}},
    {"headers": {"decimal": Decimal("1.5"), "time": datetime(2026, 1, 1, tzinfo=UTC), "int": -(2**63)}},
    {"headers": {"outboxkit-topic": "t" * 100_000}},
    {"headers": {"outboxkit-attempt": 1, "CC": ["nowhere"], "BCC": ["nowhere"], "x-delay": "?"}},
    {"headers": {"": "no name"}, "priority": 255, "reply_to": "r" * 255, "app_id": "a" * 255, "expiration": "99999999"},
    {"content_type": "t" * 255, "content_encoding": "e" * 255, "correlation_id": "c" * 255, "cluster_id": "i" * 255},
    {"timestamp": 2**62},
    {"timestamp": 99_999_999_999, "delivery_mode": 1},
)
"""Properties that no copy can carry as they are."""

BACK_AGAIN: dict[str, Any] = {"headers": {"x-delivery-count": 50}}
"""As if it had come back too often. The second one also has a property that cannot be read."""
RENEWED: tuple[dict[str, Any], ...] = (BACK_AGAIN, BACK_AGAIN | {"content_type": b"\xff\xfe"})


async def send(broker: PlainClient, messages: list[dict[str, Any]]) -> None:
    """Publish them in this order, through a client that writes every type of AMQP."""
    async with await aio_pika.connect(broker.url) as connection:
        exchange = await (await connection.channel()).get_exchange(broker.exchange)
        for number, properties in enumerate(messages):
            known = {"message_id": f"m-{number}", "type": "Ordered"} | properties
            await exchange.publish(aio_pika.Message(b'{"number":%d}' % number, **known), "Ordered")


READERS = {"single": Concurrency(8), "batch": Concurrency(8, batch=50), "ordered": Concurrency(4, ordered=True)}


def each_reader(by_day: Sequence[str] = tuple(READERS)) -> pytest.MarkDecorator:
    """Each way of consuming; those that are not named only by night."""
    marks = {name: [] if name in by_day else [pytest.mark.night] for name in READERS}
    return pytest.mark.parametrize(
        "concurrency", [pytest.param(each, id=name, marks=marks[name]) for name, each in READERS.items()]
    )


@each_reader()
async def test_hostile_messages_are_settled_and_the_healthy_one_behind_is_handled(
    async_pg_engine: AsyncEngine,
    pg_engine: Engine,
    broker: PlainClient,
    concurrency: Concurrency,
    capfd: pytest.CaptureFixture[str],
):
    @inbox_handler("Odd", batch=concurrency.batch == 50)
    def odd(session: Session, event: Ordered) -> None:
        if event.number % 3 == 0:
            raise Reject("a multiple of three")
        if event.number % 3 == 1:
            raise ValueError("its copy comes again")

    await declare(broker, {"Ordered"}, ordered=concurrency.ordered)
    messages, hard = hostile(), (*FRAMES, *RENEWED)
    await send(broker, messages)
    for number, properties in enumerate(hard):
        publish(broker, 3 * number + 1, f"f-{number}", **properties)
    publish(broker, 2, "healthy")
    count = len(messages) + len(hard) + 1
    start, policy = starter(async_pg_engine, broker, ordered=concurrency.ordered), ConsumerPolicy(2, delays=DELAYS)
    with capture_logs() as said:
        async with start(odd, concurrency=concurrency, policy=policy):
            await eventually_async(lambda: asyncio.to_thread(ended, pg_engine), lambda found: len(found) == count)
    letters = dead_letters(pg_engine)
    assert ("Odd", "healthy") in processed(pg_engine)
    assert len(letters) + len(processed(pg_engine)) == count
    assert broker.depth() == 0
    assert all(letter.attempts <= MOST_ATTEMPTS and len(letter.error) <= 1000 for letter in letters)
    errors = "\n".join(letter.error for letter in letters)
    assert all(text in errors for text in ("br-encoded", "not valid gzip", "not valid zstd"))
    assert [line["event"] for line in said].count("consumer connected") == 1
    assert "forged" not in "".join(capfd.readouterr())


async def test_what_came_back_too_often_is_renewed_though_its_headers_fill_a_frame(broker: PlainClient):
    subscriber = subscriber_of(broker, {"Ordered"})
    await subscriber.connect()
    for properties in FRAMES:
        broker.publish(b"{}", topic="Ordered", **({"message_id": "m", "type": "Ordered"} | properties))
        delivery = await subscriber.receive()
        assert delivery is not None
        await delivery.requeue_fresh()
        again = await subscriber.receive()
        assert again is not None
        is_readable = delivery.raw.properties.unreadable is None
        kind = type(delivery.message) if is_readable else Message  # a copy has what could be read
        assert (again.redeliveries, type(again.message)) == (0, kind)
        await again.ack()
    await subscriber.close()
    assert broker.depth() == 0


class Written(pika.BasicProperties):
    """Properties whose flags and bytes are given."""

    def __init__(self, flags: int, data: bytes) -> None:
        super().__init__()
        self.flags_and_data = [flags.to_bytes(2), data]

    def encode(self) -> list[bytes]:
        return self.flags_and_data


@each_reader(by_day=["single"])  # what differs is read before the ways part
async def test_whatever_the_grammar_of_amqp_allows_is_settled_and_the_healthy_one_behind_is_handled(
    async_pg_engine: AsyncEngine, pg_engine: Engine, broker: PlainClient, concurrency: Concurrency
):
    @inbox_handler("Odd", batch=concurrency.batch == 50)
    def odd(session: Session, event: Ordered) -> None:
        pass

    await declare(broker, {"Ordered"}, ordered=concurrency.ordered)
    grammar, count = Grammar(chance("hostile", concurrency), accepted=True), by_night(1500, else_=120)
    for number in range(count):
        body = grammar.body() if grammar.one_in(2) else b'{"number":%d}' % number
        fixed = {"type": b"Ordered"} if grammar.one_in(2) else {}
        fixed |= {"message_id": b"" if grammar.one_in(9) else b"m-%d" % number}
        broker.publish_written(body, Written(*grammar.properties(**fixed)), topic="Ordered")
    publish(broker, 1, "healthy")
    policy = ConsumerPolicy(max_attempts=2, delays=DELAYS, max_message_bytes=64 * 1024)
    start = starter(async_pg_engine, broker, ordered=concurrency.ordered)
    async with start(odd, concurrency=concurrency, policy=policy, readers=[CloudEvents()]):
        await eventually_async(lambda: asyncio.to_thread(ended, pg_engine), lambda found: len(found) == count + 1)
    assert ("Odd", "healthy") in processed(pg_engine)
    assert broker.depth() == 0
    assert {each.reason for each in dead_letters(pg_engine)} >= {"malformed", "undecodable", "no handler"}


async def test_a_message_for_thousands_of_names_is_one_dead_letter(
    start: Start, pg_engine: Engine, broker: PlainClient, capfd: pytest.CaptureFixture[str]
):
    names = [f"name-{number}" for number in range(9_000)]
    async with start(bill, policy=ConsumerPolicy(max_attempts=1)) as consumer:
        publish(broker, 7, "m", headers={"outboxkit-handlers": names})
        publish(broker, 8, "old", timestamp=1, headers={"outboxkit-handlers": ["Bill", *names]})
        await consumer.reaches(dead=1, stale=1)
    assert {(letter.message_id, letter.handler) for letter in dead_letters(pg_engine)} == {("m", None), ("old", None)}
    assert len("".join(capfd.readouterr())) < 10_000


async def test_a_handler_that_leaks_its_session_does_not_use_up_the_pool(
    start: Start, pg_engine: Engine, broker: PlainClient
):
    left: list[asyncio.Task[Any]] = []

    @inbox_handler("Leaks")
    async def leaks(session: AsyncSession, event: Ordered) -> None:
        if event.number >= 24:
            return
        asking = asyncio.ensure_future(session.execute(text("SELECT pg_sleep(0.05)")))
        left.append(asking)
        await asyncio.sleep(0.01 * (event.number % 3))
        if event.number % 4 == 0:
            asking.cancel()
            await asking
        if event.number % 4 == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        if event.number % 4 == 2:
            raise asyncio.CancelledError

    async with start(leaks, policy=ConsumerPolicy(max_attempts=1), concurrency=Concurrency(8)) as consumer:
        for number in range(28):
            publish(broker, number, f"m-{number}")

        await eventually_async(lambda: asyncio.to_thread(ended, pg_engine), lambda found: len(found) == 28)
        await asyncio.gather(*left, return_exceptions=True)
    assert {f"m-{number}" for number in range(24, 28)} <= {id_ for _, id_ in processed(pg_engine)}
    assert consumer.consumer._engine.pool.checkedout() == 0  # type: ignore[attr-defined]


async def test_a_connection_that_is_given_up_under_a_task_ends_its_statement(async_pg_engine: AsyncEngine):
    async with async_pg_engine.connect() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        asking = asyncio.create_task(driver.execute("SELECT pg_sleep(1)"))

        async def asks() -> bool:
            return bool(driver.info.transaction_status == TransactionStatus.ACTIVE)

        await eventually_async(asks)
        await connection.invalidate()
        assert not driver.lock.locked(), "freed while the statement still waited for its answer"
        with pytest.raises(psycopg.OperationalError):
            await asking
    assert driver.closed
