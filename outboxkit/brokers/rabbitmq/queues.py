"""The queues of a consumer: their names, their arguments, and how they are declared."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
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
