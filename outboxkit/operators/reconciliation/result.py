"""The question and the answer of a reconciliation. Pure."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from outboxkit.message import DEFAULT_DESTINATION

FEW = 5
"""Ids with different payloads that a result names."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The messages and handlers to reconcile.

    Attributes:
        since, until: messages published at `since` or later, and before `until`.
        margin: a message that was published so shortly ago may be in flight.
        handlers: only these; if empty, all.
        types: only messages of these types; if empty, all. With `handlers`, each of them takes each of these types.
        destination: the destination that they were published to.
    """

    since: datetime
    until: datetime
    margin: timedelta
    handlers: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    destination: str = DEFAULT_DESTINATION


@dataclass(slots=True)
class HandlerTally:
    """The messages of one handler, by what became of them.

    Attributes:
        handler: its name.
        queues: the queues whose consumers have it; none if that is not known.
        expected: messages that it takes: the sum of the others.
        processed: those that it has handled, or that were discarded for it.
        dead: those with an open dead letter.
        waiting: those with a crash record, or whose dead letter was replayed a moment ago.
        in_flight: others that were published within the margin.
        missing: all others.
    """

    handler: str
    queues: tuple[str, ...] = ()
    expected: int = 0
    processed: int = 0
    dead: int = 0
    waiting: int = 0
    in_flight: int = 0
    missing: int = 0


@dataclass(slots=True)
class Reconciled:
    """The result.

    Attributes:
        since, until: the period, by the producer's clock.
        in_flight_since: messages published later may be in flight.
        published: kept messages of the period.
        first, last: when the first and the last of them was published.
        oldest_kept: when the oldest message that is kept at all was published; None if none is.
        handlers: a tally for each handler.
        without_handler: the number of messages of each type that no handler is known to take.
        ambiguous_ids: ids that were published with different payloads: an inbox takes one message of each.
        ambiguous: a few of these, each with the number of its messages.
    """

    since: datetime
    until: datetime
    in_flight_since: datetime
    published: int = 0
    first: datetime | None = None
    last: datetime | None = None
    oldest_kept: datetime | None = None
    handlers: dict[str, HandlerTally] = field(default_factory=dict)
    without_handler: Counter[str] = field(default_factory=Counter)
    ambiguous_ids: int = 0
    ambiguous: dict[str, int] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """The number of all that is missing."""
        return sum(tally.missing for tally in self.handlers.values())

    def note_ambiguous(self, ids: dict[str, int]) -> None:
        """Count ids with different payloads, and keep the first few."""
        self.ambiguous_ids += len(ids)
        for id_ in sorted(ids)[: FEW - len(self.ambiguous)]:
            self.ambiguous[id_] = ids[id_]
