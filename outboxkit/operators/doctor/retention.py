"""Retention, and the consumers that count on it: windows, pruning, partitions, names, and consumers that are gone."""

from collections.abc import Iterator
from datetime import date, datetime, timedelta

from outboxkit import statements
from outboxkit.consumer import ConsumerPolicy
from outboxkit.database.session_names import may_be_of_queue
from outboxkit.errors import ConfigurationError
from outboxkit.errors.figures import printable_name, span
from outboxkit.operators import sql
from outboxkit.operators.doctor.installation import Database
from outboxkit.operators.doctor.shards import agreements, start_command
from outboxkit.operators.findings import Diagnosis, finding
from outboxkit.runtime import known_handlers, window
from outboxkit.schema import partitions
from outboxkit.statements import activity, handlers
from outboxkit.statements.partitions import INBOX, PUBLISHED, PartitionedTable


def check_retention(database: Database) -> Iterator[Diagnosis]:
    """Compare the retention of these settings with the retries, and with what each consumer counts on."""
    settings = database.settings
    inbox = settings.inbox_retention
    policy = ConsumerPolicy(max_attempts=settings.max_attempts, retention=inbox, delays=settings.retry_delays)
    recommended = window.recommended(settings.retry_delays, settings.max_attempts, window.CLOCK_SKEW)
    days = -(-recommended // timedelta(days=1))
    try:
        policy.check(database.installation.handlers)
    except ConfigurationError as error:
        yield finding("retention-short", worse=True, what=error, days=days)
    else:
        if inbox < recommended:
            retries = _shown(recommended / window.SAFETY_FACTOR)
            what = f"OUTBOXKIT_INBOX_RETENTION is {_shown(inbox)}, and retries alone may take {retries}"
            yield finding("retention-short", what=what, days=days)
    rows = database.rows(handlers.of_all_retentions(database.now - handlers.SEEN))
    if longer := [row for row in rows if row.retention > inbox.total_seconds()]:
        theirs = tuple(f"{printable_name(row.queue)} {span(row.retention)}" for row in longer)
        days = -(-max(row.retention for row in longer) // 86_400)
        yield finding("retention-differs", here=_shown(inbox), theirs=theirs, days=days)


def _shown(duration: timedelta) -> str:
    return span(duration.total_seconds())


def check_pruning(database: Database) -> Iterator[Diagnosis]:
    """Look for rows that a pruner with these settings would have deleted days ago, and for partitions to be made."""
    rows = [(name, over) for name, over in _oldest(database) if over >= database.limits.forgotten]
    late = [f"The retention of {name} is over for {_shown(over)}" for name, over in rows]
    if database.is_server:
        late += [
            f"The table {table.name} has no partition for the days to come" for table in _without_partition(database)
        ]
    if late:
        yield finding("prune-missing", worse=bool(rows), late=". ".join(late))


def _without_partition(database: Database) -> Iterator[PartitionedTable]:
    """The tables in use whose days to come have no partition."""
    in_use = {
        INBOX: bool(database.rows(handlers.of_all_queues())),
        PUBLISHED: database.settings.published_retention is not None,
    }
    for table, is_used in in_use.items():
        if is_used and not any(day > database.now.date() for day in _days_of(database, table)):
            yield table


def _oldest(database: Database) -> Iterator[tuple[str, timedelta]]:
    """For each kind of row how long its retention is over; less than nothing if it is not."""
    settings, now = database.settings, database.now
    forget = window.forget_before(now, retention=settings.inbox_retention, skew=window.CLOCK_SKEW)
    if database.is_server:
        moment = database.value(sql.doctor.oldest_unplaced(database.connection.dialect.name))
        days = _days_of(database, INBOX)
        ends = [datetime.combine(day + partitions.DAY, datetime.min.time(), forget.tzinfo) for day in days]
        first = min([*ends, *([] if moment is None else [moment])], default=None)
        if first is not None:
            yield "inbox rows", forget - first
    for name, statement, before in (
        ("effects", sql.doctor.oldest_effect(), forget),
        ("idempotency keys", sql.doctor.oldest_request(), now),
        ("published messages", statements.status.oldest_published(), _ago(now, settings.published_retention)),
    ):
        if before is not None and (moment := database.value(statement)) is not None:
            yield name, before - moment
    before = _ago(now, settings.dead_retention)
    for letter in database.rows(sql.doctor.first_dead_letter()):
        if before is not None and not letter.parked:
            yield "dead letters", before - letter.dead_at


def _ago(now: datetime, retention: timedelta | None) -> datetime | None:
    return None if retention is None else window.forget_before(now, retention=retention, skew=timedelta(0))


def _days_of(database: Database, table: PartitionedTable) -> list[date]:
    return table.days_of(database.rows(statements.partitions.attached(table)))


def check_names(database: Database) -> Iterator[Diagnosis]:
    """Names that the consumers of several queues have for different handlers, for messages that may reach both."""
    for each in known_handlers.read_shared(database.connection, database.now):
        if each.is_clash:
            yield finding("handler-name-shared", what=each.what, cure=each.cure, mistake=each.mistake)


def check_consumers(database: Database) -> Iterator[Diagnosis]:
    """Queues whose consumers have not been seen lately, though they register every hour."""
    of_queues = agreements(database)
    names = [row.name for row in database.rows(activity.sessions())]
    for queue, last_seen in database.rows(handlers.of_all_queues()):
        age = database.now - last_seen
        is_connected = any(may_be_of_queue(name, queue) for name in names)
        if last_seen > handlers.NEVER and age >= database.limits.consumer and not is_connected:
            yield finding(
                "consumer-gone",
                queue=printable_name(queue),
                age=_shown(age),
                consume=start_command(queue, of_queues.get(queue), ordered=database.settings.ordered),
                forget=known_handlers.forget_command(queue),
            )
