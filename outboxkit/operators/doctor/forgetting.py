"""Retention: whether it outlasts the retries, whether a pruner runs, and whether the days to come have partitions."""

from collections.abc import AsyncGenerator, Iterator
from datetime import date, datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from outboxkit import statements
from outboxkit.consumer import ConsumerPolicy
from outboxkit.errors import ConfigurationError
from outboxkit.errors.wording import span
from outboxkit.operators.doctor.diagnosis import problem, warning
from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.findings import Diagnosis
from outboxkit.runtime import window
from outboxkit.runtime.settings import Settings
from outboxkit.schema import partitions
from outboxkit.statements.partitions import PartitionedTable

_HINT = "docs/how-to/choose-retention.md adds up how long it should be."


async def check_retention(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Compare the retention of these settings with the retries, and with what can be replayed."""
    settings = installation.settings
    inbox = settings.inbox_retention
    policy = ConsumerPolicy(max_attempts=settings.max_attempts, retention=inbox, delays=settings.retry_delays)
    recommended = window.recommended(settings.retry_delays, settings.max_attempts, window.CLOCK_SKEW)
    try:
        policy.check(installation.handlers)
    except ConfigurationError as error:
        yield problem(
            "retention-too-short",
            f"{error}.",
            why="A consumer with these settings refuses to start. With an inbox that forgets so soon, a message that "
            "is tried again could be handled twice.",
            cure=f"Give consumers and prune a longer one. {_HINT}",
            commands=(f"OUTBOXKIT_INBOX_RETENTION={_days(recommended)}d",),
        )
        return
    if inbox < recommended:
        yield warning(
            "retention-short",
            f"OUTBOXKIT_INBOX_RETENTION is {_shown(inbox)}, and retries alone may take "
            f"{_shown(recommended / window.SAFETY_FACTOR)}.",
            why="After an outage of some hours, messages are too old for the inbox to know: they become dead letters.",
            cure=f"Make it longer. {_HINT}",
            commands=(f"OUTBOXKIT_INBOX_RETENTION={_days(recommended)}d",),
        )
    if settings.published_retention is not None and settings.published_retention > inbox:
        yield warning(
            "replay-stale",
            f"Published messages are kept for {_shown(settings.published_retention)}, and the inbox remembers "
            f"{_shown(inbox)}.",
            why="A replay of the older ones is refused by consumers with that inbox: they become stale dead letters.",
            cure="Keep the inbox longer, or published messages for less, or give a consumer that rebuilds a longer "
            "one.",
        )


def _days(duration: timedelta) -> int:
    return -(-duration // timedelta(days=1))


def _shown(duration: timedelta) -> str:
    return span(duration.total_seconds())


async def check_pruning(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Look for rows that a pruner with these settings would have forgotten days ago."""
    settings = installation.settings
    async with installation.database() as connection:
        now = await partitions.clock(connection)
        oldest = [each async for each in _oldest(connection, settings, now, has_server=installation.has_server)]
    late = [(name, over) for name, over in oldest if over >= installation.thresholds.forgotten]
    if late:
        what = ", ".join(f"{name} for {span(over.total_seconds())}" for name, over in late)
        yield problem(
            "prune-missing",
            f"Rows are there whose retention is over: {what}. So no pruner runs, or it fails.",
            why="The tables grow until the disk is full, and on PostgreSQL partitions for the days to come are "
            "missing.",
            cure="Run it now, and see what it says. Then once a day, by cron, a systemd timer or workers/retention.py:",
            commands=("outboxkit prune",),
        )


async def _oldest(
    connection: AsyncConnection, settings: Settings, now: datetime, *, has_server: bool
) -> AsyncGenerator[tuple[str, timedelta]]:
    """For each kind of row how long its retention is over; less than nothing if it is not."""
    forget = window.forget_before(now, retention=settings.inbox_retention, skew=window.CLOCK_SKEW)
    if has_server:
        moment = (await connection.execute(statements.doctor.oldest_unplaced(connection.dialect.name))).scalar_one()
        days = await _days_of(connection, partitions.INBOX)
        ends = [datetime.combine(day + partitions.DAY, datetime.min.time(), forget.tzinfo) for day in days]
        first = min([*ends, *([] if moment is None else [moment])], default=None)
        if first is not None:
            yield "inbox rows", forget - first
    for name, statement, before in (
        ("effects", statements.doctor.oldest_effect(), forget),
        ("idempotency keys", statements.doctor.oldest_request(), now),
        ("published messages", statements.status.oldest_published(), _ago(now, settings.published_retention)),
    ):
        moment = None if before is None else (await connection.execute(statement)).scalar_one()
        if moment is not None and before is not None:
            yield name, before - moment
    before = _ago(now, settings.dead_retention)
    letter = (await connection.execute(statements.doctor.first_dead_letter())).one_or_none()
    if before is not None and letter is not None and not letter.parked:
        yield "dead letters", before - letter.dead_at


def _ago(now: datetime, retention: timedelta | None) -> datetime | None:
    return None if retention is None else window.forget_before(now, retention=retention, skew=timedelta(0))


async def _days_of(connection: AsyncConnection, table: PartitionedTable) -> list[date]:
    rows = (await connection.execute(statements.partitions.attached(table))).all()
    days = (table.day_of(row[3]) for row in rows if row[3] is not None)
    return sorted(day for day in days if day is not None)


async def check_partitions(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Whether the days to come have partitions, for tables that are in use."""
    settings = installation.settings
    async with installation.database() as connection:
        now = await partitions.clock(connection)
        in_use = {
            partitions.INBOX: (await connection.execute(statements.activity.of_all_queues())).first() is not None,
            partitions.PUBLISHED: settings.published_retention is not None,
        }
        days = {table: await _days_of(connection, table) for table, is_used in in_use.items() if is_used}
    for table, existing in days.items():
        for finding in _of_days(table, existing, now.date()):
            yield finding


def _of_days(table: PartitionedTable, existing: list[date], today: date) -> Iterator[Diagnosis]:
    ahead = [day for day in existing if day > today]
    if ahead:
        return
    last = f"the last one is of {existing[-1]}" if existing else "there is none"
    yield warning(
        "partitions-missing",
        f"The table {table.name} has no partition for the days to come: {last}.",
        why="Rows go to the default partition, and nothing is lost. But they are deleted one by one and not by the "
        "day, and a growing default partition makes each new one slow to create.",
        cure="Create them. If it says that it may not, the tables must belong to its role; docs/how-to/"
        "grant-least-privileges.md has the lines:",
        commands=("outboxkit prune",),
    )
