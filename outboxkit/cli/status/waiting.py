"""The messages that wait in the outbox and what is kept beside it: exact while there are few."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import itemgetter

from sqlalchemy import Connection

from outboxkit import tables
from outboxkit.cli.status.report import (
    DeadLetters,
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
    SharedName,
)
from outboxkit.cli.status.sample import EXACT_UP_TO, LIMIT, Sample, take
from outboxkit.cli.wording import Count, total
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.statements import activity
from outboxkit.statements import status as statements


def read_inbox(connection: Connection, now: datetime) -> Inbox:
    """What was processed, by handler, and names of handlers that several queues have."""
    query = statements.sampled_processed(connection.dialect.name)
    sample = take(connection, tables.inbox, query)
    found = connection.execute(activity.of_several_queues(now - activity.SEEN)).all()
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


TOP_KEYS = 10
MOST_DESTINATIONS = 100
"""Destinations that are looked at one by one; the others are part of the estimates."""
STATES = ("ready", "delayed", "held", "parked")


@dataclass(frozen=True)
class Read:
    """What was read of one destination: of each state at most one row more than the limit."""

    destination: str
    ready: int
    delayed: int
    held: int
    parked: int
    oldest: datetime | None
    next_due: datetime | None

    def seen(self, state: str) -> tuple[int, int]:
        """How many rows of the state were found, and how many were read to find them."""
        found: int = getattr(self, state)
        return found, self.held + self.delayed if state in ("held", "delayed") else found


def read_outbox(connection: Connection, now: datetime) -> Outbox:
    """Rows by state, type and destination."""
    most = {"most": MOST_DESTINATIONS + 1}
    names = connection.execute(statements.destinations(), LIMIT | most).scalars().all()
    found = [_read(connection, name, now) for name in names[:MOST_DESTINATIONS]]
    is_all = len(names) <= MOST_DESTINATIONS
    is_exact = is_all and all(sum(read.seen(state)[1] for read in found) <= EXACT_UP_TO for state in STATES)
    sample = _all_rows(connection) if is_exact else _some_rows(connection)
    states = {state: _total(sample, found, state, is_all=is_all) for state in STATES}
    return Outbox(
        pending=total(states.values()),
        **states,
        oldest_age_seconds=_age(now, (read.oldest for read in found)),
        next_due=min((read.next_due for read in found if read.next_due is not None), default=None),
        by_type={kind: _of_type(sample, kind) for kind in sorted({row.type for row in sample.rows})},
        parked_keys=_parked_keys(connection, found, states["parked"]),
        by_destination=_by_destination(sample, found, now),
        retried=tuple(_retried(connection, [read.destination for read in found])),
    )


def _retried(connection: Connection, destinations: Iterable[str]) -> Iterator[Retried]:
    for name in destinations:
        row = connection.execute(statements.retried(), LIMIT | {"destination": name}).one_or_none()
        if row is not None:
            yield Retried(name, Count(row[1], row[1] > EXACT_UP_TO), row[0])


def _read(connection: Connection, destination: str, now: datetime) -> Read:
    given = LIMIT | {"destination": destination}
    ready, oldest_ready = connection.execute(statements.ready(), given).one()
    waiting = {row[0]: row for row in connection.execute(statements.waiting(), given)}
    held, next_retry, oldest_held = waiting[True][1:] if True in waiting else (0, None, None)
    delayed, next_delayed, _ = waiting[False][1:] if False in waiting else (0, None, None)
    parked = connection.execute(statements.parked(), given).scalar_one()
    overdue = next_delayed if next_delayed is not None and next_delayed <= now else None
    return Read(
        destination,
        ready=ready,
        delayed=delayed,
        held=held,
        parked=parked,
        oldest=min((moment for moment in (oldest_ready, oldest_held, overdue) if moment is not None), default=None),
        next_due=min((moment for moment in (next_retry, next_delayed) if moment is not None), default=None),
    )


def _age(now: datetime, moments: Iterable[datetime | None]) -> float | None:
    oldest = min((moment for moment in moments if moment is not None), default=None)
    return None if oldest is None else max(0.0, round((now - oldest).total_seconds(), 1))


def _all_rows(connection: Connection) -> Sample:
    """For an outbox with at most the limit of ready rows, of held and delayed ones together, and of parked ones."""
    return Sample(connection.execute(statements.oldest_by_type(), {"limit": 3 * EXACT_UP_TO}).all(), 1)


def _some_rows(connection: Connection) -> Sample:
    return take(connection, tables.outbox, statements.sampled_by_type(connection.dialect.name))


def _state(sample: Sample, read: Read, state: str) -> Count:
    """The rows that were found, or where the reading ended before they did, the sample's word."""
    found, looked_at = read.seen(state)
    if looked_at <= EXACT_UP_TO:
        return Count(found)
    estimate = sample.count(lambda row: row.state == state and row.destination == read.destination)
    return Count(max(estimate.value, found), estimate.estimate)


def _total(sample: Sample, found: Sequence[Read], state: str, *, is_all: bool) -> Count:
    known = total(_state(sample, read, state) for read in found)
    if is_all:
        return known
    names = {read.destination for read in found}
    others = sample.count(lambda row: row.state == state and row.destination not in names)
    return Count(known.value + others.value, estimate=True)


def _by_destination(sample: Sample, found: Sequence[Read], now: datetime) -> dict[str, OfDestination]:
    """Nothing where every row goes to the destination `default`."""
    made = {}
    for read in found:
        states = {state: _state(sample, read, state) for state in STATES}
        if (pending := total(states.values())).value:
            made[read.destination] = OfDestination(pending, **states, oldest_age_seconds=_age(now, [read.oldest]))
    return {} if made.keys() <= {DEFAULT_DESTINATION} else made


def _of_type(sample: Sample, kind: str) -> OfType:
    rows = [row for row in sample.rows if row.type == kind]
    return OfType(sample.whole(sum(row.rows for row in rows)), sample.whole(sum(row.failed for row in rows)))


def _parked_keys(connection: Connection, found: Sequence[Read], parked: Count) -> ParkedKeys:
    """The top ones of all destinations; of `parked` rows, each destination's first were read."""
    read = sum(one.parked for one in found)
    factor = max(parked.value / read, 1) if read else 1
    top, keys, dead = list[ParkedKey](), 0, 0
    for name in (one.destination for one in found):
        given = LIMIT | {"top": TOP_KEYS, "destination": name}
        rows = connection.execute(statements.parked_keys(), given).all()
        top += [ParkedKey(row[0], Count(round(row[1] * factor), factor > 1), Count(row[2]), name) for row in rows]
        keys, dead = (keys + rows[0][3], dead + rows[0][4]) if rows else (keys, dead)
    top = sorted(top, key=lambda key: (-key.waiting.value, key.key or ""))[:TOP_KEYS]
    is_estimate = dead > EXACT_UP_TO
    return ParkedKeys(Count(keys, is_estimate), tuple(top), Count(keys - len(top), is_estimate))
