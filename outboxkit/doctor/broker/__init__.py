"""Checks of the broker: pure functions, which judge one look at it over AMQP and through its management API.

`look` reads, in seconds and without changing anything. `access`, `queues`, `routes`, `limits` and `server` judge.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import replace

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from outboxkit import process
from outboxkit.brokers.rabbitmq import connection
from outboxkit.doctor.broker import access, limits, queues, routes, server
from outboxkit.doctor.broker.look import Look, look_at
from outboxkit.doctor.broker.subject import BrokerSubject, expected_queues
from outboxkit.doctor.diagnosis import Diagnosis, note
from outboxkit.doctor.installation import Check, Installation
from outboxkit.errors import OutboxkitError
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.statements import broker as statements

COUNTED = 10_000
"""Rows of the outbox, and dead letters, that are looked at."""
TOO_LARGE = "larger than configured max size"
"""RabbitMQ's words about a message that is too large for it."""
SHARE = 0.4
"""The share of a check's time that each part of the look may take: to connect, and then to ask."""
_LOOK = "look at the broker"


async def check_nodes(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Look at the broker, for all checks, and judge whether it lets this user in.

    Raises:
        ConfigurationError: the handlers do not fit the queues of the settings.
    """
    url = installation.settings.broker_url.get_secret_value()
    if not url.startswith("amqp"):
        kind = "an HTTP destination" if process.is_http(url) else "memory://, a broker inside one process"
        yield note("broker-of-another-kind", f"OUTBOXKIT_BROKER_URL is {kind}. These checks are for RabbitMQ.")
        return
    look = installation.memory[_LOOK] = await _look(installation, _subject(installation))
    for each in access.of_connection(look):
        yield each


async def _look(installation: Installation, subject: BrokerSubject) -> Look:
    """The look, with what the tables tell about the broker, if the database is not away: its own checks say that."""
    look, tables = await asyncio.gather(look_at(subject, clock=installation.clock), _from_tables(installation))
    routed, refused_size = tables
    return replace(
        look,
        subject=replace(subject, routes=routed),
        refused_size=refused_size,
        skew=installation.thresholds.skew,
    )


def _subject(installation: Installation) -> BrokerSubject:
    settings = installation.settings
    url, management = settings.broker_url.get_secret_value(), settings.management_url
    return BrokerSubject(
        urls=tuple(dict.fromkeys(map(str.strip, url.split(",")))),
        exchange=settings.exchange,
        vhost=connection.vhost(url),
        queues=expected_queues(settings, installation.handlers),
        is_declared=settings.declare,
        ordered=settings.ordered,
        delays=settings.retry_delays,
        management=None if management is None else management.get_secret_value(),
        timeout=installation.thresholds.check_seconds * SHARE,
    )


async def _from_tables(installation: Installation) -> tuple[dict[str, int], str]:
    """The routing keys of messages in the outbox with their numbers, and the broker's words about a too large one."""
    try:
        async with asyncio.timeout(installation.thresholds.check_seconds * SHARE), installation.database() as opened:
            return await opened.run_sync(_read)
    except (DBAPIError, OutboxkitError, OSError, RuntimeError):  # as it is without a database, or in time
        return {}, ""


def _read(opened: Connection) -> tuple[dict[str, int], str]:
    limit = {"limit": COUNTED}
    rows = opened.execute(statements.oldest_by_route(), limit | {"destination": DEFAULT_DESTINATION}).all()
    error = opened.execute(statements.newest_error(), limit | {"text": TOO_LARGE}).scalar_one_or_none()
    return {row.key: row.rows for row in rows}, error or ""


def _check(
    name: str, judge: Callable[[Look], Iterator[Diagnosis]], *, needs_amqp: bool = False, needs_api: bool = False
) -> Check:
    """The check that judges the look, left out if nothing was seen that way."""

    def applies(installation: Installation) -> bool:
        look = installation.memory.get(_LOOK)
        return isinstance(look, Look) and not (
            (needs_amqp and not look.is_open) or (needs_api and look.reports is None)
        )

    async def find(installation: Installation) -> AsyncGenerator[Diagnosis]:
        look = installation.memory[_LOOK]
        assert isinstance(look, Look)  # noqa: S101 - it applies
        for each in judge(look):
            yield each

    return Check(name, find, applies=applies)


CHECKS = (
    Check("connection", check_nodes),
    _check("encryption", access.of_encryption),
    _check("account", access.of_account),
    _check("rights", access.of_rights, needs_amqp=True),
    _check("alarms", server.of_alarms, needs_api=True),
    _check("nodes", server.of_nodes, needs_api=True),
    _check("clock", server.of_clock, needs_api=True),
    _check("exchange", queues.of_exchange, needs_amqp=True),
    _check("queues", queues.of_queues, needs_amqp=True),
    _check("routes", routes.of_routes, needs_api=True),
    _check("limits", limits.of_limits, needs_api=True),
    _check("timeouts", limits.of_timeouts),
    _check("sizes", server.of_sizes),
    _check("consumers", queues.of_consumers, needs_amqp=True),
    _check("management", server.of_management),
)
"""The checks in the order of the report. The first one looks at the broker for all of them."""
