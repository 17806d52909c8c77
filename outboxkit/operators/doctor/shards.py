"""Ordered queues, and the changes of their numbers of shards that go on, as the tables tell them."""

from collections.abc import Iterator, Mapping

from outboxkit import statements
from outboxkit.consumer.membership import GONE, Agreement, read_agreement
from outboxkit.errors.figures import many, printable_name
from outboxkit.operators.doctor.installation import Database
from outboxkit.operators.findings import Diagnosis, finding
from outboxkit.runtime import known_handlers
from outboxkit.runtime.sources import Shards


def agreements(database: Database) -> Mapping[str, Agreement]:
    """The agreement of the processes of each queue that is, or was, consumed in order; of those that are there."""
    members = dict[str, list[tuple[str, int]]]()
    present = statements.shards.all_members(database.connection.dialect.name)
    for queue, member, count in database.rows(present, ago=-GONE):
        members.setdefault(queue, []).append((member, count))
    rows = database.rows(statements.shards.of_all_shards())
    return {row.queue: read_agreement(row, tuple(members.get(row.queue, ()))) for row in rows}


def start_command(queue: str, agreement: Agreement | None, *, ordered: bool) -> str:
    """The command that starts a consumer of a queue; a number of shards is in it if it is split, or changes."""
    if agreement is None or (agreement.is_settled and agreement.shards == 1):
        return known_handlers.consume_command(queue, ordered=ordered or agreement is not None)
    return known_handlers.consume_command(queue, shards=agreement.shards)


def check_shards(database: Database) -> Iterator[Diagnosis]:
    """Changes of a number of shards that go on, or cannot begin."""
    for queue, agreement in agreements(database).items():
        counts = {count for _, count in agreement.members if count != agreement.shards}
        if not agreement.is_settled:
            change, waits = f"changes to {agreement.shards}", _what_is_first(queue, agreement)
            if not agreement.members:
                waits += ", and no process of it runs"
        elif counts and (others := agreement.in_the_way_of(min(counts))):
            change = f"is to change to {' or '.join(map(str, sorted(counts)))}"
            running = many(others, "process that runs", "processes that run")
            waits = f"it waits for the end of {running} with {agreement.shards}"
        else:
            continue
        yield finding(
            "shards-moving",
            worse=not agreement.members,
            queue=printable_name(queue),
            change=change,
            waits=waits,
            consume=None if agreement.members else start_command(queue, agreement, ordered=True),
        )


def _what_is_first(queue: str, agreement: Agreement) -> str:
    """The messages for which a change waits."""
    old = tuple(agreement.draining) or Shards(queue, agreement.moved_from or 1).names
    names = ", ".join(map(printable_name, old))
    if agreement.is_open:
        keys = {key for left in agreement.draining.values() for key in left or ()}
        return f"later messages of {many(len(keys), 'key')} wait for earlier ones in {names}"
    return f"messages in {names} are handled first, and later ones after them"
