"""The entries of a message's life: what each table of a database says of it. Pure."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from outboxkit.operators.blockers import Blocker
from outboxkit.runtime.pauses import Pause

SHORTEST = timedelta(days=1)
"""The shortest time for which anybody keeps inbox rows and dead letters."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The properties of a message that a row of it has.

    Attributes:
        message_id, type, key, correlation_id, causation_id, created_at, queue, destination: as the columns.
        trace_id: that of its `traceparent` header.
    """

    message_id: str | None
    type: str | None
    key: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    created_at: datetime | None = None
    queue: str | None = None
    destination: str | None = None
    trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class Lock:
    """The session that has locked a row of the outbox; what this role may not see is None."""

    pid: int
    name: str | None
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A message of the same key that is before another one: a row of the outbox, or a dead letter with its number."""

    message_id: str | None
    position: int | None = None
    due_at: datetime | None = None
    attempts: int = 0
    error: str | None = None
    number: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The things that a row of the outbox may wait for.

    Attributes:
        lock: the session that has it locked.
        ready, held: the first rows of its key before it.
        parking: the dead letter that parks its key.
        ahead: ready rows of its destination before it, up to a limit.
        relays: relays that are connected to the database; None if that cannot be known.
        pause: of its destination's relay.
    """

    lock: Lock | None = None
    ready: Neighbour | None = None
    held: Neighbour | None = None
    parking: Neighbour | None = None
    ahead: int = 0
    relays: int | None = None
    pause: Pause | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A row of the outbox."""

    database: str
    message: Identity
    position: int
    due_at: datetime | None
    held: bool
    attempts: int
    last_error: str | None
    first_failed_at: datetime | None
    expires_at: datetime | None
    around: Surroundings = Surroundings()


@dataclass(frozen=True, slots=True)
class Kept:
    """A published message that is kept."""

    database: str
    message: Identity
    position: int
    published_at: datetime


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter; `number` is its id."""

    database: str
    message: Identity
    number: int
    side: str
    handler: str | None
    reason: str
    error: str | None
    attempts: int
    dead_at: datetime
    parked: bool = False
    position: int | None = None
    first_failed_at: datetime | None = None
    resolution: str | None = None
    resolved_at: datetime | None = None
    resolved_by: str | None = None


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """A row of the inbox: a handler has processed the message. `duration_ms` is None for 100 ms and less."""

    database: str
    message_id: str
    handler: str
    type: str
    processed_at: datetime
    attempts: int
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Crashes:
    """A crash record: starts of a message that have not ended, and failures in a consumer that keeps an order."""

    database: str
    message_id: str
    queue: str
    starts: int
    failures: int
    first_failed_at: datetime | None
    touched_at: datetime


@dataclass(frozen=True, slots=True)
class Registered:
    """A handler of a queue's consumer, with its types and the retention of its inbox if they are known."""

    handler: str
    queue: str
    types: tuple[str, ...] | None
    last_seen: datetime
    first_seen: datetime | None = None
    retention: timedelta | None = None


@dataclass(slots=True)
class Archive:
    """All that was found in one database, by the entries' own keys.

    Attributes:
        database: its address, without user and password.
        now: the time by its clock.
        waiting, kept, letters, handled, crashes: the entries.
        handlers: those that are registered.
        oldest_kept: when the oldest message that is kept was published; None if none is.
        payloads: for each id of several messages that wait or are kept, the number of different payloads.
        blockers: sessions for whose locks outboxkit's sessions wait.
        cut: for each table that was not searched to its end, what was left out.
    """

    database: str
    now: datetime
    waiting: dict[int, Waiting] = field(default_factory=dict)
    kept: dict[tuple[datetime, int], Kept] = field(default_factory=dict)
    letters: dict[int, Letter] = field(default_factory=dict)
    handled: dict[tuple[str, str], InboxEntry] = field(default_factory=dict)
    crashes: dict[tuple[str, str], Crashes] = field(default_factory=dict)
    handlers: tuple[Registered, ...] = ()
    oldest_kept: datetime | None = None
    cut: dict[str, str] = field(default_factory=dict)
    payloads: dict[str, int] = field(default_factory=dict)
    blockers: tuple[Blocker, ...] = ()

    def identities(self) -> list[Identity]:
        """Those of all rows that have one."""
        rows: list[Waiting | Kept | Letter] = [*self.waiting.values(), *self.kept.values(), *self.letters.values()]
        return [row.message for row in rows]

    def may_have_forgotten(self, born: datetime | None) -> bool:
        """Whether a message of this time, or of an unknown one, may be older than the inbox rows that are kept."""
        retentions = [each.retention for each in self.handlers] or [SHORTEST]
        return any(born is None or each is None or self.now - born >= each for each in retentions)
