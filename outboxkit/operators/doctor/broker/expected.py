"""The broker as the settings, the handlers and the tables expect it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

from sqlalchemy.exc import SQLAlchemyError

from outboxkit.brokers.rabbitmq import connection
from outboxkit.brokers.rabbitmq.topology import (
    declarations,
    delay_name,
    own_declarations,
    retry_queue,
    shared_declarations,
)
from outboxkit.consumer.membership import Agreement
from outboxkit.errors.figures import COUNTED
from outboxkit.inbox import Handler
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.doctor.installation import Database, Installation
from outboxkit.operators.doctor.shards import agreements, start_command
from outboxkit.operators.sql import doctor
from outboxkit.runtime import known_handlers, queues
from outboxkit.runtime.pauses import read_pauses
from outboxkit.runtime.settings import Settings
from outboxkit.runtime.sources import Shards
from outboxkit.runtime.workers import CONSUMER
from outboxkit.statements import handlers

GUEST = "guest"
SHARE = 0.4
"""The share of a check's time that each part of the snapshot may take: to connect, and then to ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedQueue:
    """A queue that a consumer of these settings reads.

    Attributes:
        types: the message types of its handlers; empty if no handlers are known.
        bindings: further bindings, exchange and routing key.
        shards: those of the queue that is split, if it is that queue or one of its shards.
    """

    name: str
    types: tuple[str, ...] = ()
    bindings: tuple[tuple[str, str], ...] = ()
    shards: Shards | None = None

    @property
    def is_split(self) -> bool:
        """Whether its shards get its messages, so that no exchange needs to send it any."""
        return self.shards is not None and self.shards.queue == self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedBroker:
    """The broker as the settings expect it.

    Attributes:
        queues: those that are consumed; empty if the settings name none.
        registered: those whose consumers the tables know, if the settings name none. Their arguments are not known.
        is_declared: whether consumers declare them.
        ordered: whether each of them has a single active consumer.
        routes: routing keys of messages in the outbox, and how many messages have each; of relays to this broker.
        paused: queues whose consumers an operator holds.
        shards: the queues that are split, with their shards.
        agreements: those of the processes of ordered queues that the tables know.
        are_tables_known: whether the tables could be read.
        management: the URL of the management API; None means that it follows from `urls`.
        timeout: seconds for each question.
    """

    urls: tuple[str, ...]
    exchange: str
    vhost: str
    queues: tuple[ExpectedQueue, ...] = ()
    registered: tuple[ExpectedQueue, ...] = ()
    is_declared: bool = True
    ordered: bool = False
    delays: Sequence[timedelta] = ()
    routes: Mapping[str, int] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()
    shards: Mapping[str, Shards] = field(default_factory=dict)
    agreements: Mapping[str, Agreement] = field(default_factory=dict)
    are_tables_known: bool = True
    management: str | None = None
    timeout: float = 3.0

    @property
    def moves(self) -> dict[str, Agreement]:
        """The queues whose number of shards changes."""
        return {name: each for name, each in self.agreements.items() if not each.is_settled}

    @property
    def known_queues(self) -> tuple[ExpectedQueue, ...]:
        """The queues of these settings, and those that the tables know."""
        return (*self.queues, *self.registered)

    @property
    def retry_queues(self) -> dict[str, timedelta]:
        """The queues in which copies wait, with their delays: those of the virtual host, or a queue's own."""
        if self.is_declared:
            return {delay_name(delay): delay for delay in self.delays} if self.queues else {}
        return {retry_queue(queue.name, delay): delay for queue in self.queues for delay in self.delays}

    @property
    def declarations(self) -> dict[str, dict[str, Any]]:
        """The arguments of all queues that consumers with these settings declare or look for, by their names."""
        queues: dict[str, dict[str, Any]] = {}
        for queue in self.queues:
            queues |= declarations(
                queue.name, ordered=self.ordered or queue.shards is not None or queue.name in self.moves
            )
            queues |= {} if self.is_declared else own_declarations(queue.name, self.delays)
        return queues | (shared_declarations(self.delays) if self.queues and self.is_declared else {})

    def shards_of(self, queue: str) -> Shards | None:
        """The shards of the queue that is split, if this is that queue or one of its shards."""
        return next((each for each in self.shards.values() if queue in each.consumed), None)

    def consume_command(self, queue: str) -> str:
        """The command that starts the consumer of a queue. A shard has the one of the queue that is split."""
        shards = self.shards_of(queue)
        if shards is not None and shards.queue not in self.agreements:
            return known_handlers.consume_command(shards.queue, shards=shards.count)
        whole = queue if shards is None else shards.queue
        return start_command(whole, self.agreements.get(whole), ordered=self.ordered)

    @property
    def user(self) -> tuple[str, str]:
        """The user's name and password; RabbitMQ's own, if the URL has none."""
        parts = urlsplit(self.urls[0])
        return unquote(parts.username or GUEST), unquote(parts.password or GUEST)


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts about the broker that the tables tell.

    Attributes:
        routes: routing keys of messages in the outbox, and how many messages have each.
        types: queues of consumers that were seen lately, with the types of their handlers.
        are_known: whether the tables could be read.
    """

    routes: Mapping[str, int] = field(default_factory=dict)
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()
    agreements: Mapping[str, Agreement] = field(default_factory=dict)
    are_known: bool = True


async def read_facts(installation: Installation) -> TableFacts:
    """The facts about the broker in the tables; nothing if they cannot be read: the database's side says why."""
    if installation.engine is None:
        return TableFacts(are_known=False)
    try:
        async with installation.engine.connect() as opened:
            return await opened.run_sync(lambda connection: _read(Database(connection, installation)))
    except (SQLAlchemyError, OSError):
        return TableFacts(are_known=False)


