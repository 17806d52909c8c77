"""The report of `outboxkit status`; `--json` prints these names."""

from dataclasses import dataclass, field
from datetime import datetime

from outboxkit.cli.wording import NOTHING, Count
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.blockers import Blocker
from outboxkit.operators.hanging import HangingRun
from outboxkit.runtime.known_handlers import SharedName
from outboxkit.runtime.pauses import Pause
from outboxkit.runtime.pauses.holding import Holding


@dataclass(frozen=True)
class OfType:
    """The rows of one message type: all, and those that the broker refused at least once."""

    pending: Count
    failed_before: Count


@dataclass(frozen=True)
class ParkedKey:
    """A key with a dead letter that its later messages of the same destination wait for."""

    key: str | None
    waiting: Count
    dead: Count
    destination: str = DEFAULT_DESTINATION


@dataclass(frozen=True)
class ParkedKeys:
    """The number of parked keys, those with the most waiting messages, and the number of the others."""

    count: Count = NOTHING
    top: tuple[ParkedKey, ...] = ()
    more: Count = NOTHING


@dataclass(frozen=True)
class OfDestination:
    """The rows of one destination by state; `oldest_age_seconds` and `next_due` as of the whole outbox."""

    pending: Count
    ready: Count
    delayed: Count
    held: Count
    parked: Count
    oldest_age_seconds: float | None
    next_due: datetime | None = None


@dataclass(frozen=True)
class Retried:
    """Messages to a destination that wait for their retry: how many, and the latest error."""

    destination: str
    waiting: Count
    last_error: str


@dataclass(frozen=True)
class Outbox:
    """Rows by state; `oldest_age_seconds` is how long the oldest one that should be gone has waited.

    `by_destination` is empty if there is no destination but `default`.
    """

    pending: Count
    ready: Count
    delayed: Count
    held: Count
    parked: Count
    oldest_age_seconds: float | None
    next_due: datetime | None
    by_type: dict[str, OfType]
    parked_keys: ParkedKeys
    by_destination: dict[str, OfDestination] = field(default_factory=dict)
    retried: tuple[Retried, ...] = ()


@dataclass(frozen=True)
class Inbox:
    """Processed messages that the inbox remembers, by handler."""

    processed: Count
    by_handler: dict[str, Count]
    shared_names: tuple[SharedName, ...] = ()


@dataclass(frozen=True)
class OfReason:
    """Open dead letters of one side and reason."""

    side: str
    reason: str
    count: Count


@dataclass(frozen=True)
class DeadLetterCounts:
    """Open ones by side and reason; resolved ones were replayed or discarded."""

    open: Count
    by_reason: tuple[OfReason, ...]
    resolved: Count


@dataclass(frozen=True)
class Published:
    """Messages that are kept after they were published."""

    kept: Count
    oldest: datetime | None


@dataclass(frozen=True)
class Idempotency:
    """Requests with an idempotency key whose answers are remembered."""

    remembered: Count = NOTHING


@dataclass(frozen=True)
class Effects:
    """Effects of which nobody knows whether they happened: started, and neither an end nor a lease any more."""

    unknown: Count = NOTHING


@dataclass(frozen=True)
class Session:
    """A connection of one of outboxkit's processes; what this role may not see is null.

    `open_since` is when its transaction began; null if it has none.
    """

    pid: int
    name: str
    since: datetime | None
    state: str | None
    address: str | None
    open_since: datetime | None = None


@dataclass(frozen=True)
class Sessions:
    """Connections to this database, by the kind of process."""

    relays: tuple[Session, ...]
    consumers: tuple[Session, ...]
    others: tuple[Session, ...]


@dataclass(frozen=True)
class Holder:
    """The holder of the oldest transaction: a session, a standby, a replication slot or a prepared transaction."""

    kind: str
    pid: int | None
    name: str | None
    state: str | None
    since: datetime | None
    query_start: datetime | None
    seconds: float | None
    transactions: int


@dataclass(frozen=True)
class Vacuum:
    """Rows of the outbox that vacuum has to remove, and the oldest transaction, whose view it must spare."""

    dead_rows: int
    last_vacuum: datetime | None
    oldest_transaction: Holder | None


@dataclass(frozen=True)
class Status:
    """All of it. Values that only PostgreSQL has are null on SQLite."""

    schema_version: int
    outbox: Outbox
    inbox: Inbox
    dead_letters: DeadLetterCounts
    published: Published
    idempotency: Idempotency = Idempotency()
    effects: Effects = Effects()
    sessions: Sessions | None = None
    vacuum: Vacuum | None = None
    missing_right: str | None = None
    database: str | None = None
    broker: str | None = None
    paused: tuple[Pause, ...] = ()
    holding: tuple[Holding, ...] = ()
    hanging: tuple[HangingRun, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    missing_parts: tuple[str, ...] = ()
    advice: tuple[str, ...] = field(default=())
