"""Queues, exchanges and bindings of a consumer, and what it means when RabbitMQ refuses one."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import aio_pika
from pamqp.common import FieldTable, FieldValue

from outboxkit.brokers.rabbitmq import connection
from outboxkit.errors import BrokerUnavailable, ConfigurationError

ONE_AT_A_TIME = "x-single-active-consumer"


def retry_queue(queue: str, step: timedelta) -> str:
    """The name of the queue in which messages of `queue` wait for this long, such as `billing.retry.10s`."""
    milliseconds = round(step.total_seconds() * 1000)
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")):
        if milliseconds and milliseconds % size == 0:
            return f"{queue}.retry.{milliseconds // size}{unit}"
    return f"{queue}.retry.{milliseconds}ms"


def dead_queue(queue: str) -> str:
    """The name of the queue that gets what the broker would drop by a limit of its own."""
    return f"{queue}.dead"


def quorum(dead_letters_to: str, **more: FieldValue) -> FieldTable:
    """Arguments of a durable quorum queue that hands what it drops, by its own limits, to another queue, safely.

    At-least-once dead lettering keeps a message until the other queue has confirmed it, and needs `reject-publish`.
    """
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead_letters_to,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        **more,
    }


@dataclass(frozen=True, slots=True)
class Queues:
    """What a consumer declares; see `RabbitSubscriber` for the arguments."""

    name: str
    exchange: str
    topics: Sequence[str]
    ladder: Sequence[timedelta]
    ordered: bool
    vhost: str = "/"

    async def declare(self, channel: aio_pika.abc.AbstractChannel, timeout: float) -> None:
        """Declare and bind everything, with `timeout` seconds for each answer.

        Raises:
            BrokerUnavailable: the connection was lost.
            ConfigurationError: a queue is there already and is of another kind; the text says what to do.
        """
        try:
            with connection.converted(f"cannot declare queue {self.name!r}"):
                await self._declare(channel, timeout)
        except BrokerUnavailable as error:
            if connection.is_for_good(error.__cause__):
                raise ConfigurationError(self._explain(str(error.__cause__))) from error
            raise
        except ValueError as error:
            accepted = "letters, digits and -_.:@#,/>< are accepted, 200 bytes"
            raise ConfigurationError(f"OUTBOXKIT_QUEUE is {self.name!r}: {error}; {accepted}") from error

    async def _declare(self, channel: aio_pika.abc.AbstractChannel, limit: float) -> None:
        dead, more = dead_queue(self.name), {ONE_AT_A_TIME: True} if self.ordered else {}
        exchange = await connection.declare_exchange(channel, self.exchange, timeout=limit)
        await channel.declare_queue(dead, durable=True, arguments={"x-queue-type": "quorum"}, timeout=limit)
        queue = await channel.declare_queue(self.name, durable=True, arguments=quorum(dead, **more), timeout=limit)
        for topic in self.topics:
            await queue.bind(exchange, routing_key=topic, timeout=limit)
        for step in self.ladder:
            arguments = quorum(self.name, **{"x-message-ttl": round(step.total_seconds() * 1000)})
            await channel.declare_queue(retry_queue(self.name, step), durable=True, arguments=arguments, timeout=limit)

    def _explain(self, refusal: str) -> str:
        if "reserved prefix" in refusal:
            return f"OUTBOXKIT_QUEUE is {self.name!r}, and the broker keeps such names to itself. Choose another one"
        delete = f"rabbitmqctl delete_queue -p {shlex.quote(self.vhost)} {shlex.quote(self.name)}"
        cure = f"Choose another OUTBOXKIT_QUEUE, or empty and delete that queue with: {delete}"
        if ONE_AT_A_TIME in refusal:
            wanted = "with" if self.ordered else "without"
            cure = f"It is not to be changed while the queue exists: consume {'without' if self.ordered else 'with'} "
            cure += "--ordered (OUTBOXKIT_ORDERED) as before, or stop its consumers, let it run empty, delete it "
            cure += f"({delete}) and start them again {wanted} --ordered"
        return f"the broker has queue {self.name!r}, or one beside it, with other arguments: {refusal}. {cure}"


PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds for which a route waits after its first nack, its second, …, until something of it is confirmed."""
EARLY_SECONDS = 0.05
"""A row may be due a little earlier than its route, by another clock."""
RECONNECT_SECONDS, RECONNECT_MOST_SECONDS, QUIET_SECONDS = 0.05, 5.0, 60.0
"""How far apart new connections are opened because of nacks: twice as far each time, until it was quiet for so long."""
REMIND_SECONDS = 60.0
"""How often it is told that a route waits."""
ROUTES = 10_000
"""How many are remembered; where there are more, remembering starts anew."""


