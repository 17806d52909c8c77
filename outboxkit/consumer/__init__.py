"""The consumer: delivery → inbox row → handler → commit → ack."""

from outboxkit.consumer.consumer import Concurrency, Consumer
from outboxkit.consumer.decisions import ConsumerPolicy
from outboxkit.consumer.reports import Consumed, Failure
from outboxkit.consumer.several import Consumers
from outboxkit.consumer.shards import ShardConsumer, ShardedConsumer

__all__ = [
    "Concurrency",
    "Consumed",
    "Consumer",
    "ConsumerPolicy",
    "Consumers",
    "Failure",
    "ShardConsumer",
    "ShardedConsumer",
]
