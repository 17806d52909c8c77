"""Checks of the broker: pure functions, which judge one look at it over AMQP and through its management API.

`look` reads, in seconds and without changing anything. `access`, `queues`, `routes`, `limits` and `server` judge.
"""

from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import replace
from datetime import datetime

import msgspec
from sqlalchemy import Connection

from outboxkit.brokers.rabbitmq import connection
from outboxkit.consumer.membership import read_agreement
from outboxkit.errors.failures import printable
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.doctor.broker import access, limits, queues, routes, server
from outboxkit.operators.doctor.broker.look import Look, look_at
from outboxkit.operators.doctor.broker.subject import BrokerSubject, TableFacts, expected_queues, with_facts
from outboxkit.operators.doctor.diagnosis import note
from outboxkit.operators.doctor.installation import Check, Installation
from outboxkit.operators.findings import Diagnosis
from outboxkit.runtime import process
from outboxkit.runtime.pauses import CONSUMER, read_pauses
from outboxkit.runtime.sources import Shards
from outboxkit.schema import partitions
from outboxkit.statements import activity, shards
from outboxkit.statements import doctor as statements

COUNTED = 10_000
"""Rows of the outbox, and dead letters, that are looked at."""
TOO_LARGE = "larger than configured max size"
"""RabbitMQ's words about a message that is too large for it."""
LONGEST = 4_000
"""The longest line of a finding."""
SHARE = 0.4
"""The share of a check's time that each part of the look may take: to connect, and then to ask."""
_TABLES, _LOOK = "tables about the broker", "look at the broker"


async def check_messages(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Read what the tables tell about the broker, for the checks that follow, and judge what it has refused.

    Raises:
        sqlalchemy.exc.DBAPIError: the database is away, or has no tables.
    """
    if installation.engine is None or not _is_rabbitmq(installation):
        return
    async with installation.database() as opened:
        now = await partitions.clock(opened)
        facts = await opened.run_sync(_read, now - activity.SEEN)
    installation.memory[_TABLES] = facts
    for each in server.of_sizes(facts):
        yield each


def _read(opened: Connection, seen_since: datetime) -> TableFacts:
    limit = {"limit": COUNTED}
    routes = opened.execute(statements.oldest_by_route(), limit | {"destination": DEFAULT_DESTINATION}).all()
    error = opened.execute(statements.newest_error(), limit | {"text": TOO_LARGE}).scalar_one_or_none()
    types: dict[str, set[str]] = {}
    for queue, names in opened.execute(statements.seen_queues(), {"seen_since": seen_since}):
        types.setdefault(queue, set()).update(_names(names))
    return TableFacts(
        routes={row.key: row.rows for row in routes},
        types={queue: tuple(sorted(names)) for queue, names in types.items()},
        refused_size=error or "",
        sharding={row.queue: read_agreement(row) for row in opened.execute(shards.of_all_shards())},
        paused=frozenset(pause.name for pause in read_pauses(opened) if pause.process == CONSUMER),
    )


def _names(text: str | None) -> list[str]:
    """The names in a JSON array; none if it is another text."""
    try:
        return msgspec.json.decode(text or "[]", type=list[str])
    except msgspec.DecodeError:
        return []


def _is_rabbitmq(installation: Installation) -> bool:
    return installation.settings.broker_url.get_secret_value().startswith("amqp")


async def check_nodes(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Look at the broker, for all checks, and judge whether it lets this user in.

    Raises:
        ConfigurationError: the handlers do not fit the queues of the settings.
    """
    if not _is_rabbitmq(installation):
        url = installation.settings.broker_url.get_secret_value()
        kind = "an HTTP destination" if process.is_http(url) else "memory://, a broker inside one process"
        yield note("broker-of-another-kind", f"OUTBOXKIT_BROKER_URL is {kind}. These checks are for RabbitMQ.")
        return
    facts = installation.memory.get(_TABLES)
    facts = facts if isinstance(facts, TableFacts) else TableFacts()
    look = await look_at(with_facts(_subject(installation), facts), clock=installation.clock)
    look = installation.memory[_LOOK] = replace(look, skew=installation.thresholds.skew)
    for each in access.of_connection(look):
        yield each


def _subject(installation: Installation) -> BrokerSubject:
    settings = installation.settings
    url, management = settings.broker_url.get_secret_value(), settings.management_url
    names = [queue.name for queue in settings.queue or ()]
    count = settings.shards or 1
    return BrokerSubject(
        urls=tuple(dict.fromkeys(map(str.strip, url.split(",")))),
        exchange=settings.exchange,
        vhost=connection.vhost(url),
        queues=expected_queues(settings, installation.handlers),
        is_declared=settings.declare,
        ordered=settings.ordered,
        delays=settings.retry_delays,
        shards={names[0]: Shards(names[0], count)} if len(names) == 1 and count > 1 else {},
        management=None if management is None else management.get_secret_value(),
        timeout=installation.thresholds.check_seconds * SHARE,
    )


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
        for each in judge(look):  # names in the broker are others' texts
            what, commands = printable(each.what, LONGEST), tuple(printable(line, LONGEST) for line in each.commands)
            yield replace(each, what=what, commands=commands)

    return Check(name, find, applies=applies)


CHECKS = (
    Check("messages", check_messages),
    Check("connection", check_nodes),
    _check("encryption", access.of_encryption),
    _check("account", access.of_account),
    _check("rights", access.of_rights, needs_amqp=True),
    _check("alarms", server.of_alarms, needs_api=True),
    _check("nodes", server.of_nodes, needs_api=True),
    _check("files", server.of_files, needs_api=True),
    _check("clock", server.of_clock, needs_api=True),
    _check("exchange", queues.of_exchange, needs_amqp=True),
    _check("queues", queues.of_queues, needs_amqp=True),
    _check("routes", routes.of_routes, needs_api=True),
    _check("limits", limits.of_limits, needs_api=True),
    _check("timeouts", limits.of_timeouts),
    _check("consumers", queues.of_consumers, needs_amqp=True),
    _check("management", server.of_management),
)
"""The checks in the order of the report. The first two look, at tables and broker, for all of them."""
