"""Messages that consumers try again, by queue, handler and error."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from outboxkit.errors.figures import COUNTED, Count
from outboxkit.statements import status

MOST_GROUPS = 20


@dataclass(frozen=True, slots=True)
class Retried:
    """Messages of one handler that failed with one error, at least twice.

    Attributes:
        attempt: the highest number of an attempt that failed.
        next_at: when the first of them is tried again.
    """

    queue: str
    handler: str | None
    error: str
    type: str | None
    message_id: str
    messages: Count
    attempt: int
    next_at: datetime | None


def read_retried(connection: Connection) -> tuple[Retried, ...]:
    """The groups, the largest first."""
    rows = connection.execute(status.retried(), {"limit": COUNTED + 1, "most": MOST_GROUPS}).all()
    at_least = sum(row.rows for row in rows) > COUNTED
    return tuple(
        Retried(
            *(row.queue, row.handler, row.error, row.type, row.message_id),
            *(Count(row.rows, at_least=at_least), row.attempt, row.next_at),
        )
        for row in rows
    )
