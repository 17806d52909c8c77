"""Messages for an HTTP destination and their verdicts, and subscribers of the broker's queue."""

from collections.abc import Callable
from typing import Any

from outboxkit import Message
from outboxkit.brokers import Receipt
from outboxkit.brokers.http import HttpPublisher
from outboxkit.brokers.rabbitmq import RabbitSubscriber
from tests.support.delays import DELAYS
from tests.support.plain_client import PlainClient

Make = Callable[..., HttpPublisher]


async def publish(publisher: HttpPublisher, *messages: Message) -> list[Receipt]:
    await publisher.connect()
    return list(await publisher.publish(messages))


def made(id_: object = 1, **more: Any) -> Message:
    return Message(**{"id": str(id_), "type": "ChargeCard", "payload": b"{}", **more})


def verdicts(receipts: list[Receipt]) -> list[str]:
    return [str(receipt.verdict) for receipt in receipts]


def subscriber_of(broker: PlainClient, **options: Any) -> RabbitSubscriber:
    return RabbitSubscriber(
        broker.url, broker.queue, exchange=broker.exchange, topics=["OrderConfirmed"], delays=DELAYS, **options
    )
