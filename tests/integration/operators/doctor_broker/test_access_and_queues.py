"""Access to a real RabbitMQ, and its queues, as `outboxkit doctor` judges them without changing anything."""

import asyncio
import shlex
from typing import Any

import pytest

from outboxkit.brokers.rabbitmq.topology import RETRY_EXCHANGE, UNROUTABLE
from outboxkit.operators.findings import Severity
from tests.integration.operators.doctor_broker.examining import (
    TYPE,
    Admin,
    as_user,
    consuming,
    examined,
    found,
    handlers_of,
    patterns,
    settings_of,
    words,
)
from tests.servers.ports import free_ports
from tests.servers.rabbitmq import PrivateRabbitmq
from tests.support.delays import WAITING
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async


async def test_a_sound_broker_has_no_finding_and_is_not_changed(
    server: PrivateRabbitmq, admin: Admin, client: PlainClient
):
    user = f"user-{client.queue}"
    admin.user(user, tags="monitoring", **patterns(client))
    settings = settings_of(server, client, broker_url=as_user(server.url, user))
    async with consuming(client):
        before = await asyncio.to_thread(admin.state)
        findings, left_out = await examined(settings, handlers_of(TYPE))
        assert (words(findings), left_out) == ("", [])
        assert await asyncio.to_thread(admin.state) == before
        own, _ = await examined(settings_of(server, client, broker_url=settings.broker_url, management_url=None))
        assert own["management-unread"].severity is Severity.NOTE, "nobody has named an API"
        (port,) = free_ports(1)
        away = settings_of(server, client, broker_url=settings.broker_url, management_url=f"http://127.0.0.1:{port}")
        named, _ = await examined(away)
        assert named["management-unread"].severity is Severity.WARNING
    admin.delete("users", user)


async def test_a_broker_that_is_away_ends_the_look_at_it(server: PrivateRabbitmq, client: PlainClient):
    (port,) = free_ports(1)
    away = f"amqp://shop:secret@127.0.0.1:{port}/"
    findings, left_out = await examined(settings_of(server, client, broker_url=away))
    assert findings["broker-away"].severity is Severity.PROBLEM
    assert f"nc -vz 127.0.0.1 {port}" in findings["broker-away"].commands
    assert {"queues", "exchange", "consumers"} <= set(left_out)
    assert "secret" not in str(findings)
    both, _ = await examined(settings_of(server, client, broker_url=f"{away},{server.url}"))
    assert "broker-away" not in both, "the other node does its work"


async def test_a_frozen_broker_is_away(server: PrivateRabbitmq, client: PlainClient):
    server.pause()
    try:
        findings, _ = await examined(settings_of(server, client), seconds=5)
    finally:
        server.resume()
    assert "broker-away" in findings
    assert "management-unread" not in findings, "nobody knows whether it is there"


async def test_the_reason_for_which_a_user_does_not_get_in(server: PrivateRabbitmq, admin: Admin, client: PlainClient):
    stranger = f"user-{client.queue}"
    admin.user(stranger)
    cases = {
        "refuses user 'outboxkit' with this password": as_user(server.url, "outboxkit", password="hunter2"),
        "no virtual host 'nowhere'": server.url + "nowhere",
        f"does not let user '{stranger}' into": as_user(server.url, stranger),
        "agree on no encrypted connection": server.url.replace("amqp://", "amqps://"),
    }
    for text, url in cases.items():
        findings, _ = await examined(settings_of(server, client, broker_url=url))
        assert findings["broker-away"].severity is Severity.PROBLEM, words(findings)
        assert text in findings["broker-away"].what
        assert len(findings["broker-away"].commands) >= 1
        assert "hunter2" not in str(findings)
    admin.delete("users", stranger)


async def test_users_with_too_few_rights(server: PrivateRabbitmq, admin: Admin, client: PlainClient):
    user = f"user-{client.queue}"
    admin.user(user, **patterns(client, read="^$"))
    async with consuming(client):
        findings, _ = await examined(settings_of(server, client, broker_url=as_user(server.url, user)))
        assert f"may not read '{client.exchange}'" in findings["broker-rights-missing"].what
        admin.user(user, **patterns(client, configure="^$"))
        told = settings_of(server, client, broker_url=as_user(server.url, user), management_url=None)
        findings, _ = await examined(told)
        assert f"access to exchange '{client.exchange}'" in findings["broker-rights-missing"].what
        assert f"queue '{client.queue}'" in findings["broker-rights-missing"].what
    admin.delete("users", user)


