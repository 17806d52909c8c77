"""Topology of a consumer: its queues, its exchange and its bindings, and the errors if RabbitMQ refuses one."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import aio_pika
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


@dataclass(frozen=True, slots=True)
class Queues:
    """The queues of one consumer and their bindings. `RabbitSubscriber` explains the attributes."""

    name: str
    exchange: str
    topics: Sequence[str]
    delays: Sequence[timedelta]
    ordered: bool
    vhost: str = "/"

    async def declare(self, channel: aio_pika.abc.AbstractChannel, timeout: float) -> None:
        """Declare and bind all of them, with `timeout` seconds for each answer.

        Raises:
            BrokerUnavailable: the connection was lost.
            ConfigurationError: a queue exists and is of another kind. The text says what to do.
        """
        try:
            with connection.convert_errors(f"cannot declare queue {self.name!r}"):
                await self._declare(channel, timeout)
        except BrokerUnavailable as error:
            if connection.is_permanent(error.__cause__):
                raise ConfigurationError(self._explain(str(error.__cause__))) from error
            raise
        except ValueError as error:
            accepted = "letters, digits and -_.:@#,/>< are accepted, 200 bytes"
            raise ConfigurationError(f"OUTBOXKIT_QUEUE is {self.name!r}: {error}; {accepted}") from error

    async def _declare(self, channel: aio_pika.abc.AbstractChannel, limit: float) -> None:
        dead, extra = dead_queue(self.name), {SINGLE_ACTIVE_CONSUMER: True} if self.ordered else {}
        exchange = await connection.declare_exchange(channel, self.exchange, timeout=limit)
        await channel.declare_queue(dead, durable=True, arguments={"x-queue-type": "quorum"}, timeout=limit)
        queue = await channel.declare_queue(self.name, durable=True, arguments=quorum(dead, **extra), timeout=limit)
        for topic in self.topics:
            await queue.bind(exchange, routing_key=topic, timeout=limit)
        for delay in self.delays:
            arguments = quorum(self.name, **{"x-message-ttl": round(delay.total_seconds() * 1000)})
            await channel.declare_queue(retry_queue(self.name, delay), durable=True, arguments=arguments, timeout=limit)

    def _explain(self, refusal: str) -> str:
        if "reserved prefix" in refusal:
            return f"OUTBOXKIT_QUEUE is {self.name!r}, and the broker reserves such names. Choose another one"
        delete = f"rabbitmqctl delete_queue -p {shlex.quote(self.vhost)} {shlex.quote(self.name)}"
        cure = f"Choose another OUTBOXKIT_QUEUE, or empty and delete that queue with: {delete}"
        if SINGLE_ACTIVE_CONSUMER in refusal:
            before, after = ("without", "with") if self.ordered else ("with", "without")
            cure = f"An existing queue cannot be changed in this: consume {before} --ordered (OUTBOXKIT_ORDERED) as "
            cure += "before, or stop its consumers, let it run empty, delete it "
            cure += f"({delete}) and start them again {after} --ordered"
        return f"the broker has queue {self.name!r}, or a retry queue of it, with other arguments: {refusal}. {cure}"
