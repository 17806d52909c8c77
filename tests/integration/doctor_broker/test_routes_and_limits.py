"""Routes and limits of a real RabbitMQ, as `outboxkit doctor` judges them."""

import asyncio
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outboxkit import event, outbox, tables
from outboxkit.brokers.rabbitmq.topology import declarations
from outboxkit.operators.doctor.examine import examine
from outboxkit.operators.doctor.installation import Installation, Thresholds
from outboxkit.operators.findings import Diagnosis, Severity
from outboxkit.runtime import compose, process
from outboxkit.runtime.outage import utc_now
from outboxkit.runtime.settings import Settings
from tests.delays import WAITING
from tests.integration.doctor_broker.examining import (
    LARGEST,
    TYPE,
    Admin,
    as_user,
    consuming,
    examined,
    found,
    handlers_of,
    policy,
    settings_of,
)
from tests.plain_client import PlainClient
from tests.polling import eventually_async
from tests.servers.ports import free_ports
from tests.servers.rabbitmq import PrivateRabbitmq


async def test_an_unbound_queue(server: PrivateRabbitmq, client: PlainClient):
    async with consuming(client):
        client.unbind(TYPE)
        findings, _ = await examined(settings_of(server, client), handlers_of(TYPE))
        command = f"declare binding source={client.exchange} destination={client.queue} routing_key={TYPE}"
        assert command in findings["queue-unbound"].commands[0]


async def test_a_consumer_bound_to_the_wrong_type(server: PrivateRabbitmq, client: PlainClient):
    async with consuming(client, "OrderConfirm"):
        findings, _ = await examined(settings_of(server, client), handlers_of(TYPE))
        assert repr(TYPE) in findings["handler-unbound"].what
        assert findings["handler-unbound"].severity is Severity.PROBLEM
        assert "'OrderConfirm'" in findings["binding-unhandled"].what
        assert "another service consumes this queue, give it a queue of its own" in findings["binding-unhandled"].cure
        client.bind("Order*", "#", queue=client.queue, arguments=arguments_of(client))
        findings, _ = await examined(settings_of(server, client), handlers_of(TYPE))
        assert "handler-unbound" not in findings


def arguments_of(client: PlainClient) -> dict[str, Any]:
    """The arguments of the client's queue, as its consumer declares it."""
    return dict(declarations(client.queue, ordered=False)[client.queue])


async def test_queues_and_types_that_consumers_have_registered(
    server: PrivateRabbitmq, client: PlainClient, sqlite_url: str
):
    settings = settings_of(server, client, database_url=sqlite_url, queue=None)
    own = create_engine(sqlite_url)
    row = {"handler": "Bill", "queue": client.queue, "types": f'["{TYPE}"]'}
    with own.begin() as connection:
        connection.execute(tables.handler.insert().values(row))
        connection.execute(tables.handler.insert().values(handler="Other", queue=f"{client.queue}.gone", types="x"))
    own.dispose()
    engine = process.engine(sqlite_url, name="test")
    async with consuming(client, "OrderConfirm"):
        findings, _ = await examined(settings, engine=engine)
        assert f"'{client.queue}.gone'" in findings["queue-missing"].what
        assert repr(TYPE) in findings["handler-unbound"].what
        assert "'OrderConfirm'" in findings["binding-unhandled"].what
        assert not {"queue-order", "queue-arguments", "queue-beside-missing"} & set(findings)
    findings, _ = await examined(settings, engine=engine)
    assert client.queue in findings["queue-unconsumed"].what
    await engine.dispose()


async def test_types_in_the_outbox_that_no_queue_wants(server: PrivateRabbitmq, client: PlainClient, sqlite_url: str):
    settings = settings_of(server, client, database_url=sqlite_url)
    add(sqlite_url, (TYPE, None), ("Lost", None), ("Lost", None), ("Known", "nowhere.at.all"))
    engine = process.engine(sqlite_url, name="test")
    async with consuming(client):
        findings, _ = await examined(settings, engine=engine)
        assert "2 of 'Lost', 1 of 'nowhere.at.all'" in findings["type-unwanted"].what
        assert findings["type-unwanted"].severity is Severity.PROBLEM
        assert "routing_key=Lost" in findings["type-unwanted"].commands[0]
        client.bind("Lost", "nowhere.#", arguments=arguments_of(client))
        findings, _ = await examined(settings, engine=engine)
        assert "type-unwanted" not in findings
    await engine.dispose()


