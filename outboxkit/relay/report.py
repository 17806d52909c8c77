"""The relay's reports: a log that repeats a line at most every few seconds, the totals of a drain, and metrics."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog

from outboxkit.brokers import Publisher, Verdict
from outboxkit.relay.decisions import Reason, Settlement
from outboxkit.relay.order import ClaimedRow
from outboxkit.runtime.pauses import Pause
from outboxkit.telemetry import catalogue, metrics

REPEAT_SECONDS = 5.0
"""After a line was written, further ones of its kind are only counted for so long."""
MOST_KINDS = 1000
"""The maximum number of kinds that are remembered; beyond it all counts are written, and the memory is cleared."""


@dataclass(slots=True)
class _Kind:
    written_at: float
    level: int = logging.WARNING
    event: str = ""
    fields: dict[str, Any] | None = None
    count: int = 0


class LimitedLog:
    """Writes the first line of a kind at once; of those that follow soon only the last one, with their count."""

    def __init__(self, process: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._log = structlog.get_logger("outboxkit").bind(process=process)
        self._monotonic = monotonic
        self._kinds: dict[tuple[str, ...], _Kind] = {}

    def say(self, level: int, event: str, *kind: str, **fields: Any) -> None:
        """Write a line, or count it if one of the same event and kind was written lately."""
        now, name = self._monotonic(), (event, *kind)
        last = self._kinds.get(name)
        if last is None:
            if len(self._kinds) >= MOST_KINDS:
                self.flush(everything=True)
            self._kinds[name] = _Kind(now)
            self._log.log(level, event, **fields)
            return
        last.level, last.event, last.fields, last.count = level, event, fields, last.count + 1
        if now - last.written_at >= REPEAT_SECONDS:
            self._write(last, now)

    def flush(self, *, everything: bool = False) -> None:
        """Write the counts that are old enough, or all of them; forget kinds that did not come again."""
        now = self._monotonic()
        for name, last in list(self._kinds.items()):
            if not everything and now - last.written_at < REPEAT_SECONDS:
                continue
            if last.count:
                self._write(last, now)
            else:
                del self._kinds[name]
        if everything:
            self._kinds.clear()

    def _write(self, last: _Kind, now: float) -> None:
        repeated = {"count": last.count} if last.count > 1 else {}
        self._log.log(last.level, last.event, **(last.fields or {}), **repeated)
        last.written_at, last.count, last.fields = now, 0, None


@dataclass(slots=True)
class Drained:
    """The totals of one `drain`.

    Attributes:
        discarded: messages that no queue wanted and that were deleted for that.
        failed: how often each type failed or was postponed, to be tried again, with the last reason.
        dead: how many messages of each type were given up, with the last reason.
        blocked: due rows that are locked by another relay, or came back to wait. None if they could not be counted,
            because the drain was stopped while the database was away.
        paused: the pause that ended the drain, or kept it from beginning.
        away: the peer that was away when the drain was stopped, with its error.
        stopped: whether the drain was stopped before it found nothing more to do.
    """

    published: int = 0
    discarded: int = 0
    failed: dict[str, tuple[int, str]] = field(default_factory=dict)
    dead: dict[str, tuple[int, str]] = field(default_factory=dict)
    expired: int = 0
    blocked: int | None = 0
    later: int = 0
    paused: Pause | None = None
    away: str | None = None
    stopped: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether everything that was due has been published, has expired or was discarded, and nothing held it up."""
        is_held_up = self.paused is not None or self.away is not None
        return not self.failed and not self.dead and self.blocked == 0 and not is_held_up

    def add(self, settled: Settlement) -> None:
        """Add the counts of one batch."""
        self.published += len(settled.published)
        self.discarded += len(settled.discarded)
        for row in settled.failed:
            self.failed[row.message.type] = (self.failed.get(row.message.type, (0, ""))[0] + 1, row.reason)
        self.expired += sum(row.reason is Reason.EXPIRED for row in settled.dead)
        for dead in (row for row in settled.dead if row.reason is not Reason.EXPIRED):
            self.dead[dead.message.type] = (self.dead.get(dead.message.type, (0, ""))[0] + 1, dead.error)


def report(settlement: Settlement, log: LimitedLog) -> None:
    """Log failed and dead rows, a line for each type and reason every few seconds; whole batches at debug level."""
    for row in settlement.failed:
        log.say(
            logging.WARNING if row.failures else logging.INFO,
            "message not published" if row.failures else "message postponed by its destination",
            *(row.message.type, row.reason),
            message_id=row.message.id,
            type=row.message.type,
            attempts=row.attempts,
            reason=row.reason,
            due_at=row.due_at.isoformat(timespec="seconds"),
        )
    for dead in settlement.dead:
        log.say(
            logging.ERROR,
            "message set aside as a dead letter",
            *(dead.message.type, dead.error),
            message_id=dead.message.id,
            type=dead.message.type,
            key=dead.message.key,
            reason=str(dead.reason),
            error=dead.error,
            key_is_parked=dead.parked,
        )
    if settlement.published or settlement.discarded:
        structlog.get_logger("outboxkit").bind(process="relay").debug(
            "batch published", messages=len(settlement.published), discarded=len(settlement.discarded)
        )


OUTCOMES = ("published", "unroutable", "rejected", "postponed", "discarded", "dead")
"""The outcomes of a message at the relay, each time that it is tried."""
LAG_SAMPLE = 16
"""The maximum number of messages of a batch whose lag is recorded: one costs a twentieth of a message's time."""


class RelayMeasurements:
    """Records the steps of a relay and the fates of its messages."""

    def __init__(self, publisher: Publisher, destination: str) -> None:
        self._destination = destination
        self._types, self._begun = metrics.BoundedNames(), set[str]()
        self._attributes = {
            catalogue.SYSTEM: publisher.system,
            catalogue.ADDRESS: publisher.exchange or destination,
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
        """Record the block, which publishes a batch."""
        started = time.perf_counter()
        try:
            yield
        finally:
            metrics.measure(catalogue.RELAY_STEP_DURATION, time.perf_counter() - started, {"step": "publish"})

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
    return rows[:: -(-len(rows) // LAG_SAMPLE)] if rows else rows


def _waits_since(row: ClaimedRow) -> datetime | None:
    """The moment from which it could be published; a delay on purpose does not count, a retry does."""
    return row.due_at if row.due_at is not None and not row.attempts else row.message.created_at
