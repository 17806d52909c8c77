"""Reads outbox, inbox, dead letters and published messages: exactly while they are few, from samples beyond that."""

from datetime import datetime

from sqlalchemy import Connection

from outboxkit import tables
from outboxkit.cli.status.report import (
    Count,
    DeadLetters,
    Inbox,
    OfReason,
    OfType,
    Outbox,
    ParkedKey,
    ParkedKeys,
    Published,
    total,
)
from outboxkit.cli.status.sample import EXACT_UP_TO, LIMIT, Sample, take
from outboxkit.statements import status as statements

TOP_KEYS = 10


def read_outbox(connection: Connection, now: datetime) -> Outbox:
    """Rows by state and type."""
    ready, oldest_ready = connection.execute(statements.ready(), LIMIT).one()
    waiting = {row[0]: row for row in connection.execute(statements.waiting(), LIMIT)}
    held, next_retry, oldest_held = waiting[True][1:] if True in waiting else (0, None, None)
    delayed, next_delayed, _ = waiting[False][1:] if False in waiting else (0, None, None)
    parked = connection.execute(statements.parked(), LIMIT).scalar_one()
    is_exact = max(ready, held + delayed, parked) <= EXACT_UP_TO
    sample = _all_rows(connection) if is_exact else _some_rows(connection)
    states = {
        "ready": _state(sample, "ready", ready, ready),
        "delayed": _state(sample, "delayed", delayed, held + delayed),
        "held": _state(sample, "held", held, held + delayed),
        "parked": _state(sample, "parked", parked, parked),
    }
    overdue = next_delayed if next_delayed is not None and next_delayed <= now else None
    oldest = min((moment for moment in (oldest_ready, oldest_held, overdue) if moment is not None), default=None)
    return Outbox(
        pending=total(states.values()),
        **states,
        oldest_age_seconds=None if oldest is None else max(0.0, round((now - oldest).total_seconds(), 1)),
        next_due=min((moment for moment in (next_retry, next_delayed) if moment is not None), default=None),
        by_type={kind: _of_type(sample, kind) for kind in sorted({row.type for row in sample.rows})},
        parked_keys=_parked_keys(connection, parked=states["parked"]),
    )


def read_inbox(connection: Connection) -> Inbox:
    """What was processed, by handler."""
    query = statements.sampled_processed(connection.dialect.name)
    sample = take(connection, tables.inbox, query)
    return Inbox(sample.count(), {row.handler: sample.whole(row.rows) for row in sample.rows})


def read_dead_letters(connection: Connection) -> DeadLetters:
    """Open ones by side and reason, and how many are resolved."""
    sample = take(connection, tables.dead_letter, statements.sampled_dead(connection.dialect.name))
    first = Sample(connection.execute(statements.dead_open(), LIMIT).all(), 1)
    if first.count().value > EXACT_UP_TO:
        first = Sample([row for row in sample.rows if row.resolution is None], sample.factor)
    reasons = tuple(OfReason(row.side, row.reason, first.whole(row.rows)) for row in first.rows)
    resolved = sample.count(lambda row: row.resolution is not None)
    return DeadLetters(total(reason.count for reason in reasons), reasons, resolved)


def read_published(connection: Connection) -> Published:
    """What is kept, and since when."""
    sample = take(connection, tables.published, statements.sampled_published(connection.dialect.name))
    return Published(sample.count(), connection.execute(statements.oldest_published()).scalar_one())


def _all_rows(connection: Connection) -> Sample:
    """For an outbox that has at most the limit in each of its three indexes."""
    return Sample(connection.execute(statements.oldest_by_type(), {"limit": 3 * EXACT_UP_TO}).all(), 1)


def _some_rows(connection: Connection) -> Sample:
    return take(connection, tables.outbox, statements.sampled_by_type(connection.dialect.name))


def _state(sample: Sample, state: str, found: int, read: int) -> Count:
    """The rows that were found, or where the reading ended before they did, the sample's word."""
    if read <= EXACT_UP_TO:
        return Count(found)
    estimate = sample.count(lambda row: row.state == state)
    return Count(max(estimate.value, found), estimate.estimate)


def _of_type(sample: Sample, kind: str) -> OfType:
    rows = [row for row in sample.rows if row.type == kind]
    return OfType(sample.whole(sum(row.rows for row in rows)), sample.whole(sum(row.failed for row in rows)))


def _parked_keys(connection: Connection, *, parked: Count) -> ParkedKeys:
    rows = connection.execute(statements.parked_keys(), LIMIT | {"top": TOP_KEYS}).all()
    if not rows:
        return ParkedKeys()
    factor = max(parked.value / LIMIT["limit"], 1)
    top = tuple(ParkedKey(row[0], Count(round(row[1] * factor), factor > 1), Count(row[2])) for row in rows)
    keys, dead = rows[0][3:]
    return ParkedKeys(Count(keys, dead > EXACT_UP_TO), top, Count(keys - len(rows), dead > EXACT_UP_TO))
