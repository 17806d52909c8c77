"""Messages for an HTTP destination and their verdicts; subscribers of the broker's queue and what they receive."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from outboxkit import Message
from outboxkit.brokers import Receipt
from outboxkit.brokers.http import HttpPublisher
from outboxkit.brokers.rabbitmq import RabbitSubscriber
from outboxkit.brokers.rabbitmq.incoming import RabbitDelivery
from tests.support.delays import DELAYS
from tests.support.plain_client import PlainClient

Make = Callable[..., HttpPublisher]


async def publish(publisher: HttpPublisher, *messages: Message) -> list[Receipt]:
    await publisher.connect()
    return list(await publisher.publish(messages))


def made(id_: object = 1, **more: Any) -> Message:
    return Message(**{"id": str(id_), "type": "ChargeCard", "payload": b"{}", **more})


def verdicts(receipts: Sequence[Receipt]) -> list[str]:
    return [str(receipt.verdict) for receipt in receipts]


def subscriber_of(broker: PlainClient, queue: str | None = None, **options: Any) -> RabbitSubscriber:
    """A subscriber of the client's queue, unless another one is named."""
    chosen = {"url": broker.url, "exchange": broker.exchange, "topics": ["OrderConfirmed"], "delays": DELAYS} | options
    return RabbitSubscriber(chosen.pop("url"), queue or broker.queue, **chosen)


def send(broker: PlainClient, *ids: str, topic: str = "OrderConfirmed", **properties: Any) -> None:
    """Publish messages with these ids as any client does."""
    for id_ in ids:
        broker.publish(b"{}", topic=topic, message_id=id_, type="OrderConfirmed", **properties)


async def next_delivery(subscriber: RabbitSubscriber) -> RabbitDelivery:
    delivery = await asyncio.wait_for(subscriber.receive(), 60)
    assert delivery is not None
    return delivery
