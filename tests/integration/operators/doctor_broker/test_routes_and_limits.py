"""Routes and limits of a real RabbitMQ, as `outboxkit doctor` judges them."""

import asyncio
import re
from typing import Any

from sqlalchemy import create_engine

from outboxkit import tables
from outboxkit.brokers.rabbitmq.rights import user_of
from outboxkit.brokers.rabbitmq.topology import declarations
from outboxkit.operators.doctor.examine import examine
from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.findings import Diagnosis, Limits, Severity
from outboxkit.runtime import process
from outboxkit.runtime.settings import Settings
from tests.integration.operators.doctor_broker.examining import (
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
from tests.servers.ports import free_ports
from tests.servers.rabbitmq import PrivateRabbitmq
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async


async def test_a_consumer_bound_to_the_wrong_type(server: PrivateRabbitmq, client: PlainClient):
    async with consuming(client, "OrderConfirm"):
        findings, _ = await examined(settings_of(server, client), handlers_of(TYPE))
        assert repr(TYPE) in findings["queue-unbound"].what
        assert findings["queue-unbound"].severity is Severity.PROBLEM
        command = f"declare binding source={client.exchange} destination={client.queue} routing_key={TYPE}"
        assert command in findings["queue-unbound"].commands[0]
        client.bind("Order*", "#", queue=client.queue, arguments=arguments_of(client))
        findings, _ = await examined(settings_of(server, client), handlers_of(TYPE))
        assert "handler-unbound" not in findings


def arguments_of(client: PlainClient) -> dict[str, Any]:
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
        assert repr(TYPE) in findings["queue-unbound"].what
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
        ):
            expected = {name: ("unused for 1 h 0 min", "wait for 1 min 0 s expire", "more than 5 times"),
                        f"{name}.dead": ("wait for 1 min 0 s expire", "above 10 messages")}  # fmt: skip

            def is_all(limits: list[Diagnosis]) -> bool:
                whats = {quoted(each.what): each.what for each in limits}
                return all(text in whats.get(queue, "") for queue, texts in expected.items() for text in texts)

            limits = await eventually_async(lambda: limits_of(settings), is_all)
    by_queue = {quoted(each.what): each for each in limits}
    assert {each.severity for each in limits} == {Severity.PROBLEM}
    assert by_queue[f"{name}.dead"].what.endswith(" They are deleted for good.")
    assert f"rabbitmqctl clear_operator_policy -p / {operators}" in by_queue[name].commands
    assert f"rabbitmqctl clear_policy -p / {own}" in by_queue[name].commands
    assert repr(own) in by_queue[name].what


async def limits_of(settings: Settings) -> list[Diagnosis]:
    report = await examine(Installation(settings, limits=Limits(check_seconds=60)), ["broker"])
    return [each for each in report.findings if each.check == "limits"]


def quoted(text: str) -> str:
    """The queue in a finding's text, behind the word."""
    return re.findall(r"[Qq]ueue '([^']*)'", text)[0]


async def gone(code: str, settings: Settings) -> None:
    async def read() -> dict[str, Diagnosis]:
        return (await examined(settings))[0]

    await eventually_async(read, lambda findings: code not in findings)


async def test_limits_of_queues_of_others(server: PrivateRabbitmq, client: PlainClient):
    limits = {"x-queue-type": "quorum", "x-max-length": 10, "x-message-ttl": 1000, "x-delivery-limit": 50}
    client.bind(TYPE, arguments=limits)
    found_ = (await found("queue-drops", settings_of(server, client, queue=None)))["queue-drops"]
    assert found_.severity is Severity.PROBLEM
    assert found_.what.endswith(" They are deleted for good.")
    assert found_.what.count("by an argument of the queue") == 3


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
        assert f"queue '{client.queue}.dead', which is not there" in findings["queue-drops"].what
    client.delete_queue()
    client.bind(TYPE, arguments={"x-queue-type": "quorum", "x-dead-letter-exchange": "nowhere"})
    findings, _ = await examined(settings_of(server, client, declare=False))
    assert "exchange 'nowhere', which is not there" in findings["queue-drops"].what


async def test_a_broker_short_of_memory(server: PrivateRabbitmq, client: PlainClient):
    await asyncio.to_thread(server.execute, "rabbitmqctl", "set_vm_memory_high_watermark", "0.000001")
    try:
        findings = await found("broker-alarm", settings_of(server, client))
        assert "memory on okit-" in findings["broker-alarm"].what
    finally:
        await asyncio.to_thread(server.execute, "rabbitmqctl", "set_vm_memory_high_watermark", "0.6")
    await gone("broker-alarm", settings_of(server, client))


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
        assert {"routes", "limits", "alarms", "management"} <= set(left_out)
        assert "hunter2" not in str(findings)
        own = user_of(url if "@" in url else server.url)
        assert f"set_user_tags {own} monitoring" in findings["management-unread"].commands[1]
    admin.user(user, tags="management")
    own = as_user(server.management_url, user)
    findings, left_out = await examined(settings_of(server, client, management_url=own))
    assert findings["management-unread"].severity is Severity.WARNING
    assert "limits of queues" in findings["management-unread"].what
    assert {"routes", "limits"} <= set(left_out)
    admin.delete("users", user)
