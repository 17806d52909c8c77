"""Partitions on PostgreSQL of `outboxkit_published` and `outboxkit_inbox`: one for each UTC day, created ahead.

Rows whose day has no partition go to the default one, so nothing is lost if a partition cannot be created. Any number
of processes may do this at once: each change is a transaction of its own, under one advisory lock for the table.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import DDL
from sqlalchemy.exc import DBAPIError

from outboxkit import statements
from outboxkit.database.sqlalchemy_asyncio import AsyncConnection
from outboxkit.errors.sqlstates import LOCKED, NO_RIGHT, TAKEN, sqlstate_of
from outboxkit.statements import partitions as sql
from outboxkit.statements.dialects import is_server
from outboxkit.statements.partitions import INBOX, PUBLISHED, PartitionedTable

DAYS_AHEAD = 7
DAY = timedelta(days=1)
AT_ONCE = 10
"""The maximum number of days in the default partition that get a partition of their own in one call."""


@dataclass(slots=True)
class Changed:
    """The result of a change of partitions.

    Attributes:
        days: the days whose partitions were created, or dropped.
        problem: the error that ended it early; None if there was none.
        busy: whether the problem goes away by itself: another session held a lock.
        emptied: the days whose rows are deleted, even if their partition still exists.
    """

    days: list[date] = field(default_factory=list)
    problem: str | None = None
    busy: bool = False
    emptied: list[date] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Partitions:
    """The table's schema and owner, and the days that have a partition there."""

    schema: str
    owner: str
    days: frozenset[date]


_Change = Callable[[AsyncConnection, PartitionedTable, _Partitions, date], Awaitable[bool]]
"""Changes a day's partition; returns whether there was something to do."""


async def prepare_partitions(
    connection: AsyncConnection, partitioned: PartitionedTable = PUBLISHED, now: datetime | None = None
) -> Changed:
    """Create the partitions of today and the days ahead, and log a warning if that fails. On SQLite nothing is done.

    The connection is in no transaction. Without `now` the database's clock says which day it is.
    """
    import structlog  # noqa: PLC0415 - slow to import, and commands that only read the clock do without

    changed = await make_ahead(connection, partitioned, now)
    log = structlog.get_logger("outboxkit")
    if changed.days:
        log.info("partitions made", table=partitioned.name, days=[str(day) for day in changed.days])
    if changed.problem is not None:
        log.warning("partition not made, rows go to the default one", problem=changed.problem)
    return changed


async def make_ahead(
    connection: AsyncConnection, partitioned: PartitionedTable = PUBLISHED, now: datetime | None = None
) -> Changed:
    """`prepare_partitions` without the log."""
    changed = Changed()
    if not is_server(connection.dialect.name):
        return changed
    async with connection.begin():
        today = _day(now or await clock(connection))
        existing = (await _find(connection, partitioned)).days
    days = [today + number * DAY for number in range(DAYS_AHEAD + 1)]
    changed.days = await _for_each(
        connection, partitioned, [day for day in days if day not in existing], _make, changed
    )
    return changed


async def make_behind(connection: AsyncConnection, first: datetime, last: datetime) -> Changed:
    """Create partitions of the inbox for at most ten of these days that have UUIDv7 ids in the default partition.

    Their rows move. Rows outside these days stay, and are deleted one by one.
    """
    changed, day, end = Changed(), _day(first), _day(last)
    while is_server(connection.dialect.name) and changed.problem is None and len(changed.days) < AT_ONCE:
        async with connection.begin():
            id_ = (await connection.execute(sql.first_unplaced(INBOX), sql.range_of_ids(day, end))).scalar_one()
        if id_ is None:
            break
        id_day = sql.day_of_id(id_)
        day = id_day + DAY
        changed.days += await _for_each(connection, INBOX, [id_day], _make, changed)
    return changed


