"""The consumer: delivery → inbox row → handler → commit → ack."""

from outboxkit.consumer.consumer import Consumed, Consumer, Pace
from outboxkit.consumer.decision import Decision, Policy, decide

__all__ = ["Consumed", "Consumer", "Decision", "Pace", "Policy", "decide"]
