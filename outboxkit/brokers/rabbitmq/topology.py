"""Topology of a consumer: its queues, its exchange and its bindings, and the errors if RabbitMQ refuses one.

A queue `billing` that outboxkit declares has `billing.dead` beside it, and shares all else with the virtual host. The
copy of a failed message is published to the fanout exchange `outboxkit.delay.10s` with the routing key `billing`. It
waits for the TTL of the quorum queue `outboxkit.delay.10s`. Then the direct exchange `outboxkit.retry` has it, and by a
binding the queue `billing`. If that queue was deleted, the alternate exchange and queue `outboxkit.unroutable` have it.

A queue that is taken as it is gets no binding, so it has retry queues of its own. Decision 6 has the reasons.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import aio_pika
import aiormq
import structlog
from pamqp.common import FieldTable, FieldValue

from outboxkit.brokers.rabbitmq import connection
from outboxkit.errors import BrokerRefused, BrokerUnavailable, ConfigurationError
from outboxkit.errors.figures import shell_word

SINGLE_ACTIVE_CONSUMER = "x-single-active-consumer"
FIRST_WAIT = "x-first-death-queue"
"""RabbitMQ's header with the queue in which a copy has waited."""


RETRY_EXCHANGE = "outboxkit.retry"
"""The direct exchange that brings retry copies back: each queue is bound to it under its own name."""
UNROUTABLE = "outboxkit.unroutable"
"""The exchange and queue for copies whose queue was deleted. They would hold up the copies of all other queues."""
_ALTERNATE: FieldTable = {"alternate-exchange": UNROUTABLE}


@dataclass(frozen=True, slots=True)
class CopyRoute:
    """The address of a retry copy."""

    exchange: str
    routing_key: str

    @property
    def name(self) -> str:
        """The queue in which the copy waits."""
        return self.exchange or self.routing_key


def delay_name(delay: timedelta) -> str:
    """The name of the exchange and the queue in which all queues' copies wait for this delay: `outboxkit.delay.10s`."""
    return f"outboxkit.delay.{_short_text(delay)}"


def retry_queue(queue: str, delay: timedelta) -> str:
    """The name of the retry queue of a queue that is taken as it is, such as `billing.retry.10s`."""
    return f"{queue}.retry.{_short_text(delay)}"


def _short_text(delay: timedelta) -> str:
    milliseconds = round(delay.total_seconds() * 1000)
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")):
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def dead_queue(queue: str) -> str:
    """The name of the queue for messages that the broker drops from `queue` by a limit of its own."""
    return f"{queue}.dead"


def quorum(exchange: str, dead_letters_to: str | None, **more: FieldValue) -> FieldTable:
    """Arguments of a durable quorum queue whose dropped messages go to this exchange, under a routing key or their own.

    With at-least-once dead lettering a message stays until its next queue has confirmed it. This needs
    `reject-publish`.
    """
    key: FieldTable = {} if dead_letters_to is None else {"x-dead-letter-routing-key": dead_letters_to}
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": exchange,
        **key,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        **more,
    }


def declarations(queue: str, *, ordered: bool) -> dict[str, FieldTable]:
    """The arguments of a consumer's own queues by their names, in the order in which they are declared."""
    dead, extra = dead_queue(queue), {SINGLE_ACTIVE_CONSUMER: True} if ordered else {}
    return {dead: {"x-queue-type": "quorum"}, queue: quorum("", dead, **extra)}


def shared_declarations(delays: Sequence[timedelta]) -> dict[str, FieldTable]:
    """The arguments of the queues that all consumers of a virtual host share, by their names."""
    waiting = {delay_name(delay): quorum(RETRY_EXCHANGE, None, **_ttl(delay)) for delay in delays}
    return {UNROUTABLE: {"x-queue-type": "quorum"}, **waiting}


def own_declarations(queue: str, delays: Sequence[timedelta]) -> dict[str, FieldTable]:
    """The arguments of the retry queues of a queue that is taken as it is, by their names."""
    return {retry_queue(queue, delay): quorum("", queue, **_ttl(delay)) for delay in delays}


def _ttl(delay: timedelta) -> dict[str, FieldValue]:
    return {"x-message-ttl": round(delay.total_seconds() * 1000)}


