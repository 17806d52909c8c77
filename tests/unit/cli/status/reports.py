"""Reports as they could be read."""

from datetime import UTC, datetime, timedelta

from outboxkit.cli.status.report import (
    DeadLetterCounts,
    Holder,
    Inbox,
    Outbox,
    ParkedKeys,
    Published,
    Session,
    Sessions,
    Status,
    Vacuum,
)
from outboxkit.cli.wording import Count

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
RELAY = Session(4711, "outboxkit relay", NOW - timedelta(hours=2), "idle", "10.0.0.3")
SECRETIVE = Session(4712, "outboxkit consumer billing", None, None, None)
NONE = Count()
NO_KEYS = ParkedKeys()
NOBODY = Sessions((), (), ())
CALM = Vacuum(12, NOW, None)


def outbox(*, pending: Count = NONE, age: float | None = None, keys: ParkedKeys = NO_KEYS) -> Outbox:
    """An outbox with ready rows only."""
    return Outbox(pending, pending, NONE, NONE, NONE, age, None, {}, keys)


EMPTY = outbox()


def holder(kind: str = "session", *, seconds: float | None = 7200, transactions: int = 5) -> Holder:
    """What holds the oldest transaction."""
    since = None if seconds is None else NOW - timedelta(seconds=seconds)
    pid, state = (None, None) if kind in ("slot", "prepared") else (99, "idle in transaction")
    query_start = since if kind == "session" else None
    return Holder(kind, pid, "psql", state, since, query_start, seconds, transactions)


def status(
    *,
    outbox: Outbox = EMPTY,
    sessions: Sessions | None = NOBODY,
    vacuum: Vacuum | None = CALM,
    open_: int = 0,
    missing_right: str | None = None,
) -> Status:
    """A report without advice."""
    dead = DeadLetterCounts(Count(open_), (), NONE)
    empty = (Inbox(NONE, {}), dead, Published(NONE, None))
    return Status(2, outbox, *empty, sessions=sessions, vacuum=vacuum, missing_right=missing_right)
