"""Partitions on PostgreSQL, of `outboxkit_published` and `outboxkit_inbox`: a UTC day each, made ahead, dropped whole.

Rows whose day has no partition go to the default one; nothing is lost where a partition cannot be made. Any number of
processes may do this at once: each change is a transaction of its own, under one advisory lock for the table.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import structlog
from sqlalchemy import DDL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from outboxkit import statements
from outboxkit.statements import partitions as sql
from outboxkit.statements.partitions import Ranged

PUBLISHED = sql.PUBLISHED
INBOX = sql.INBOX
DAYS_AHEAD = 7
DAY = timedelta(days=1)
AT_ONCE = 10
"""How many days that the default partition holds rows of get a partition in one call, at most."""

_BUSY = ("55P03", "40P01")
"""Lock not available, and deadlock detected (PostgreSQL, appendix A)."""
_REFUSED = {"42501", "42P07", "42P17"}
"""No right, a table of that name is there, or its range is taken by a partition that somebody else made."""


@dataclass(slots=True)
class Changed:
    """What became of the partitions.

    Attributes:
        days: the days whose partitions were made, or dropped.
        problem: why not all of it could be done; None where it was.
        busy: whether the problem goes away by itself: somebody held a lock.
        emptied: the days whose rows are gone, also where their partition is still there.
    """

    days: list[date] = field(default_factory=list)
    problem: str | None = None
    busy: bool = False
    emptied: list[date] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Found:
    """The table's schema and owner, and the days that have a partition there."""

    schema: str
    owner: str
    days: frozenset[date]


_Change = Callable[[AsyncConnection, Ranged, _Found, date], Awaitable[bool]]
"""Changes a day's partition; tells whether there was something to do."""


async def prepare_partitions(
    connection: AsyncConnection, ranged: Ranged = PUBLISHED, now: datetime | None = None
) -> Changed:
    """Make the partitions of today and the days to come, and log one warning where that cannot be.

    Args:
        connection: outside a transaction. On SQLite nothing is done.
        ranged: whose partitions: `PUBLISHED` or `INBOX`.
        now: which day is today; the database's clock where None.

    Raises:
        sqlalchemy.exc.DBAPIError: the database is away.
    """
    made = await make_ahead(connection, ranged, now)
    log = structlog.get_logger("outboxkit")
    if made.days:
        log.info("partitions made", table=ranged.name, days=[str(day) for day in made.days])
    if made.problem is not None:
        log.warning("partition not made, rows go to the default one", problem=made.problem)
    return made


async def make_ahead(connection: AsyncConnection, ranged: Ranged = PUBLISHED, now: datetime | None = None) -> Changed:
    """`prepare_partitions` without the log."""
    changed = Changed()
    if connection.dialect.name != "postgresql":
        return changed
    async with connection.begin():
        today = _day(now or await clock(connection))
        found = (await _find(connection, ranged)).days
    wanted = [today + number * DAY for number in range(DAYS_AHEAD + 1)]
    changed.days = await _for_each(connection, ranged, [day for day in wanted if day not in found], _make, changed)
    return changed


async def make_behind(connection: AsyncConnection, first: datetime, last: datetime) -> Changed:
    """Make partitions of the inbox for those of these days whose UUIDv7 ids the default one holds, ten at most.

    Their rows move. Rows of ids that lie farther off stay, and are forgotten one by one.

    Raises:
        sqlalchemy.exc.DBAPIError: the database is away.
    """
    changed, day, end = Changed(), _day(first), _day(last)
    while connection.dialect.name == "postgresql" and changed.problem is None and len(changed.days) < AT_ONCE:
        async with connection.begin():
            found = (await connection.execute(sql.first_unplaced(INBOX), sql.range_of_ids(day, end))).scalar_one()
        if found is None:
            break
        this = sql.day_of_id(found)
        day = this + DAY
        changed.days += await _for_each(connection, INBOX, [this], _make, changed)
    return changed


