"""The messages that wait in the outbox and what is kept beside it, each counted up to a limit."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import TypeVar

from sqlalchemy import Connection

from outboxkit.cli.status.report import (
    DeadLetterCounts,
    Effects,
    Idempotency,
    Inbox,
    OfDestination,
    OfReason,
    OfType,
    Outbox,
    ParkedKey,
    ParkedKeys,
    Published,
    Retried,
)
from outboxkit.cli.wording import COUNTED, Count, total
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.runtime import known_handlers
from outboxkit.statements import status as statements

LIMIT = {"limit": COUNTED + 1}
MOST_NAMES = 100
"""Destinations, and handlers, that are counted one by one; what belongs to others is not counted."""
TOP_KEYS = 10
STATES = ("ready", "delayed", "held", "parked")
_Value = TypeVar("_Value")


def read_inbox(connection: Connection, now: datetime) -> Inbox:
    """Processed messages by handler, and names that two queues have for different handlers."""
    names = connection.execute(statements.handlers(), {"most": MOST_NAMES + 1}).scalars().all()
    counts = {
        name: _counted(connection.execute(statements.count_processed(), LIMIT | {"handler": name}).scalar_one())
        for name in sorted(names)[:MOST_NAMES]
    }
    shared = tuple(each for each in known_handlers.read_shared(connection, now) if each.is_clash)
    return Inbox(total([*counts.values(), _others(names)]), counts, shared)


def read_dead_letters(connection: Connection) -> DeadLetterCounts:
    """Open ones by side and reason, and how many are resolved."""
    rows = connection.execute(statements.dead_open(), LIMIT).all()
    at_least = sum(row.rows for row in rows) > COUNTED
    reasons = tuple(OfReason(row.side, row.reason, Count(row.rows, at_least)) for row in rows)
    resolved, of = connection.execute(statements.dead_resolved(), LIMIT).one()
    return DeadLetterCounts(total(reason.count for reason in reasons), reasons, Count(resolved, of > COUNTED))


def read_published(connection: Connection) -> Published:
    """Kept messages, and when the oldest was published."""
    count = connection.execute(statements.count_published(), LIMIT).scalar_one()
    return Published(_counted(count), connection.execute(statements.oldest_published()).scalar_one())


def read_idempotency(connection: Connection) -> Idempotency:
    """Idempotency keys that are remembered."""
    return Idempotency(_counted(connection.execute(statements.count_remembered(), LIMIT).scalar_one()))


def read_effects(connection: Connection, now: datetime) -> Effects:
    """Effects with an unknown result."""
    return Effects(_counted(connection.execute(statements.unknown_effects(), LIMIT | {"now": now}).scalar_one()))


def read_outbox(connection: Connection, now: datetime) -> Outbox:
    """Rows by state, type and destination."""
    names = connection.execute(statements.destinations(), LIMIT | {"most": MOST_NAMES + 1}).scalars().all()
    each = {name: _to_destination(connection, name, now) for name in names[:MOST_NAMES]}
    states = {state: total([*(getattr(there, state) for there in each.values()), _others(names)]) for state in STATES}
    by_destination = {name: there for name, there in each.items() if there.pending.value}
    return Outbox(
        pending=total(states.values()),
        **states,
        oldest_age_seconds=max(_known(there.oldest_age_seconds for there in each.values()), default=None),
        next_due=min(_known(there.next_due for there in each.values()), default=None),
        by_type=_by_type(connection),
        parked_keys=_parked_keys(connection, each),
        by_destination={} if by_destination.keys() <= {DEFAULT_DESTINATION} else by_destination,
        retried=tuple(_retried(connection, each)),
    )


def _to_destination(connection: Connection, name: str, now: datetime) -> OfDestination:
    parameters = LIMIT | {"destination": name}
    ready, oldest_ready = connection.execute(statements.ready(), parameters).one()
    waiting = {row[0]: row[1:] for row in connection.execute(statements.waiting(), parameters)}
    held, next_retry, oldest_held = waiting.get(True, (0, None, None))
    delayed, next_delayed, _ = waiting.get(False, (0, None, None))
    states = {
        "ready": _counted(ready),
        "delayed": Count(delayed, at_least=held + delayed > COUNTED),
        "held": Count(held, at_least=held + delayed > COUNTED),
        "parked": _counted(connection.execute(statements.parked(), parameters).scalar_one()),
    }
    overdue = next_delayed if next_delayed is not None and next_delayed <= now else None
    oldest = min(_known((oldest_ready, oldest_held, overdue)), default=None)
    return OfDestination(
        total(states.values()),
        **states,
        oldest_age_seconds=None if oldest is None else max(0.0, round((now - oldest).total_seconds(), 1)),
        next_due=min(_known((next_retry, next_delayed)), default=None),
    )


def _by_type(connection: Connection) -> dict[str, OfType]:
    """The types of the oldest rows."""
    rows = connection.execute(statements.oldest_by_type(), LIMIT).all()
    at_least = sum(row.rows for row in rows) > COUNTED
    return {
        row.type: OfType(Count(row.rows, at_least), Count(row.failed, at_least))
        for row in sorted(rows, key=itemgetter(0))
    }


def _parked_keys(connection: Connection, each: Mapping[str, OfDestination]) -> ParkedKeys:
    """The top ones of all destinations."""
    top, keys, dead = list[ParkedKey](), 0, 0
    for name, there in each.items():
        rows = connection.execute(statements.parked_keys(), LIMIT | {"top": TOP_KEYS, "destination": name}).all()
        top += [ParkedKey(row[0], Count(row[1], there.parked.at_least), Count(row[2]), name) for row in rows]
        keys, dead = (keys + rows[0][3], dead + rows[0][4]) if rows else (keys, dead)
    top = sorted(top, key=lambda key: (-key.waiting.value, key.key or ""))[:TOP_KEYS]
    return ParkedKeys(Count(keys, dead > COUNTED), tuple(top), Count(keys - len(top), dead > COUNTED))


def _retried(connection: Connection, each: Mapping[str, OfDestination]) -> Iterator[Retried]:
    for name, there in each.items():
        row = connection.execute(statements.retried(), LIMIT | {"destination": name}).one_or_none()
        if row is not None:
            yield Retried(name, Count(row[1], there.held.at_least), row[0])


def _counted(rows: int) -> Count:
    return Count(rows, at_least=rows > COUNTED)


def _others(names: Sequence[str]) -> Count:
    """The rows of names beyond the limit, which are not counted."""
    return Count(at_least=len(names) > MOST_NAMES)


def _known(values: Iterable[_Value | None]) -> Iterator[_Value]:
    return (value for value in values if value is not None)
