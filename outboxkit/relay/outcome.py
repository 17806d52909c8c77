"""What the relay tells: its log, and the sum of a drain."""

import logging
from dataclasses import dataclass, field

import structlog

from outboxkit.relay.settlement import Reason, Settlement
from outboxkit.relay.telling import LimitedLog


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
