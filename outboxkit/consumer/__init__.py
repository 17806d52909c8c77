"""The consumer: delivery → inbox row → handler → commit → ack."""

from outboxkit.consumer.consumer import Concurrency, Consumed, Consumer
from outboxkit.consumer.decisions import Decision, Policy, decide
from outboxkit.consumer.reports import Failure

__all__ = ["Concurrency", "Consumed", "Consumer", "Decision", "Failure", "Policy", "decide"]
