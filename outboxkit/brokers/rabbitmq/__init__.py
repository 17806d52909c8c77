"""RabbitMQ through aio-pika: AMQP 0-9-1 with publisher confirms, mandatory publishes and quorum queues."""

from outboxkit.brokers.rabbitmq.publisher import RabbitPublisher
from outboxkit.brokers.rabbitmq.subscriber import RabbitSubscriber
from outboxkit.brokers.rabbitmq.to_queue import QueuePublisher

__all__ = ["QueuePublisher", "RabbitPublisher", "RabbitSubscriber"]
