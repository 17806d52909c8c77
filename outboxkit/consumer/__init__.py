"""The consumer: delivery → inbox row → handler → commit → ack."""

from outboxkit.consumer.consumer import Consumed, Consumer, Pace
from outboxkit.consumer.decisions import Decision, Policy, decide
from outboxkit.consumer.reports import Failure

__all__ = ["Consumed", "Consumer", "Decision", "Failure", "Pace", "Policy", "decide"]