@dataclass(slots=True)
class _Refusal:
    nacks: int = 0
    until: float = float("-inf")
    reason: str = ""
    doubts_connection: bool = True


@dataclass(slots=True)
class Refusals:
    """What a publisher knows of the routes that were nacked last, for longer than one connection."""

    clock: Callable[[], float]
    _routes: dict[str, _Refusal] = field(default_factory=dict)
    _told: dict[str, float] = field(default_factory=dict)
    _news: list[str] = field(default_factory=list)
    _reconnected_at: float = float("-inf")
    _gap: float = RECONNECT_SECONDS

    def __bool__(self) -> bool:
        return bool(self._routes)

    def __contains__(self, route: str) -> bool:
        return route in self._routes

    def paused(self) -> Mapping[str, str]:
        """The routes of which nothing is to be sent now, with their reasons."""
        now = self.clock() + EARLY_SECONDS
        return {route: refusal.reason for route, refusal in self._routes.items() if refusal.until > now}

    def accepted(self, route: str) -> None:
        """A message of this route was confirmed."""
        self._routes.pop(route, None)

    def refused(self, route: str, reason: str, *, doubts_connection: bool) -> None:
        """One was nacked; all of its route wait from now on, and then perhaps leave on a new connection."""
        if len(self._routes) >= ROUTES:
            self._routes.clear()
        refusal = self._routes.setdefault(route, _Refusal())
        if not doubts_connection:  # some of it is taken
            refusal.nacks = 1
        refusal.until = self.clock() + PAUSES[min(refusal.nacks, len(PAUSES) - 1)]
        refusal.nacks += 1
        refusal.reason, refusal.doubts_connection = reason, doubts_connection
        if refusal.nacks > 1:
            self._tell(route, reason)

    def seconds_left(self, route: str) -> float:
        """How long the route waits from now on."""
        refusal = self._routes.get(route)
        return max(refusal.until - self.clock(), 0.0) if refusal is not None else 0.0

    def want_new_connection(self, routes: Iterable[str], opened_at: float) -> bool:
        """Whether one of these routes goes on now, and had better do so on a connection younger than its pause."""
        now = self.clock() + EARLY_SECONDS
        known = (self._routes[route] for route in routes if route in self._routes)
        return any(each.doubts_connection and opened_at < each.until <= now for each in known)

    def news(self) -> list[str]:
        """Why routes wait, for the log: each route once a minute."""
        news, self._news = self._news, []
        return news

    def _tell(self, route: str, reason: str) -> None:
        now = self.clock()
        if now - self._told.get(route, float("-inf")) >= REMIND_SECONDS:
            if len(self._told) >= ROUTES:
                self._told.clear()
            self._told[route] = now
            self._news.append(reason)

    def may_reconnect(self) -> bool:
        """Whether a new connection may be opened because of nacks now; if so, it is counted."""
        now = self.clock()
        since = now - self._reconnected_at
        if since < self._gap:
            return False
        self._gap = RECONNECT_SECONDS if since > QUIET_SECONDS else min(self._gap * 2, RECONNECT_MOST_SECONDS)
        self._reconnected_at = now
        return True
