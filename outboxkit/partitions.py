"""Partitions of `outboxkit_published` on PostgreSQL: a UTC day each, made ahead of time and dropped whole.

Rows whose day has no partition go to the default one; nothing is lost where a partition cannot be made. Any number of
processes may do this at once: each day is a transaction of its own, under one advisory lock.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from outboxkit import statements

DAYS_AHEAD = 7
DAY = timedelta(days=1)

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
    """

    days: list[date] = field(default_factory=list)
    problem: str | None = None
    busy: bool = False


@dataclass(frozen=True, slots=True)
class _Found:
    """The table's schema and owner, and the days that have a partition there."""

    schema: str
    owner: str
    days: frozenset[date]


async def prepare_partitions(connection: AsyncConnection, now: datetime | None = None) -> Changed:
    """Make the partitions of today and the days to come, and log one warning where that cannot be.

    Args:
        connection: outside a transaction. On SQLite nothing is done.
        now: which day is today; the database's clock where None.

    Raises:
        sqlalchemy.exc.DBAPIError: the database is away.
    """
    made = await make_ahead(connection, now)
    log = structlog.get_logger("outboxkit")
    if made.days:
        log.info("partitions made", table="outboxkit_published", days=[str(day) for day in made.days])
    if made.problem is not None:
        log.warning("partition not made, rows go to the default one", problem=made.problem)
    return made


async def make_ahead(connection: AsyncConnection, now: datetime | None = None) -> Changed:
    """`prepare_partitions` without the log."""
    changed = Changed()
    if connection.dialect.name != "postgresql":
        return changed
    async with connection.begin():
        today = (now or await clock(connection)).astimezone(UTC).date()
        found = (await _find(connection)).days
    wanted = [today + number * DAY for number in range(DAYS_AHEAD + 1)]
    await _for_each(connection, [day for day in wanted if day not in found], _make, changed, there=False)
    return changed


async def drop_before(connection: AsyncConnection, before: datetime) -> Changed:
    """Drop every day that has ended by this moment, the oldest first; a day that is in use is left for the next time.

    Only partitions that `make_ahead` has named are dropped.

    Raises:
        sqlalchemy.exc.DBAPIError: the database is away.
    """
    changed = Changed()
    if connection.dialect.name != "postgresql":
        return changed
    async with connection.begin():
        found = (await _find(connection)).days
    limit = before.astimezone(UTC).date()
    await _for_each(connection, sorted(day for day in found if day < limit), _drop, changed, there=True)
    return changed


async def clock(connection: AsyncConnection) -> datetime:
    """The time by the database's clock."""
    found: datetime = (await connection.execute(statements.published.moment(connection.dialect.name))).scalar_one()
    return found


async def _for_each(
    connection: AsyncConnection,
    days: Sequence[date],
    change: Callable[[AsyncConnection, _Found, date], Awaitable[None]],
    changed: Changed,
    *,
    there: bool,
) -> None:
    """Change each day's partition in a transaction, until one cannot be; `there` is how it is found before."""
    for day in days:
        try:
            async with connection.begin():
                await connection.execute(statements.published.wait_briefly())
                await connection.execute(statements.published.be_alone())
                found = await _find(connection)
                if (day in found.days) is not there:
                    continue
                await change(connection, found, day)
            changed.days.append(day)
        except DBAPIError as error:
            sqlstate = getattr(error.orig, "sqlstate", None)
            if sqlstate not in (*_BUSY, *_REFUSED):
                raise
            changed.busy = sqlstate in _BUSY
            changed.problem = f"{statements.published.partition_of(day)}: {str(error.orig).splitlines()[0]}"
            return


async def _make(connection: AsyncConnection, found: _Found, day: date) -> None:
    """Most rows are moved while relays go on; between the last move and the commit nothing can be inserted."""
    for statement in (
        statements.published.make_partition(found.schema, day),
        statements.published.give_to_owner(found.schema, day, found.owner),
        statements.published.move_from_default(found.schema, day),
        statements.published.hold_off(found.schema),
        statements.published.move_from_default(found.schema, day),
        statements.published.attach_partition(found.schema, day),
    ):
        await connection.execute(statement)


async def _drop(connection: AsyncConnection, found: _Found, day: date) -> None:
    await connection.execute(statements.published.drop_partition(found.schema, day))


async def _find(connection: AsyncConnection) -> _Found:
    rows = (await connection.execute(statements.published.partitions())).all()
    schema, owner = rows[0][:2] if rows else ("", "")
    days = (statements.published.day_of(row[3]) for row in rows if row[3] is not None and row[2] == schema)
    return _Found(schema, owner, frozenset(day for day in days if day is not None))
