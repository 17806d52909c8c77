"""Envelopes of other systems: readers that turn a foreign publisher's deliveries into `Message`s. Pure.

A consumer asks its readers in their order, and reads a delivery that none of them knows as one of its own.
"""

from collections.abc import Callable, Mapping

from outboxkit.codec.envelopes.cloudevents import CloudEvents
from outboxkit.codec.envelopes.envelope import Envelope, Reader, read_with
from outboxkit.errors import DecodeError

__all__ = ["READERS", "CloudEvents", "Envelope", "Reader", "reader_for"]

READERS: Mapping[str, Callable[[], Reader]] = {"cloudevents": CloudEvents}
"""The readers that a setting can name."""


def reader_for(envelope: Envelope) -> str | None:
    """The name of the built-in reader that knows the envelope, if one does."""
    for name, reader in READERS.items():
        try:
            if read_with((reader(),), envelope) is not None:
                return name
        except DecodeError:
            return name
    return None