async def drop_before(connection: AsyncConnection, before: datetime, ranged: Ranged = PUBLISHED) -> Changed:
    """Drop every day that has ended by this moment, the oldest first; a day that is in use is left for the next time.

    A day of the inbox is dropped only where every row of it was processed before this moment, too. It is emptied
    first, under a lock of its own; so its space is free even where a transaction stays open that uses the table.
    Only partitions that `make_ahead` has named are dropped.

    Raises:
        sqlalchemy.exc.DBAPIError: the database is away.
    """
    changed = Changed()
    if connection.dialect.name != "postgresql":
        return changed
    async with connection.begin():
        found = (await _find(connection, ranged)).days
    old = sorted(day for day in found if day < _day(before))
    if ranged.kept_by is not None:
        changed.emptied = old = await _for_each(connection, ranged, old, _emptying(before), changed)
    changed.days = await _for_each(connection, ranged, old, _dropping(before), changed)
    return changed


async def clock(connection: AsyncConnection) -> datetime:
    """The time by the database's clock."""
    found: datetime = (await connection.execute(statements.published.moment(connection.dialect.name))).scalar_one()
    return found


async def _for_each(
    connection: AsyncConnection, ranged: Ranged, days: Sequence[date], change: _Change, changed: Changed
) -> list[date]:
    """Change each day's partition in a transaction, until one cannot be; returns the days that were changed."""
    done: list[date] = []
    for day in days:
        try:
            async with connection.begin():
                await connection.execute(sql.see_commits())
                await connection.execute(sql.wait_briefly())
                await connection.execute(sql.be_alone(ranged))
                found = await _find(connection, ranged)
                there = await change(connection, ranged, found, day)
            done += [day] if there else []
        except DBAPIError as error:
            sqlstate = getattr(error.orig, "sqlstate", None)
            if sqlstate not in (*_BUSY, *_REFUSED):
                raise
            changed.busy = sqlstate in _BUSY
            changed.problem = f"{ranged.partition_of(day)}: {str(error.orig).splitlines()[0]}"
            break
    return done


async def _make(connection: AsyncConnection, ranged: Ranged, found: _Found, day: date) -> bool:
    """Most rows are copied while others go on; between the last copy and the commit nothing can be inserted."""
    if day in found.days:
        return False
    at = ranged, found.schema, day
    close = sql.close_default if ranged.tried_again else sql.hold_off
    await _execute(
        connection,
        sql.make_partition(*at),
        sql.give_to_owner(*at, found.owner),
        sql.copy_from_default(*at),
        close(ranged, found.schema),
        sql.copy_from_default(*at),
        sql.clear_default(*at),
        sql.attach_partition(*at),
    )
    return True


def _emptying(before: datetime) -> _Change:
    async def empty(connection: AsyncConnection, ranged: Ranged, found: _Found, day: date) -> bool:
        if day not in found.days:
            return False
        at = ranged, found.schema, day
        await connection.execute(sql.close_partition(*at))
        if (await connection.execute(sql.still_needed(*at), {"before": before})).scalar_one():
            return False
        await connection.execute(sql.empty_partition(*at))
        return True

    return empty


def _dropping(before: datetime) -> _Change:
    async def drop(connection: AsyncConnection, ranged: Ranged, found: _Found, day: date) -> bool:
        if day not in found.days:
            return False
        at = ranged, found.schema, day
        if ranged.kept_by is not None:
            await connection.execute(sql.hold_off(ranged, found.schema))
            if (await connection.execute(sql.still_needed(*at), {"before": before})).scalar_one():
                return False
        await connection.execute(sql.drop_partition(*at))
        return True

    return drop


async def _execute(connection: AsyncConnection, *wanted: DDL) -> None:
    for statement in wanted:
        await connection.execute(statement)


async def _find(connection: AsyncConnection, ranged: Ranged) -> _Found:
    rows = (await connection.execute(sql.attached(ranged))).all()
    schema, owner = rows[0][:2] if rows else ("", "")
    days = (ranged.day_of(row[3]) for row in rows if row[3] is not None and row[2] == schema)
    return _Found(schema, owner, frozenset(day for day in days if day is not None))


def _day(moment: datetime) -> date:
    return moment.astimezone(UTC).date()
