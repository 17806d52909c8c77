"""The relay's side of RabbitMQ: persistent, mandatory, confirmed. None of the three can be turned off."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta

import aio_pika
import aiormq
from aio_pika.exceptions import DeliveryError, PublishError

from outboxkit.brokers import CONFIRMED, Receipt, Verdict
from outboxkit.brokers.rabbitmq import connection, wire
from outboxkit.errors import BrokerUnavailable
from outboxkit.message import Message


class RabbitPublisher:
    """Publishes to one durable topic exchange, which it declares.

    Args:
        url: `amqp://` or `amqps://`.
        exchange: its name.
        timeout: how long a batch may wait for its confirms, and a connection for its handshake.
        app_id: AMQP's `app_id` property of every message.
    """

    def __init__(
        self, url: str, *, exchange: str, timeout: timedelta = timedelta(seconds=10), app_id: str = "outboxkit"
    ) -> None:
        self._url = url
        self._exchange = exchange
        self._timeout = timeout.total_seconds()
        self._app_id = app_id
        self._connection: aio_pika.abc.AbstractConnection | None = None
        self._channel: aiormq.abc.AbstractChannel | None = None

    async def connect(self) -> None:
        """Open the connection and declare the exchange, unless that is done."""
        if self._channel is not None and not self._channel.is_closed:
            return
        await self.close()
        self._connection = await connection.connect(self._url, name="outboxkit relay", timeout=self._timeout)
        channel, wire_channel = await connection.open_channel(self._connection)
        with connection.converted(f"cannot declare exchange {self._exchange!r}"):
            await channel.declare_exchange(
                self._exchange, aio_pika.ExchangeType.TOPIC, durable=True, timeout=self._timeout
            )
        self._channel = wire_channel

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        """Publish a batch and await its confirms; after a timeout the connection is given up: its state is unknown."""
        channel = self._channel
        if channel is None or channel.is_closed:
            raise BrokerUnavailable("the connection to the broker is closed")
        receipts: list[Receipt] = [Receipt(Verdict.UNKNOWN, "the broker did not answer in time")] * len(batch)
        try:
            async with asyncio.timeout(self._timeout):
                for wave in _waves(batch):
                    await asyncio.gather(*(self._publish_one(channel, batch, index, receipts) for index in wave))
        except TimeoutError:
            await self.close()
        return receipts

    async def close(self) -> None:
        """Disconnect; a later `connect` opens anew."""
        gone, self._connection, self._channel = self._connection, None, None
        await connection.close(gone)

    async def _publish_one(
        self, channel: aiormq.abc.AbstractChannel, batch: Sequence[Message], index: int, receipts: list[Receipt]
    ) -> None:
        message = batch[index]
        try:
            await channel.basic_publish(
                message.payload,
                exchange=self._exchange,
                routing_key=message.routing_key,
                properties=wire.to_properties(message, app_id=self._app_id),
                mandatory=True,
            )
        except PublishError as error:
            reply = getattr(error.frame, "reply_text", None) or "NO_ROUTE"
            reason = (
                f"{reply}: no queue is bound to exchange {self._exchange!r} for routing key {message.routing_key!r}"
            )
            receipts[index] = Receipt(Verdict.UNROUTABLE, reason)
        except DeliveryError as error:
            receipts[index] = Receipt(Verdict.REJECTED, f"nacked by the broker: {connection.describe(error)}")
        except connection.AWAY as error:
            receipts[index] = Receipt(Verdict.UNKNOWN, connection.describe(error))
        except Exception as error:  # noqa: BLE001 - it never reached the wire, so it is about this message alone
            receipts[index] = Receipt(Verdict.REJECTED, f"cannot be written as AMQP: {connection.describe(error)}")
        else:
            receipts[index] = CONFIRMED


def _waves(batch: Sequence[Message]) -> Iterator[list[int]]:
    """The batch's indexes, split so that no id is twice in one wave, in order for each id.

    A returned message is told apart by its id alone: with two of one id in flight, a return of the first could be
    taken for one of the second, and the first, which reached no queue, for confirmed.
    """
    waves: list[list[int]] = []
    seen: dict[str, int] = {}
    for index, message in enumerate(batch):
        number = seen[message.id] = seen.get(message.id, -1) + 1
        if number == len(waves):
            waves.append([])
        waves[number].append(index)
    yield from waves
