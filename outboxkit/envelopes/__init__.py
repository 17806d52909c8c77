"""Envelopes of other systems: readers that turn what a foreign publisher sends into a `Message`. Pure.

A consumer asks its readers in their order, and reads what none of them knows as one of its own.
"""

from collections.abc import Callable, Mapping

from outboxkit.envelopes.celery import Celery
from outboxkit.envelopes.cloudevents import CloudEvents
from outboxkit.envelopes.debezium import DebeziumOutbox
from outboxkit.envelopes.envelope import Envelope, Reader
from outboxkit.envelopes.masstransit import MassTransit

__all__ = ["READERS", "Celery", "CloudEvents", "DebeziumOutbox", "Envelope", "MassTransit", "Reader"]

READERS: Mapping[str, Callable[[], Reader]] = {
    "cloudevents": CloudEvents,
    "celery": Celery,
    "masstransit": MassTransit,
    "debezium": DebeziumOutbox,
}
"""The readers that a setting can name."""
