"""The relay's measurements: what is recorded of each batch, once for the batch, if anybody collects."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from outboxkit.brokers import Publisher, Verdict
from outboxkit.relay.decisions import Reason, Settlement
from outboxkit.relay.order import ClaimedRow
from outboxkit.telemetry import catalogue, metrics

OUTCOMES = ("published", "unroutable", "rejected", "postponed", "discarded", "dead")
"""The outcomes of a message at the relay, each time that it is tried."""
SAMPLE = 16
"""The maximum number of messages of a batch whose lag is recorded: one costs a twentieth of a message's time."""


class RelayMeasurements:
    """Records the steps of a relay and the fates of its messages.

    Args:
        publisher: of these messages.
        destination: theirs.
    """

    def __init__(self, publisher: Publisher, destination: str) -> None:
        self._destination = destination
        self._types, self._begun = metrics.BoundedNames(), set[str]()
        self._attributes = {
            catalogue.SYSTEM: publisher.system,
            catalogue.PLACE: publisher.exchange or destination,
            catalogue.OPERATION: "publish",
        }

    def begin(self) -> None:
        """Have the counters of this relay begin at 0; those of a type begin when it is first seen."""
        errors = (Verdict.UNROUTABLE, Verdict.REJECTED, Verdict.POSTPONED, Verdict.UNKNOWN)
        sent = [self._attributes | {catalogue.ERROR: str(error)} for error in errors]
        metrics.begin_at_zero(catalogue.SENT, self._attributes, *sent)
        self._begin_type(catalogue.OTHER)

    def _begin_type(self, type_: str) -> None:
        if type_ not in self._begun:
            self._begun.add(type_)
            metrics.begin_at_zero(catalogue.RELAY_MESSAGES, *(self._fate(type_, outcome) for outcome in OUTCOMES))

    def _fate(self, type_: str, outcome: str) -> dict[str, str]:
        return {"type": type_, "destination": self._destination, "outcome": outcome}

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Record the block, which publishes a batch, and its error if it raises one."""
        started, error = time.perf_counter(), {}
        try:
            yield
        except Exception as raised:
            error = {catalogue.ERROR: type(raised).__name__}
            raise
        finally:
            seconds = time.perf_counter() - started
            metrics.measure(catalogue.OPERATION_DURATION, seconds, self._attributes | error)
            metrics.measure(catalogue.RELAY_STEP_DURATION, seconds, {"step": "publish"})

    def claimed(self, seconds: float) -> None:
        """Record a claim that has found rows."""
        metrics.measure(catalogue.RELAY_STEP_DURATION, seconds, {"step": "claim"})

    def answered(self, rows: Sequence[ClaimedRow], settlement: Settlement, *, now: datetime) -> None:
        """Record the answers to a batch, before it is settled: what was sent, and the lag of confirmed messages."""
        if not metrics.is_on():
            return
        errors = Counter({"": len(settlement.published), str(Verdict.UNKNOWN): len(settlement.unknown)})
        for outcome, _, count in _fates(rows, settlement):
            if outcome not in ("published", "dead"):
                errors["unroutable" if outcome == "discarded" else outcome] += count
        errors.update(str(dead.reason) for dead in settlement.dead if dead.reason is not Reason.EXPIRED)
        for error, count in errors.items():
            if count:
                attributes = self._attributes | ({catalogue.ERROR: error} if error else {})
                metrics.measure(catalogue.SENT, count, attributes)
        for row in _sample(rows, settlement):
            if (since := _waits_since(row)) is not None:
                metrics.measure(catalogue.RELAY_LAG, max(0.0, (now - since).total_seconds()))

    def settled(self, rows: Sequence[ClaimedRow], settlement: Settlement, seconds: float) -> None:
        """Record a settlement that was committed."""
        if not metrics.is_on():
            return
        metrics.measure(catalogue.RELAY_STEP_DURATION, seconds, {"step": "settle"})
        counts = Counter[tuple[str, str]]()
        for outcome, type_, count in _fates(rows, settlement):
            counts[outcome, self._types(type_)] += count
        for (outcome, type_), count in counts.items():
            self._begin_type(type_)
            metrics.measure(catalogue.RELAY_MESSAGES, count, self._fate(type_, outcome))


def _fates(rows: Sequence[ClaimedRow], settlement: Settlement) -> Iterable[tuple[str, str, int]]:
    """Outcome, type and number of messages. A row that is in no list of the settlement is not counted."""
    dead = [("dead", each.message.type, 1) for each in settlement.dead]
    if len(settlement.published) == len(rows):
        types_sent = Counter(row.message.type for row in rows)
        return [*(("published", type_, count) for type_, count in types_sent.items()), *dead]
    types = {row.position: row.message.type for row in rows}
    return [
        *(("published", types[position], 1) for position in settlement.published),
        *(("discarded", types[position], 1) for position in settlement.discarded),
        *((row.reason.partition(":")[0], row.message.type, 1) for row in settlement.failed),
        *dead,
    ]


def _sample(rows: Sequence[ClaimedRow], settlement: Settlement) -> Sequence[ClaimedRow]:
    """Some of the rows that were published, evenly spread."""
    if len(settlement.published) < len(rows):
        published = set(settlement.published)
        rows = [row for row in rows if row.position in published]
    return rows[:: -(-len(rows) // SAMPLE)] if rows else rows


def _waits_since(row: ClaimedRow) -> datetime | None:
    """The moment from which it could be published; a delay on purpose does not count, a retry does."""
    return row.due_at if row.due_at is not None and not row.attempts else row.message.created_at