async def test_an_exchange_that_is_missing_or_of_another_kind(server: PrivateRabbitmq, client: PlainClient):
    findings, _ = await examined(settings_of(server, client))
    assert findings["exchange-missing"].severity is Severity.PROBLEM
    client.declare_exchange("fanout")
    findings, _ = await examined(settings_of(server, client))
    assert "fanout" in findings["exchange-missing"].what


async def test_queues_that_are_missing(server: PrivateRabbitmq, client: PlainClient):
    client.declare_exchange()
    findings, _ = await examined(settings_of(server, client))
    assert findings["queue-missing"].commands == (
        f"outboxkit consume MODULE --queue {client.queue}",
        f"outboxkit handlers forget {client.queue}  # if the queue is given up",
    )
    assert not client.has_queue(), "it declares nothing"
    async with consuming(client):
        client.delete_queue(WAITING[-1])
        findings, _ = await examined(settings_of(server, client))
        assert WAITING[-1] in findings["queue-missing"].what
        assert "dead" not in findings["queue-missing"].what


async def test_failed_messages_whose_queue_was_deleted_go_back_to_it(server: PrivateRabbitmq, client: PlainClient):
    async with consuming(client):
        pass
    client.delete_queue()
    for number in range(3):
        client._channel().basic_publish(RETRY_EXCHANGE, client.queue, str(number).encode())
    findings = await found("retries-unroutable", settings_of(server, client))
    assert "3 failed messages whose queue was deleted" in findings["retries-unroutable"].what
    async with consuming(client):
        pass
    for command in findings["retries-unroutable"].commands:
        await asyncio.to_thread(server.execute, *shlex.split(command))
    await eventually_async(lambda: asyncio.to_thread(client.depth), lambda depth: depth == 3)
    assert client.depth(UNROUTABLE) == 0


@pytest.mark.parametrize(
    ("arguments", "changes", "code", "severity"),
    [
        ({}, {}, "queue-kind", "problem"),
        ({}, {"declare": False}, "queue-kind", "warning"),
        ({"x-queue-type": "stream"}, {"declare": False}, "queue-kind", "problem"),
        ({"x-queue-type": "quorum"}, {}, "queue-kind", "problem"),
        ({"x-queue-type": "quorum"}, {"declare": False, "ordered": True}, "queue-kind", "problem"),
        ({"x-single-active-consumer": True}, {"declare": False}, "queue-kind", "problem"),
    ],
)
async def test_queues_of_another_kind(
    server: PrivateRabbitmq,
    client: PlainClient,
    arguments: dict[str, Any],
    changes: dict[str, Any],
    code: str,
    severity: str,
):
    client.bind(TYPE, arguments=arguments)
    findings = await found(code, settings_of(server, client, **changes))
    assert findings[code].severity == severity


async def test_a_queue_of_another_connection(server: PrivateRabbitmq, client: PlainClient):
    client.declare_exchange()
    client._channel().queue_declare(client.queue, exclusive=True)
    findings, _ = await examined(settings_of(server, client))
    assert "exclusive" in findings["queue-missing"].what
    client.disconnect()


async def test_queues_that_nobody_consumes(server: PrivateRabbitmq, client: PlainClient):
    async with consuming(client):
        findings, _ = await examined(settings_of(server, client))
        assert "queue-unconsumed" not in findings
    findings = await found("queue-unconsumed", settings_of(server, client))
    empty = findings["queue-unconsumed"]
    assert empty.severity is Severity.WARNING
    assert [line.split()[1] for line in empty.commands] == ["consume", "delete_queue", "handlers"]
    client.publish(b"{}", topic=TYPE)
    filled = (await found("queue-unconsumed", settings_of(server, client)))["queue-unconsumed"]
    assert filled.severity is Severity.PROBLEM
    assert [line.split()[1] for line in filled.commands] == ["consume"], "messages would be deleted with the queue"
    other = await found("queue-unconsumed", settings_of(server, client, queue=None))
    assert other["queue-unconsumed"].severity is Severity.WARNING
    assert client.queue in other["queue-unconsumed"].what
    assert other["queue-unconsumed"].commands == (), "it is somebody else's"
