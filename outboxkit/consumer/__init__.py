"""The consumer: delivery → inbox row → handler → commit → ack.

`consumer` connects and waits out outages, `dispatcher` starts deliveries, `handle` takes one to its ack and `batch`
takes many, each in a transaction of `transactions` or, for a plain `def`, of `threads`. Decided without I/O: `routing`
(the handlers of a delivery), `key_queues` (which delivery may start), `decisions` (another attempt or a dead letter).
`attempts` writes those down, `reports` tells of them, `payload_memory` bounds the bytes of what is handled at once.
`several` and `shards` are consumers of many queues, `membership` their agreement; `direct` is the one without a broker.
"""

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
