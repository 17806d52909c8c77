"""The status of a database: the findings that explain why messages wait, and figures, each counted up to a limit."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import itemgetter
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from outboxkit import schema, statements
from outboxkit.errors import SchemaError
from outboxkit.errors.figures import COUNTED, NOTHING, Count, counted, total
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.doctor.examine import OF_MESSAGES, examine_database, worst_first
from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.findings import Diagnosis
from outboxkit.operators.retries import Retried, read_retried
from outboxkit.runtime import urls
from outboxkit.runtime.pauses import Pause, read_pauses
from outboxkit.runtime.workers import CONSUMER, KnownWorker, read_workers
from outboxkit.statements.dialects import is_server, snapshot_options

LIMIT = {"limit": COUNTED + 1}
MOST_NAMES = 100
"""Destinations, and handlers, that are counted one by one; what belongs to others is not counted."""
STATES = ("ready", "delayed", "held", "parked")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class OfType:
    """The rows of one message type: all, and those that the broker refused at least once."""

    pending: Count
    failed_before: Count


@dataclass(frozen=True)
class OfDestination:
    """Rows by state; `oldest_age_seconds` is how long the oldest one that should be gone has waited."""

    pending: Count
    ready: Count
    delayed: Count
    held: Count
    parked: Count
    oldest_age_seconds: float | None
    next_due: datetime | None
    last_due: datetime | None


@dataclass(frozen=True)
class Outbox(OfDestination):
    """The rows of all destinations.

    `by_destination` is empty if there is no destination but `default`. Later messages of `parked_keys` wait for a dead
    letter.
    """

    by_type: Mapping[str, OfType]
    parked_keys: Count
    by_destination: Mapping[str, OfDestination]


@dataclass(frozen=True)
class Inbox:
    """Processed messages that the inbox remembers, by handler."""

    processed: Count
    by_handler: Mapping[str, Count]


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
class History:
    """Messages that are kept after they were published, requests whose answers are, and effects of unknown result."""

    published: Count
    oldest_published: datetime | None
    requests: Count
    unknown_effects: Count


@dataclass(frozen=True)
class Vacuum:
    """Rows of the outbox that vacuum has to remove, and when it did so last."""

    dead_rows: int
    last_vacuum: datetime | None


@dataclass(frozen=True)
class Figures:
    """The figures of the tables. Values that only PostgreSQL has are null on SQLite.

    Handlers are registered for `unconsumed` queues, none of which has a consumer now. A file does not tell.
    """

    schema_version: int
    outbox: Outbox
    inbox: Inbox
    dead_letters: DeadLetterCounts
    history: History
    paused: tuple[Pause, ...] = ()
    retried: tuple[Retried, ...] = ()
    workers: tuple[KnownWorker, ...] = ()
    unconsumed: tuple[str, ...] = ()
    vacuum: Vacuum | None = None


@dataclass(frozen=True)
class Status:
    """All of it; `--json` prints these names. Without tables that can be read there are no figures."""

    database: str
    broker: str
    advice: tuple[Diagnosis, ...]
    figures: Figures | None


async def read_status(installation: Installation) -> Status:
    """The status. It never fails: the advice says why figures cannot be read."""
    side = await examine_database(installation, OF_MESSAGES)
    figures = None
    if "database: connection" in side.passed:
        try:
            async with installation.opened() as connection:
                await connection.execution_options(**snapshot_options(connection.dialect.name))
                now = installation.clock()
                figures = await connection.run_sync(read_figures, now)
        except (SchemaError, SQLAlchemyError):
            figures = None  # a finding names the tables that are missing or locked
    settings = installation.settings
    database, broker = (urls.shown(url.get_secret_value()) for url in (settings.database_url, settings.broker_url))
    return Status(database, broker, worst_first(side.findings), figures)


def read_figures(connection: Connection, now: datetime) -> Figures:
    """The figures, from one snapshot if the transaction is one, so that a row that is moved meanwhile is counted once.

    Raises:
        SchemaError: the tables are missing or old, or a table or column is missing.
    """
    schema.check_readable(connection)
    if is_server(connection.dialect.name):
        connection.execute(statements.status.forbid_sorting())
    workers = read_workers(connection)
    figures = Figures(
        schema_version=schema.installed(connection),
        outbox=_outbox(connection, now),
        inbox=_inbox(connection),
        dead_letters=_dead_letters(connection),
        history=_history(connection, now),
        paused=tuple(read_pauses(connection)),
        retried=read_retried(connection),
        workers=workers,
    )
    if not is_server(connection.dialect.name):
        return figures
    dead_rows, last_vacuum = connection.execute(statements.activity.vacuum()).one_or_none() or (0, None)
    unconsumed = _unconsumed(connection, {each.name for each in workers if each.kind == CONSUMER})
    return replace(figures, vacuum=Vacuum(dead_rows, last_vacuum), unconsumed=unconsumed)


def _unconsumed(connection: Connection, consumed: Collection[str]) -> tuple[str, ...]:
    known = connection.execute(statements.handlers.of_all_queues())
    return tuple(row.queue for row in known if row.last_seen > statements.handlers.NEVER and row.queue not in consumed)


def _inbox(connection: Connection) -> Inbox:
    names = connection.execute(statements.status.handlers(), {"most": MOST_NAMES + 1}).scalars().all()
    counts = {
        name: counted(connection.execute(statements.status.count_processed(), LIMIT | {"handler": name}).scalar_one())
        for name in sorted(names)[:MOST_NAMES]
    }
    return Inbox(total([*counts.values(), _others(names)]), counts)


def _dead_letters(connection: Connection) -> DeadLetterCounts:
    rows = connection.execute(statements.status.dead_open(), LIMIT).all()
    at_least = sum(row.rows for row in rows) > COUNTED
    reasons = tuple(OfReason(row.side, row.reason, Count(row.rows, at_least)) for row in rows)
    resolved, of = connection.execute(statements.status.dead_resolved(), LIMIT).one()
    return DeadLetterCounts(total(reason.count for reason in reasons), reasons, Count(resolved, of > COUNTED))


def _history(connection: Connection, now: datetime) -> History:
    return History(
        published=counted(connection.execute(statements.status.count_published(), LIMIT).scalar_one()),
        oldest_published=connection.execute(statements.status.oldest_published()).scalar_one(),
        requests=counted(connection.execute(statements.status.count_remembered(), LIMIT).scalar_one()),
        unknown_effects=counted(
            connection.execute(statements.status.unknown_effects(), LIMIT | {"now": now}).scalar_one()
        ),
    )


def _outbox(connection: Connection, now: datetime) -> Outbox:
    names = connection.execute(statements.status.destinations(), LIMIT | {"most": MOST_NAMES + 1}).scalars().all()
    each = {name: _to_destination(connection, name, now) for name in names[:MOST_NAMES]}
    states = {state: total([*(getattr(there, state) for there in each.values()), _others(names)]) for state in STATES}
    by_destination = {name: there for name, there in each.items() if there.pending.value}
    rows = connection.execute(statements.status.oldest_by_type(), LIMIT).all()
    at_least = sum(row.rows for row in rows) > COUNTED
    by_type = {row.type: OfType(Count(row.rows, at_least), Count(row.failed, at_least)) for row in rows}
    return Outbox(
        pending=total(states.values()),
        **states,
        oldest_age_seconds=max(_known(there.oldest_age_seconds for there in each.values()), default=None),
        next_due=min(_known(there.next_due for there in each.values()), default=None),
        last_due=max(_known(there.last_due for there in each.values()), default=None),
        by_type=dict(sorted(by_type.items(), key=itemgetter(0))),
        parked_keys=counted(connection.execute(statements.status.count_parked_keys(), LIMIT).scalar_one()),
        by_destination={} if by_destination.keys() <= {DEFAULT_DESTINATION} else by_destination,
    )


def _to_destination(connection: Connection, name: str, now: datetime) -> OfDestination:
    parameters = LIMIT | {"destination": name}
    ready, oldest_ready = connection.execute(statements.status.ready(), parameters).one()
    waiting = {row[0]: row[1:] for row in connection.execute(statements.status.waiting(), parameters)}
    held, next_retry, oldest_held = waiting.get(True, (0, None, None))
    delayed, next_delayed, _ = waiting.get(False, (0, None, None))
    states = {
        "ready": counted(ready),
        "delayed": Count(delayed, at_least=held + delayed > COUNTED),
        "held": Count(held, at_least=held + delayed > COUNTED),
        "parked": counted(connection.execute(statements.status.parked(), parameters).scalar_one()),
    }
    overdue = next_delayed if next_delayed is not None and next_delayed <= now else None
    oldest = min(_known((oldest_ready, oldest_held, overdue)), default=None)
    return OfDestination(
        total(states.values()),
        **states,
        oldest_age_seconds=None if oldest is None else max(0.0, round((now - oldest).total_seconds(), 1)),
        next_due=min(_known((next_retry, next_delayed)), default=None),
        last_due=connection.execute(statements.status.furthest_due(), {"destination": name}).scalar_one(),
    )


def _others(names: Sequence[str]) -> Count:
    """The rows of names beyond the limit, which are not counted."""
    return replace(NOTHING, at_least=len(names) > MOST_NAMES)


def _known(values: Iterable[_Value | None]) -> Iterator[_Value]:
    return (value for value in values if value is not None)
