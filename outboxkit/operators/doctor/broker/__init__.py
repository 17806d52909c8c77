"""Checks of the broker: pure functions, which judge one snapshot of it over AMQP and through its management API.

`expected` says what should be there, `snapshot` reads what is. `access`, `queues`, `routes` and `limits` judge.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from outboxkit.brokers.rabbitmq import connection
from outboxkit.errors.failures import printable
from outboxkit.errors.wording import COUNTED
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.doctor.broker import access, limits, queues, routes
from outboxkit.operators.doctor.broker.expected import ExpectedBroker, TableFacts, expected_queues, with_facts
from outboxkit.operators.doctor.broker.snapshot import Snapshot, take_snapshot
from outboxkit.operators.doctor.installation import Database, Installation
from outboxkit.operators.doctor.shards import agreements
from outboxkit.operators.findings import Diagnosis
from outboxkit.runtime.pauses import CONSUMER, read_pauses
from outboxkit.runtime.sources import Shards
from outboxkit.statements import activity, doctor

LONGEST = 4_000
"""The longest line of a finding."""
SHARE = 0.4
"""The share of a check's time that each part of the snapshot may take: to connect, and then to ask."""


@dataclass(frozen=True)
class BrokerCheck:
    """A check of the broker.

    Attributes:
        name: what it is about.
        judge: yields what it finds in the snapshot.
        needs_amqp: whether it is left out if no node let the user in.
        needs_api: whether it is left out if the management API cannot be read.
    """

    name: str
    judge: Callable[[Snapshot], Iterator[Diagnosis]]
    needs_amqp: bool = False
    needs_api: bool = False

    def applies(self, snapshot: Snapshot) -> bool:
        """Whether the snapshot has what it needs."""
        return (snapshot.is_open or not self.needs_amqp) and (snapshot.reports is not None or not self.needs_api)

    def find(self, snapshot: Snapshot) -> Iterator[Diagnosis]:
        """The findings, printable: names in the broker are others' texts."""
        for each in self.judge(snapshot):
            what, commands = printable(each.what, LONGEST), tuple(printable(line, LONGEST) for line in each.commands)
            yield replace(each, what=what, commands=commands)


CHECKS = (
    BrokerCheck("connection", access.of_connection),
    BrokerCheck("rights", access.of_rights, needs_amqp=True),
    BrokerCheck("alarms", access.of_alarms, needs_api=True),
    BrokerCheck("exchange", queues.of_exchange, needs_amqp=True),
    BrokerCheck("queues", queues.of_queues, needs_amqp=True),
    BrokerCheck("routes", routes.of_routes, needs_api=True),
    BrokerCheck("limits", limits.of_limits, needs_api=True),
    BrokerCheck("consumers", queues.of_consumers, needs_amqp=True),
    BrokerCheck("management", access.of_management),
)
"""The checks in the order of the report."""


async def read_snapshot(installation: Installation) -> Snapshot | None:
    """The snapshot of the broker; None if it is not RabbitMQ.

    Raises:
        ConfigurationError: the handlers do not fit the queues of the settings.
    """
    if not installation.settings.broker_url.get_secret_value().startswith("amqp"):
        return None
    return await take_snapshot(with_facts(expected_broker(installation), await _facts(installation)))


async def _facts(installation: Installation) -> TableFacts:
    """The facts about the broker in the tables; nothing if they cannot be read: the database's side says why."""
    if installation.engine is None:
        return TableFacts()
    try:
        async with installation.engine.connect() as opened:
            return await opened.run_sync(lambda connection: _read(Database(connection, installation)))
    except (SQLAlchemyError, OSError):
        return TableFacts()


def _read(database: Database) -> TableFacts:
    routes = database.rows(doctor.oldest_by_route(), limit=COUNTED, destination=DEFAULT_DESTINATION)
    types: dict[str, set[str]] = {}
    for queue, names in database.rows(doctor.seen_queues(), seen_since=database.now - activity.SEEN):
        types.setdefault(queue, set()).update(_names(names))
    return TableFacts(
        routes={row.key: row.rows for row in routes},
        types={queue: tuple(sorted(names)) for queue, names in types.items()},
        agreements=agreements(database),
        paused=frozenset(pause.name for pause in read_pauses(database.connection) if pause.process == CONSUMER),
    )


def _names(text: str | None) -> list[str]:
    """The names in a JSON array; none if it is another text."""
    try:
        return msgspec.json.decode(text or "[]", type=list[str])
    except msgspec.DecodeError:
        return []


def expected_broker(installation: Installation) -> ExpectedBroker:
    """The broker as these settings and handlers expect it.

    Raises:
        ConfigurationError: the handlers do not fit the queues.
    """
    settings = installation.settings
    url, management = settings.broker_url.get_secret_value(), settings.management_url
    names = [queue.name for queue in settings.queue or ()]
    count = settings.shards or 1
    return ExpectedBroker(
        urls=tuple(dict.fromkeys(map(str.strip, url.split(",")))),
        exchange=settings.exchange,
        vhost=connection.vhost(url),
        queues=expected_queues(settings, installation.handlers),
        is_declared=settings.declare,
        ordered=settings.ordered,
        delays=settings.retry_delays,
        shards={names[0]: Shards(names[0], count)} if len(names) == 1 and count > 1 else {},
        management=None if management is None else management.get_secret_value(),
        timeout=installation.limits.check_seconds * SHARE,
    )
