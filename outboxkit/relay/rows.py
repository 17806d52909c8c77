"""Claimed rows, from the tuples that the driver reads."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outboxkit.envelope import from_claimed
from outboxkit.message import Message


@dataclass(slots=True, eq=False)
class ClaimedRow:
    """An outbox row that this relay holds locked. `unreadable` is the reason for which it cannot be published."""

    position: int
    attempts: int
    message: Message
    expires_at: datetime | None = None
    discard_unroutable: bool = False
    due_at: datetime | None = None
    reply: str | None = None
    unreadable: str | None = None


def read_claimed(rows: Iterable[tuple[Any, ...]]) -> list[ClaimedRow]:
    """Rows from tuples, in the order of `statements.claim.CLAIMED`."""
    batch = []
    for position, attempts, *values, expires_at, discard, due_at, reply in rows:
        message, unreadable = from_claimed(values)
        batch.append(ClaimedRow(position, attempts, message, expires_at, discard, due_at, reply, unreadable))
    return batch
