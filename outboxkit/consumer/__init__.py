"""The consumer: delivery → inbox row → handler → commit → ack."""

from outboxkit.consumer.consumer import Consumed, Consumer
from outboxkit.consumer.decision import Decision, Policy, decide

__all__ = ["Consumed", "Consumer", "Decision", "Policy", "decide"]
