"""Reads what is kept beside the outbox: exactly while it is little, from samples beyond that."""

from datetime import datetime
from itertools import groupby
from operator import itemgetter

from sqlalchemy import Connection

from outboxkit import tables
from outboxkit.cli.status.report import (
    Count,
    DeadLetters,
    Effects,
    Idempotency,
    Inbox,
    OfReason,
    Published,
    SharedName,
    total,
)
from outboxkit.cli.status.sample import EXACT_UP_TO, LIMIT, Sample, take
from outboxkit.statements import handlers
from outboxkit.statements import status as statements


def read_inbox(connection: Connection, now: datetime) -> Inbox:
    """What was processed, by handler, and names of handlers that several queues have."""
    query = statements.sampled_processed(connection.dialect.name)
    sample = take(connection, tables.inbox, query)
    found = connection.execute(handlers.of_several_queues(now - handlers.SEEN)).all()
    shared = tuple(
        SharedName(name, tuple(queue for _, queue in rows)) for name, rows in groupby(found, key=itemgetter(0))
    )
    return Inbox(sample.count(), {row.handler: sample.whole(row.rows) for row in sample.rows}, shared)


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


def read_idempotency(connection: Connection) -> Idempotency:
    """How many keys are remembered."""
    query = statements.sampled_remembered(connection.dialect.name)
    return Idempotency(take(connection, tables.idempotency, query).count())


def read_effects(connection: Connection, now: datetime) -> Effects:
    """How many have an unknown result."""
    found = connection.execute(statements.unknown_effects(), LIMIT | {"now": now}).scalar_one()
    return Effects(Count(found, found > EXACT_UP_TO))