def add(url: str, *rows: tuple[str, str | None]) -> None:
    """Rows of these types and topics in the outbox."""
    engine = create_engine(url)
    columns = {"payload": b"{}", "headers": b"{}", "content_type": "application/json"}
    with engine.begin() as connection:
        for number, (type_, topic) in enumerate(rows):
            connection.execute(
                tables.outbox.insert().values(message_id=f"m{number}", type=type_, topic=topic, **columns)
            )
        special = {"discard_unroutable": True}, {"destination": "mail"}, {"queue": "elsewhere"}
        for number, more in enumerate(special):
            row = {"message_id": f"s{number}", "type": "Special", **columns, **more}
            connection.execute(tables.outbox.insert().values(**row))
    engine.dispose()


async def test_policies_that_take_messages_away(server: PrivateRabbitmq, admin: Admin, client: PlainClient):
    settings, name = settings_of(server, client), client.queue
    async with consuming(client):
        with (
            policy(admin, f"^{name}$", expires=3_600_000, **{"delivery-limit": 5, "max-length": 10}) as own,
            policy(admin, f"^{name}$", operator=True, **{"message-ttl": 60_000}) as operators,
            policy(admin, rf"^{name}\.dead$", **{"message-ttl": 60_000, "max-length": 10}),
            policy(admin, f"^{re.escape(WAITING[-1])}$", **{"message-ttl": 60_000}),
        ):
            expected = {
                ("queue-ttl", name, "warning"),
                ("queue-ttl", f"{name}.dead", "problem"),
                ("queue-length", f"{name}.dead", "problem"),
                ("queue-expires", name, "problem"),
                ("delivery-limit", name, "warning"),
                ("retry-delay-changed", WAITING[-1], "warning"),
            }
            limits = await eventually_async(lambda: limits_of(settings), lambda limits: len(limits) >= len(expected))
    assert {(each.code, quoted(each.what), str(each.severity)) for each in limits} == expected
    by_queue = {(each.code, quoted(each.what)): each for each in limits}
    assert f"rabbitmqctl clear_operator_policy -p / {operators}" in by_queue["queue-ttl", name].commands
    assert f"rabbitmqctl clear_policy -p / {own}" in by_queue["queue-expires", name].commands
    assert repr(own) in by_queue["delivery-limit", name].what


async def limits_of(settings: Settings) -> list[Diagnosis]:
    """The findings of the check of limits."""
    report = await examine(Installation(settings, thresholds=Thresholds(check_seconds=60)), ["broker"])
    return [each for each in report.findings if each.check == "limits"]


def quoted(text: str) -> str:
    """The queue in a finding's text, behind the word."""
    return re.findall(r"[Qq]ueue '([^']*)'", text)[0]


async def gone(code: str, settings: Settings) -> None:
    """Wait until this finding is not there any more."""

    async def read() -> dict[str, Diagnosis]:
        return (await examined(settings))[0]

    await eventually_async(read, lambda findings: code not in findings)


async def test_limits_of_queues_of_others(server: PrivateRabbitmq, client: PlainClient):
    limits = {"x-queue-type": "quorum", "x-max-length": 10, "x-message-ttl": 1000, "x-delivery-limit": 50}
    client.bind(TYPE, arguments=limits)
    findings = await found("queue-length", settings_of(server, client, queue=None))
    for code in ("queue-ttl", "queue-length", "delivery-limit"):
        assert findings[code].severity is Severity.PROBLEM
        assert "deleted for good" in findings[code].what
        assert "by an argument of the queue" in findings[code].what