def _read(database: Database) -> TableFacts:
    routes = database.rows(doctor.oldest_by_route(), limit=COUNTED, destination=DEFAULT_DESTINATION)
    types: dict[str, set[str]] = {}
    for each in known_handlers.read_handlers(database.connection):
        if each.last_seen >= database.now - handlers.SEEN:
            types.setdefault(each.queue, set()).update(each.types or ())
    return TableFacts(
        routes={row.key: row.rows for row in routes},
        types={queue: tuple(sorted(names)) for queue, names in types.items()},
        agreements=agreements(database),
        paused=frozenset(pause.name for pause in read_pauses(database.connection) if pause.process == CONSUMER),
    )


def with_facts(subject: ExpectedBroker, facts: TableFacts) -> ExpectedBroker:
    """The subject with what the tables tell: routes, types of handlers that nobody named, queues likewise, shards."""
    queues = tuple(replace(queue, types=queue.types or facts.types.get(queue.name, ())) for queue in subject.queues)
    registered = () if queues else tuple(ExpectedQueue(name=name, types=types) for name, types in facts.types.items())
    there = {name: Shards(name, each.shards) for name, each in facts.agreements.items()}
    shards = {name: each for name, each in {**subject.shards, **there}.items() if each.count > 1}
    split = [shards[name].names for name in facts.paused & shards.keys()]
    return replace(
        subject,
        queues=_with_shards(queues, shards),
        registered=_with_shards(registered, shards),
        shards=shards,
        agreements=facts.agreements,
        routes=facts.routes,
        are_tables_known=facts.are_known,
        paused=facts.paused.union(*split),
    )


def _with_shards(queues: Sequence[ExpectedQueue], shards: Mapping[str, Shards]) -> tuple[ExpectedQueue, ...]:
    """The queues, and behind each that is split its shards, which get its messages."""
    expected = list[ExpectedQueue]()
    for queue in queues:
        split = shards.get(queue.name)
        names = () if split is None else split.names
        expected += [replace(queue, name=name, shards=split) for name in (queue.name, *names)]
    return tuple(expected)


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
        queues=_expected_queues(settings, installation.handlers),
        is_declared=settings.declare,
        ordered=settings.ordered,
        delays=settings.retry_delays,
        shards={names[0]: Shards(names[0], count)} if len(names) == 1 and count > 1 else {},
        management=None if management is None else management.get_secret_value(),
        timeout=installation.limits.check_seconds * SHARE,
    )


def _expected_queues(settings: Settings, handlers: Sequence[Handler]) -> tuple[ExpectedQueue, ...]:
    """The queues of the settings, with those of the handlers that belong to each."""
    if settings.queue is None:
        return ()
    names = [queue.name for queue in settings.queue]
    assigned = queues.assign(handlers, names) if handlers else {name: list[Handler]() for name in names}
    return tuple(
        ExpectedQueue(
            name=name,
            types=tuple(sorted({type_ for handler in own for type_ in handler.message_types})),
            bindings=tuple((each.exchange, each.key) for each in settings.bind or () if each.queue in (name, None)),
        )
        for name, own in assigned.items()
    )
