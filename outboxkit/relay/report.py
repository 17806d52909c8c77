"""What the relay reports: its log, which says the same thing once every few seconds, and the totals of a drain."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from outboxkit.relay.decisions import Reason, Settlement

SECONDS = 5.0
"""How long lines of one kind are only counted after one of them was written."""
KINDS = 1000
"""How many kinds are remembered; where there are more, what was counted is written and remembering starts anew."""


@dataclass(slots=True)
class _Kind:
    written_at: float
    level: int = logging.WARNING
    event: str = ""
    fields: dict[str, Any] | None = None
    count: int = 0


class LimitedLog:
    """Writes the first line of a kind at once; of those that follow soon the last one, with how many they were.

    Args:
        process: the name for the log, such as `relay`.
        monotonic: seconds, for tests.
    """

    def __init__(self, process: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._log = structlog.get_logger("outboxkit").bind(process=process)
        self._monotonic = monotonic
        self._kinds: dict[tuple[str, ...], _Kind] = {}

    def say(self, level: int, event: str, *kind: str, **fields: Any) -> None:
        """Write a line, or count it: lines of one event and one kind are alike."""
        now, name = self._monotonic(), (event, *kind)
        known = self._kinds.get(name)
        if known is None:
            if len(self._kinds) >= KINDS:
                self.flush(everything=True)
            self._kinds[name] = _Kind(now)
            self._log.log(level, event, **fields)
            return
        known.level, known.event, known.fields, known.count = level, event, fields, known.count + 1
        if now - known.written_at >= SECONDS:
            self._write(known, now)

    def flush(self, *, everything: bool = False) -> None:
        """Write what was counted for long enough, or all of it; forget what did not come again."""
        now = self._monotonic()
        for name, known in list(self._kinds.items()):
            if not everything and now - known.written_at < SECONDS:
                continue
            if known.count:
                self._write(known, now)
            else:
                del self._kinds[name]
        if everything:
            self._kinds.clear()

    def _write(self, known: _Kind, now: float) -> None:
        repeated = {"count": known.count} if known.count > 1 else {}
        self._log.log(known.level, known.event, **(known.fields or {}), **repeated)
        known.written_at, known.count, known.fields = now, 0, None


@dataclass(slots=True)
class Drained:
    """What `drain` did.

    Attributes:
        published: messages that the broker confirmed.
        discarded: messages that no queue wanted and that were to be forgotten then.
        failed: how often each type could not be published, or was postponed, with the last reason.
        dead: how many messages of each type were given up, with the last reason.
        expired: messages that were too late to be published.
        held: due rows that another relay holds, or that came back to wait; None where the database was away when the
            drain was stopped, so that nobody knows.
        later: rows that wait for a later time.
    """

    published: int = 0
    discarded: int = 0
    failed: dict[str, tuple[int, str]] = field(default_factory=dict)
    dead: dict[str, tuple[int, str]] = field(default_factory=dict)
    expired: int = 0
    held: int | None = 0
    later: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether everything that was due has been published, or was given up as expired or unwanted."""
        return not self.failed and not self.dead and self.held == 0

    def add(self, settled: Settlement) -> None:
        """Count what became of one batch."""
        self.published += len(settled.published)
        self.discarded += len(settled.discarded)
        for row in settled.failed:
            self.failed[row.message.type] = (self.failed.get(row.message.type, (0, ""))[0] + 1, row.reason)
        self.expired += sum(row.reason is Reason.EXPIRED for row in settled.dead)
        for gone in (row for row in settled.dead if row.reason is not Reason.EXPIRED):
            self.dead[gone.message.type] = (self.dead.get(gone.message.type, (0, ""))[0] + 1, gone.error)


def report(settlement: Settlement, log: LimitedLog) -> None:
    """Log what failed or was given up: a line for each type and reason every few seconds; batches are for debugging."""
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
