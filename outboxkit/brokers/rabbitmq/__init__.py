"""RabbitMQ through aio-pika: AMQP 0-9-1 with publisher confirms, mandatory publishes and quorum queues."""

from outboxkit.brokers.rabbitmq.publisher import RabbitPublisher
from outboxkit.brokers.rabbitmq.shards import ShardMove
from outboxkit.brokers.rabbitmq.subscriber import RabbitSubscriber

__all__ = ["RabbitPublisher", "RabbitSubscriber", "ShardMove"]
