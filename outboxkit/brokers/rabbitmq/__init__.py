"""RabbitMQ through aio-pika: AMQP 0-9-1 with publisher confirms, mandatory publishes and quorum queues.

`publisher` publishes a batch by its `plan`, on a `confirm_channel`, whose `confirms` tell what arrived. `subscriber`
has the queue and its `topology`, `incoming` the deliveries and their acks, `copies` publishes a delivery again.
`encode` and `decode` are the bytes, `connection` opens connections, `shards` divides an ordered queue, `rights` says
which right is missing.
"""

from outboxkit.brokers.rabbitmq.publisher import RabbitPublisher
from outboxkit.brokers.rabbitmq.shards import ShardMove
from outboxkit.brokers.rabbitmq.subscriber import RabbitSubscriber

__all__ = ["RabbitPublisher", "RabbitSubscriber", "ShardMove"]
