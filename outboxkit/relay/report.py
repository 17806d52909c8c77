"""The relay's reports: a log that repeats a line at most every few seconds, and the totals of a drain."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from outboxkit.relay.decisions import Reason, Settlement
from outboxkit.runtime.pauses import Pause

SECONDS = 5.0
"""After a line was written, further ones of its kind are only counted for so long."""
KINDS = 1000
"""The maximum number of kinds that are remembered; beyond it all counts are written, and the memory is cleared."""


@dataclass(slots=True)
class _Kind:
    written_at: float
    level: int = logging.WARNING
    event: str = ""
    fields: dict[str, Any] | None = None
    count: int = 0


class LimitedLog:
    """Writes the first line of a kind at once; of those that follow soon only the last one, with their count.

    Args:
        process: the process's name in the log, such as `relay`.
        monotonic: a monotonic clock in seconds, for tests.
    """

    def __init__(self, process: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._log = structlog.get_logger("outboxkit").bind(process=process)
        self._monotonic = monotonic
        self._kinds: dict[tuple[str, ...], _Kind] = {}

    def say(self, level: int, event: str, *kind: str, **fields: Any) -> None:
        """Write a line, or count it if one of the same event and kind was written lately."""
        now, name = self._monotonic(), (event, *kind)
        last = self._kinds.get(name)
        if last is None:
            if len(self._kinds) >= KINDS:
                self.flush(everything=True)
            self._kinds[name] = _Kind(now)
            self._log.log(level, event, **fields)
            return
        last.level, last.event, last.fields, last.count = level, event, fields, last.count + 1
        if now - last.written_at >= SECONDS:
            self._write(last, now)

    def flush(self, *, everything: bool = False) -> None:
        """Write the counts that are old enough, or all of them; forget kinds that did not come again."""
        now = self._monotonic()
        for name, last in list(self._kinds.items()):
            if not everything and now - last.written_at < SECONDS:
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
        published: messages that the broker confirmed.
        discarded: messages that no queue wanted and that were deleted for that.
        failed: how often each type could not be published, or was postponed, with the last reason.
        dead: how many messages of each type were given up, with the last reason.
        expired: messages that were too late to be published.
        blocked: due rows that are locked by another relay, or came back to wait. None if they could not be counted,
            because the drain was stopped while the database was away.
        later: rows that wait for a later time.
        paused: the pause that ended the drain, or kept it from beginning.
    """

    published: int = 0
    discarded: int = 0
    failed: dict[str, tuple[int, str]] = field(default_factory=dict)
    dead: dict[str, tuple[int, str]] = field(default_factory=dict)
    expired: int = 0
    blocked: int | None = 0
    later: int = 0
    paused: Pause | None = None

    @property
    def is_complete(self) -> bool:
        """Whether everything that was due has been published, has expired or was discarded, and no pause is on."""
        return not self.failed and not self.dead and self.blocked == 0 and self.paused is None

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