async def test_a_full_queue(server: PrivateRabbitmq, client: PlainClient):
    client.bind(TYPE, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    settings = settings_of(server, client, queue=None)
    findings, _ = await examined(settings)
    assert "queue-full" not in findings
    client.publish(b"{}", topic=TYPE)
    finding = (await found("queue-full", settings))["queue-full"]
    assert f"Queue {client.queue!r} is full: it has 1 message, and takes no more than 1 by an argument" in finding.what


async def test_dead_letters_to_nowhere(server: PrivateRabbitmq, client: PlainClient):
    settings = settings_of(server, client)
    async with consuming(client):
        client.delete_queue(f"{client.queue}.dead")
        findings, _ = await examined(settings)
        assert f"queue '{client.queue}.dead', which is not there" in findings["dead-letter-nowhere"].what
    client.delete_queue()
    client.bind(TYPE, arguments={"x-queue-type": "quorum", "x-dead-letter-exchange": "nowhere"})
    findings, _ = await examined(settings_of(server, client, declare=False))
    assert "exchange 'nowhere', which is not there" in findings["dead-letter-nowhere"].what


async def test_handlers_that_may_run_longer_than_a_delivery(server: PrivateRabbitmq, client: PlainClient):
    async with consuming(client):
        findings, _ = await examined(settings_of(server, client), handlers_of(TYPE, timeout=timedelta(hours=1)))
        assert "has a timeout of 1 h" in findings["consumer-timeout"].what
        findings, _ = await examined(settings_of(server, client), handlers_of(TYPE, timeout=timedelta(minutes=1)))
        assert "consumer-timeout" not in findings


async def test_a_broker_short_of_memory(server: PrivateRabbitmq, client: PlainClient):
    await asyncio.to_thread(server.execute, "rabbitmqctl", "set_vm_memory_high_watermark", "0.000001")
    try:
        findings = await found("broker-alarm", settings_of(server, client))
        assert "memory on okit-" in findings["broker-alarm"].what
    finally:
        await asyncio.to_thread(server.execute, "rabbitmqctl", "set_vm_memory_high_watermark", "0.6")
    await gone("broker-alarm", settings_of(server, client))


async def test_a_clock_that_differs(server: PrivateRabbitmq, client: PlainClient):
    settings = settings_of(server, client)
    for by, text in ((timedelta(hours=1), "behind this"), (timedelta(hours=-1), "ahead of this")):
        findings, _ = await examined(settings, clock=lambda by=by: utc_now() + by)
        assert text in findings["broker-clock"].what
    findings, _ = await examined(settings)
    assert "broker-clock" not in findings


async def test_messages_that_were_too_large_for_the_broker(
    server: PrivateRabbitmq, client: PlainClient, sqlite_url: str
):
    @event("Photograph")
    @dataclass(frozen=True)
    class Photograph:
        pixels: str

    settings = settings_of(server, client, database_url=sqlite_url, max_attempts=1)
    engine = create_engine(sqlite_url)
    with Session(engine) as session:
        outbox.add(session, Photograph("x" * (LARGEST + 1)))
        session.commit()
    engine.dispose()
    async with consuming(client, "Photograph"), compose.relay(settings) as relay:
        assert (await relay.drain(asyncio.Event(), patience=timedelta(seconds=30))).dead
        own = process.engine(sqlite_url, name="test")
        findings, _ = await examined(settings, engine=own)
        await own.dispose()
    assert str(LARGEST) in findings["message-too-large"].what


async def test_a_management_api_that_says_little_or_nothing(server: PrivateRabbitmq, admin: Admin, client: PlainClient):
    user, (port,) = f"user-{client.queue}", free_ports(1)
    admin.user(user)
    for url, text in (
        (as_user(server.management_url, user), "does not let user"),
        (as_user(server.management_url, "outboxkit", password="hunter2"), "does not let user"),
        (f"http://127.0.0.1:{port}", "does not answer"),
    ):
        findings, left_out = await examined(settings_of(server, client, management_url=url))
        assert text in findings["management-unread"].what
        assert {"routes", "limits", "alarms", "nodes", "clock"} <= set(left_out)
        assert "hunter2" not in str(findings)
    admin.user(user, tags="management")
    own = as_user(server.management_url, user)
    findings, _ = await examined(settings_of(server, client, management_url=own))
    assert findings["management-limited"].severity is Severity.WARNING
    admin.delete("users", user)
