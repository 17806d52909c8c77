"""Topology of a consumer: its queues, its exchange and its bindings, and the errors if RabbitMQ refuses one."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import aio_pika
import aiormq
import structlog
from pamqp.common import FieldTable, FieldValue

from outboxkit.brokers.rabbitmq import connection
from outboxkit.errors import BrokerUnavailable, ConfigurationError

SINGLE_ACTIVE_CONSUMER = "x-single-active-consumer"


def retry_queue(queue: str, delay: timedelta) -> str:
    """The name of the retry queue in which messages of `queue` wait for this delay, such as `billing.retry.10s`."""
    milliseconds = round(delay.total_seconds() * 1000)
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")):
        if milliseconds and milliseconds % size == 0:
            return f"{queue}.retry.{milliseconds // size}{unit}"
    return f"{queue}.retry.{milliseconds}ms"


def dead_queue(queue: str) -> str:
    """The name of the queue for messages that the broker drops from `queue` by a limit of its own."""
    return f"{queue}.dead"


def quorum(dead_letters_to: str, **more: FieldValue) -> FieldTable:
    """Arguments of a durable quorum queue from which dropped messages go to the queue `dead_letters_to`.

    With at-least-once dead lettering a message stays until that queue has confirmed it. This needs `reject-publish`.
    """
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead_letters_to,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        **more,
    }


def declarations(queue: str, delays: Sequence[timedelta], *, ordered: bool) -> dict[str, FieldTable]:
    """The arguments of a consumer's queues by their names, in the order in which they are declared."""
    dead, extra = dead_queue(queue), {SINGLE_ACTIVE_CONSUMER: True} if ordered else {}
    waiting = {retry_queue(queue, delay): _waiting(queue, delay) for delay in delays}
    return {dead: {"x-queue-type": "quorum"}, queue: quorum(dead, **extra), **waiting}


def _waiting(queue: str, delay: timedelta) -> FieldTable:
    return quorum(queue, **{"x-message-ttl": round(delay.total_seconds() * 1000)})


@dataclass(frozen=True, slots=True)
class Queues:
    """The queues of one consumer and their bindings. `RabbitSubscriber` explains the attributes."""

    name: str
    exchange: str | None
    topics: Sequence[str | tuple[str, str]]
    delays: Sequence[timedelta]
    ordered: bool
    vhost: str = "/"

    async def prepare(self, opened: aio_pika.abc.AbstractConnection, timeout: float) -> tuple[str, ...]:
        """Declare and bind the queues, or look whether they are there. Returns the names of those to consume.

        Each answer of the broker has `timeout` seconds. Without an exchange only missing retry queues are declared.

        Raises:
            BrokerUnavailable: the connection was lost.
            ConfigurationError: a queue is missing, or exists and is of another kind. The text says what to do.
        """
        depth = await self.depth(opened, self.name, timeout)
        if self.exchange is not None:
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

    async def _declare_retry_queues(
        self, opened: aio_pika.abc.AbstractConnection, delays: Sequence[timedelta], timeout: float
    ) -> None:
        """Declare the missing retry queues of a queue that is taken as it is.

        Raises:
            ConfigurationError: the user may not. The text has their definitions.
        """
        names = [retry_queue(self.name, delay) for delay in delays]
        try:
            with connection.convert_errors(f"cannot declare the retry queues of {self.name!r}"):
                channel = await opened.channel()
                for delay in delays:
                    await self._declare_retry_queue(channel, delay, timeout)
                await channel.close()
        except BrokerUnavailable as error:
            if not isinstance(error.__cause__, aiormq.exceptions.ChannelAccessRefused):
                raise
            raise ConfigurationError(
                f"queue {self.name!r} has no {', '.join(names)}, in which failed messages wait, and this user may not "
                "declare them. Let an operator run `rabbitmqctl import_definitions FILE`, with this file: "
                f"{self._definitions(delays)}"
            ) from error
        _log(self.name).info("retry queues declared, all else is taken as it is", queues=names)

    def _definitions(self, delays: Sequence[timedelta]) -> str:
        """The definitions of retry queues, as `rabbitmqctl import_definitions` reads them."""
        common = {"vhost": self.vhost, "durable": True, "auto_delete": False}
        queues = [
            {"name": retry_queue(self.name, each), **common, "arguments": _waiting(self.name, each)} for each in delays
        ]
        return json.dumps({"queues": queues})

    async def _declare_retry_queue(
        self, channel: aio_pika.abc.AbstractChannel, delay: timedelta, timeout: float
    ) -> None:
        name = retry_queue(self.name, delay)
        await channel.declare_queue(name, durable=True, arguments=_waiting(self.name, delay), timeout=timeout)

    def _warn_of_silence(self) -> None:
        """Warn that nothing may ever arrive: AMQP does not say whether a queue is bound."""
        keys = [topic for topic in self.topics if isinstance(topic, str)]
        _log(self.name).warning(
            "the queue is empty, and nothing is bound to it here: is it bound? AMQP cannot tell",
            routing_keys=keys,
            cure=f"rabbitmqadmin declare binding source=EXCHANGE destination={shlex.quote(self.name)} "
            f"routing_key={shlex.quote(keys[0]) if keys else 'KEY'}",
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
        for name, arguments in declarations(self.name, self.delays, ordered=self.ordered).items():
            queue = await channel.declare_queue(name, durable=True, arguments=arguments, timeout=limit)
            for topic in self.topics if name == self.name else ():
                source, key = (exchange, topic) if isinstance(topic, str) else topic
                await queue.bind(source, routing_key=key, timeout=limit)

    def _explain_name(self, error: ValueError) -> str:
        accepted = "letters, digits and -_.:@#,/>< are accepted, 200 bytes"
        return f"OUTBOXKIT_QUEUE is {self.name!r}: {error}; {accepted}"

    def _explain(self, refusal: str) -> str:
        if "reserved prefix" in refusal:
            return f"OUTBOXKIT_QUEUE is {self.name!r}, and the broker reserves such names. Choose another one"
        delete = f"rabbitmqctl delete_queue -p {shlex.quote(self.vhost)} {shlex.quote(self.name)}"
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
        return f"the broker has queue {self.name!r}, or a retry queue of it, with other arguments: {refusal}. {cure}"


def _log(queue: str) -> structlog.typing.FilteringBoundLogger:
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger("outboxkit")
    return log.bind(process="consumer", queue=queue)