async def drop_before(
    connection: AsyncConnection, before: datetime, partitioned: PartitionedTable = PUBLISHED
) -> Changed:
    """Drop every day that ended before this time, the oldest first. A day in use is left for the next time.

    A day of the inbox is dropped only if every row of it was processed before this time, too. It is emptied first,
    under a lock of its own; so its space is free even if a transaction that uses the table stays open. Only partitions
    that `make_ahead` has named are dropped.
    """
    changed = Changed()
    if not is_server(connection.dialect.name):
        return changed
    async with connection.begin():
        existing = (await _find(connection, partitioned)).days
    old = sorted(day for day in existing if day < _day(before))
    if partitioned.kept_by is not None:
        changed.emptied = old = await _for_each(connection, partitioned, old, _emptying(before), changed)
    changed.days = await _for_each(connection, partitioned, old, _dropping(before), changed)
    return changed


async def clock(connection: AsyncConnection) -> datetime:
    """The time by the database's clock."""
    now: datetime = (await connection.execute(statements.server.moment(connection.dialect.name))).scalar_one()
    return now


async def _for_each(
    connection: AsyncConnection, partitioned: PartitionedTable, days: Sequence[date], change: _Change, changed: Changed
) -> list[date]:
    """Change each day's partition in its own transaction, until one fails; returns the days that were changed."""
    done: list[date] = []
    for day in days:
        try:
            async with connection.begin():
                await connection.execute(sql.see_commits())
                await connection.execute(sql.wait_briefly())
                await connection.execute(sql.lock_partitions(partitioned))
                current = await _find(connection, partitioned)
                is_changed = await change(connection, partitioned, current, day)
            done += [day] if is_changed else []
        except DBAPIError as error:
            sqlstate = sqlstate_of(error)
            if sqlstate not in (*LOCKED, *TAKEN, NO_RIGHT):
                raise
            changed.busy = sqlstate in LOCKED
            changed.problem = f"{partitioned.partition_of(day)}: {str(error.orig).splitlines()[0]}"
            break
    return done


async def _make(connection: AsyncConnection, partitioned: PartitionedTable, current: _Partitions, day: date) -> bool:
    """Most rows are copied while writers proceed; between the last copy and the commit inserts have to wait."""
    if day in current.days:
        return False
    at = partitioned, current.schema, day
    close = sql.close_default if partitioned.insert_retries else sql.block_inserts
    await _execute(
        connection,
        sql.make_partition(*at),
        sql.give_to_owner(*at, current.owner),
        sql.copy_from_default(*at),
        close(partitioned, current.schema),
        sql.copy_from_default(*at),
        sql.clear_default(*at),
        sql.attach_partition(*at),
    )
    return True


def _emptying(before: datetime) -> _Change:
    async def empty(
        connection: AsyncConnection, partitioned: PartitionedTable, current: _Partitions, day: date
    ) -> bool:
        if day not in current.days:
            return False
        at = partitioned, current.schema, day
        await connection.execute(sql.close_partition(*at))
        if (await connection.execute(sql.still_needed(*at), {"before": before})).scalar_one():
            return False
        await connection.execute(sql.empty_partition(*at))
        return True

    return empty


def _dropping(before: datetime) -> _Change:
    async def drop(connection: AsyncConnection, partitioned: PartitionedTable, current: _Partitions, day: date) -> bool:
        if day not in current.days:
            return False
        at = partitioned, current.schema, day
        if partitioned.kept_by is not None:
            await connection.execute(sql.block_inserts(partitioned, current.schema))
            if (await connection.execute(sql.still_needed(*at), {"before": before})).scalar_one():
                return False
        await connection.execute(sql.drop_partition(*at))
        return True

    return drop


async def _execute(connection: AsyncConnection, *ddl: DDL) -> None:
    for statement in ddl:
        await connection.execute(statement)


async def _find(connection: AsyncConnection, partitioned: PartitionedTable) -> _Partitions:
    rows = (await connection.execute(sql.attached(partitioned))).all()
    schema, owner = rows[0][:2] if rows else ("", "")
    return _Partitions(schema, owner, frozenset(partitioned.days_of(row for row in rows if row[2] == schema)))


def _day(moment: datetime) -> date:
    return moment.astimezone(UTC).date()