@dataclass(frozen=True, slots=True)
class Queues:
    """The queues of one consumer and their bindings. `RabbitSubscriber` explains the attributes."""

    name: str
    exchange: str | None
    topics: Sequence[str | tuple[str, str]]
    delays: Sequence[timedelta]
    ordered: bool
    vhost: str = "/"
    home: str | None = None

    def route(self, delay: timedelta) -> CopyRoute:
        """The address of the copies that wait for this delay."""
        if self.exchange is None:
            return CopyRoute("", retry_queue(self.name, delay))
        return CopyRoute(delay_name(delay), self.home or self.name)

    async def prepare(self, opened: aio_pika.abc.AbstractConnection, timeout: float) -> tuple[str, ...]:
        """Declare and bind the queues, or check that they are there. Returns the names of those to consume.

        Each answer of the broker has `timeout` seconds. Without an exchange, only missing retry queues of this queue
        alone are declared.

        Raises:
            ConfigurationError: a queue is missing, or exists and is of another kind. The text says what to do.
        """
        depth = await self.depth(opened, self.name, timeout)
        if self.exchange is not None:
            await self._share(opened, timeout)
            await self._declare_all(opened, self.exchange, timeout)
            if depth is None:
                _log(self.name).info("queue declared: it was not there before, so nothing has been published to it")
            return dead_queue(self.name), self.name
        if depth is None:
            raise ConfigurationError(
                f"there is no queue {self.name!r}, and OUTBOXKIT_DECLARE=false declares none. Correct "
                "OUTBOXKIT_QUEUE, or declare and bind that queue"
            )
        missing = [
            each for each in self.delays if await self.depth(opened, retry_queue(self.name, each), timeout) is None
        ]
        if missing:
            await self._declare_retry_queues(opened, missing, timeout)
        if not depth:
            self._warn_of_silence()
        is_there = await self.depth(opened, dead_queue(self.name), timeout) is not None
        return (dead_queue(self.name), self.name) if is_there else (self.name,)

    async def depth(self, opened: aio_pika.abc.AbstractConnection, queue: str, timeout: float) -> int | None:
        """The number of ready messages in a queue; None if there is no such queue."""
        try:
            with connection.convert_errors(f"cannot look at queue {queue!r}"):
                channel = await opened.channel()  # the broker closes it if there is no such queue
                declared = await channel.declare_queue(queue, passive=True, timeout=timeout)
                await channel.close()
                return declared.declaration_result.message_count or 0
        except BrokerUnavailable as error:
            if isinstance(error.__cause__, aiormq.exceptions.ChannelNotFoundEntity) and "no queue" in str(error):
                return None
            raise
        except ValueError as error:
            raise ConfigurationError(self._explain_name(error)) from error

    async def _share(self, opened: aio_pika.abc.AbstractConnection, timeout: float) -> None:
        """Declare what all consumers of the virtual host share. A user who may not needs it to be there."""
        try:
            with connection.convert_errors("cannot declare the retry queues"):
                channel = await opened.channel()
                await self._declare_shared(channel, timeout)
                await channel.close()
        except BrokerUnavailable as error:
            if connection.is_permanent(error.__cause__):
                raise ConfigurationError(
                    f"the broker has an exchange or queue of outboxkit with other arguments: {error.__cause__}. All "
                    f"consumers of virtual host {self.vhost!r} share it and declare it anew. Delete it once it is empty"
                ) from error
            if not isinstance(error.__cause__, aiormq.exceptions.ChannelAccessRefused):
                raise
            shared = shared_declarations(self.delays)
            missing = [name for name in shared if await self.depth(opened, name, timeout) is None]
            if missing:
                raise BrokerRefused(f"{error}. {self._may_not_declare(missing)}", kind="right") from error.__cause__

    async def _declare_shared(self, channel: aio_pika.abc.AbstractChannel, limit: float) -> None:
        fanout, names = aio_pika.ExchangeType.FANOUT, shared_declarations(self.delays)
        for name, arguments in names.items():
            source = await channel.declare_exchange(name, fanout, durable=True, timeout=limit)
            queue = await channel.declare_queue(name, durable=True, arguments=arguments, timeout=limit)
            await queue.bind(source, timeout=limit)
            if name == UNROUTABLE:
                if count := queue.declaration_result.message_count:
                    _log(self.name).warning("failed messages have no queue to come back to", queue=name, messages=count)
                await channel.declare_exchange(
                    RETRY_EXCHANGE, aio_pika.ExchangeType.DIRECT, durable=True, arguments=_ALTERNATE, timeout=limit
                )

    def _may_not_declare(self, missing: Sequence[str]) -> str:
        return (
            f"Queue {self.name!r} has no {', '.join(missing)}, in which failed messages wait, and this user may not "
            "declare them. Start this consumer once as a user who may"
        )

    async def _declare_retry_queues(
        self, opened: aio_pika.abc.AbstractConnection, delays: Sequence[timedelta], timeout: float
    ) -> None:
        """Declare the missing retry queues of a queue that is taken as it is."""
        queues = own_declarations(self.name, delays)
        try:
            with connection.convert_errors(f"cannot declare the retry queues of {self.name!r}"):
                channel = await opened.channel()
                for name, arguments in queues.items():
                    await channel.declare_queue(name, durable=True, arguments=arguments, timeout=timeout)
                await channel.close()
        except BrokerUnavailable as error:
            if not isinstance(error.__cause__, aiormq.exceptions.ChannelAccessRefused):
                raise
            raise ConfigurationError(self._may_not_declare(list(queues))) from error
        _log(self.name).info("retry queues declared, all else is taken as it is", queues=list(queues))

    def _warn_of_silence(self) -> None:
        """Warn that nothing may ever arrive: AMQP does not say whether a queue is bound."""
        keys = [topic for topic in self.topics if isinstance(topic, str)]
        _log(self.name).warning(
            "the queue is empty, and this process does not bind it: is it bound? AMQP cannot tell",
            routing_keys=keys,
            cure=f"rabbitmqadmin --vhost={shell_word(self.vhost)} declare binding source=EXCHANGE "
            f"destination={shell_word(self.name)} routing_key={shell_word(keys[0]) if keys else 'KEY'}",
        )

    async def _declare_all(self, opened: aio_pika.abc.AbstractConnection, exchange: str, timeout: float) -> None:
        try:
            with connection.convert_errors(f"cannot declare queue {self.name!r}"):
                channel = await opened.channel()
                await self._declare(channel, exchange, timeout)
                await channel.close()
        except BrokerUnavailable as error:
            if "no exchange" in str(error) and isinstance(error.__cause__, aiormq.exceptions.ChannelNotFoundEntity):
                raise ConfigurationError(
                    f"OUTBOXKIT_BIND: {error.__cause__}. An exchange of others is not declared here: correct its name, "
                    "or start the program that declares it first"
                ) from error
            if connection.is_permanent(error.__cause__):
                raise ConfigurationError(self._explain(str(error.__cause__))) from error
            raise

    async def _declare(self, channel: aio_pika.abc.AbstractChannel, exchange_name: str, limit: float) -> None:
        exchange = await connection.declare_exchange(channel, exchange_name, timeout=limit)
        for name, arguments in declarations(self.name, ordered=self.ordered).items():
            queue = await channel.declare_queue(name, durable=True, arguments=arguments, timeout=limit)
            if name == self.name:
                await queue.bind(RETRY_EXCHANGE, routing_key=name, timeout=limit)
            for topic in self.topics if name == self.name else ():
                source, key = (exchange, topic) if isinstance(topic, str) else topic
                await queue.bind(source, routing_key=key, timeout=limit)

    def _explain_name(self, error: ValueError) -> str:
        accepted = "letters, digits and -_.:@#,/>< are accepted, 200 bytes"
        return f"OUTBOXKIT_QUEUE is {self.name!r}: {error}; {accepted}"

    def _explain(self, refusal: str) -> str:
        if "reserved prefix" in refusal:
            return f"OUTBOXKIT_QUEUE is {self.name!r}, and the broker reserves such names. Choose another one"
        delete = f"rabbitmqctl delete_queue -p {shell_word(self.vhost)} {shell_word(self.name)}"
        cure = (
            "Consume it as it is, with --no-declare or OUTBOXKIT_DECLARE=false, or choose another OUTBOXKIT_QUEUE, or "
        )
        cure += f"empty and delete that queue with: {delete}"
        if SINGLE_ACTIVE_CONSUMER in refusal:
            before, after = ("without", "with") if self.ordered else ("with", "without")
            name = "OUTBOXKIT_ORDERED" if self.ordered else "--ordered (OUTBOXKIT_ORDERED)"
            cure = f"An existing queue cannot be changed in this: consume {before} {name} as "
            cure += "before, or stop its consumers, let it run empty, delete it "
            cure += f"({delete}) and start them again {after} --ordered"
        return (
            f"the broker has queue {self.name!r}, or {dead_queue(self.name)!r}, with other arguments: {refusal}. {cure}"
        )


def _log(queue: str) -> structlog.typing.FilteringBoundLogger:
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger("outboxkit")
    return log.bind(process="consumer", queue=queue)
