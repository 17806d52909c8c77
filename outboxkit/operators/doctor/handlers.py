"""The handlers that consumers have registered: names that two queues share, and consumers that have gone."""

from collections.abc import AsyncGenerator

from outboxkit.database.session_names import may_be_of_queue
from outboxkit.errors.wording import printable_name, span
from outboxkit.operators.doctor.diagnosis import note, problem, warning
from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.findings import Diagnosis
from outboxkit.runtime import known_handlers
from outboxkit.schema import partitions
from outboxkit.statements import activity, shards


async def check_names(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Names of handlers that the consumers of several queues have, for messages that may reach both."""
    async with installation.database() as connection:
        now = await partitions.clock(connection)
        shared = await connection.run_sync(known_handlers.read_shared, now)
    for each in shared:
        commands = (*([each.new_name] if each.new_name is not None else []), each.mistake)
        cure = f"{each.cure} If a queue was a mistake, forget it:"
        if each.is_clash:
            yield problem("handler-name-shared", each.what, why=each.why, cure=cure, commands=commands)
        else:
            yield note("handler-on-two-queues", each.what, why=each.why, cure=cure, commands=commands)


async def check_windows(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Whether a pruner with these settings keeps what each consumer counts on."""
    retention = installation.settings.inbox_retention
    async with installation.database() as connection:
        now = await partitions.clock(connection)
        rows = (await connection.execute(activity.of_all_retentions(now - activity.SEEN))).all()
    longer = [row for row in rows if row.retention > retention.total_seconds()]
    if longer:
        theirs = ", ".join(f"{printable_name(row.queue)} {span(row.retention)}" for row in longer)
        longest = -(-max(row.retention for row in longer) // 86_400)
        yield problem(
            "retention-differs",
            f"OUTBOXKIT_INBOX_RETENTION is {span(retention.total_seconds())} here, and consumers count on more: "
            f"{theirs}.",
            why="If a pruner has this setting, it forgets messages that these consumers still take. A duplicate of one "
            "is handled twice.",
            cure="Give all the same value, and prune first of all. If only this shell has another value than the "
            "pruner, set it here:",
            commands=(f"OUTBOXKIT_INBOX_RETENTION={longest}d",),
        )


async def check_consumers(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Queues whose consumers have not been seen lately, though they register every hour."""
    async with installation.database() as connection:
        now = await partitions.clock(connection)
        rows = (await connection.execute(activity.of_all_queues())).all()
        split = {row.queue: row.shards for row in await connection.execute(shards.of_all_shards())}
        names = [row.name for row in (await connection.execute(activity.sessions())).all()]
    for row in rows:
        age = now - row.last_seen
        is_connected = any(may_be_of_queue(name, row.queue) for name in names)
        if row.last_seen <= activity.NEVER or age < installation.thresholds.consumer or is_connected:
            continue
        queue = printable_name(row.queue)
        yield warning(
            "consumer-gone",
            f"No consumer of queue {queue} is connected, and the last one was seen {span(age.total_seconds())} ago.",
            why="If the queue is bound still, its messages gather at the broker, and grow too old for the inbox.",
            cure="Start its consumer. If the queue is given up, or was a mistake, delete it at the broker, and "
            "forget its handlers:",
            commands=(
                known_handlers.consume_command(
                    row.queue, shards=split.get(row.queue, 1), ordered=installation.settings.ordered
                ),
                known_handlers.forget_command(row.queue),
            ),
        )
