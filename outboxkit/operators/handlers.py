"""Handlers of a queue that is gone, or was a mistake, are forgotten; so are its shards."""

from datetime import timedelta

import msgspec
from sqlalchemy import Connection

from outboxkit.errors import ConfigurationError
from outboxkit.errors.figures import span
from outboxkit.message import storable
from outboxkit.operators import audit
from outboxkit.runtime.known_handlers import read_handlers
from outboxkit.runtime.sources import Shards
from outboxkit.statements import handlers, shards


def forget_queue(connection: Connection, queue: str, *, by: str | None = None) -> list[str]:
    """Forget the handlers of a queue. Returns their names.

    Raises:
        ConfigurationError: a consumer of the queue is connected, or there are no such handlers.
    """
    known = read_handlers(connection)
    own = [each for each in known if each.queue == queue]
    if not own:
        those = ", ".join(sorted({each.queue for each in known})) or "none"
        raise ConfigurationError(f"no consumer of queue {queue!r} is known here; known are {those}")
    forgotten = [each.handler for each in own]
    if own[0].is_connected:
        raise ConfigurationError(
            f"a consumer of queue {queue!r} is connected, and would register its handlers again: stop it first"
        )
    connection.execute(handlers.forget_handlers(forgotten), {"of_queue": storable(queue)})
    operator, count = audit.who(connection, by), len(forgotten)
    audit.record_action(connection, "handlers forget", {"queue": queue}, by=operator, count=count, result=audit.DONE)
    return forgotten


def forget_shards(connection: Connection, queue: str, *, gone: timedelta) -> str | None:
    """Forget that a queue is split. Returns what is left of its shards at the broker; None if it was not split.

    The row stays, because its number of the latest change may not be used twice.

    Args:
        connection: of the transaction.
        queue: the queue.
        gone: a process that has not been seen for so long shares the shards no more.

    Raises:
        ConfigurationError: a process shares them.
    """
    of = {"queue": storable(queue)}
    row = connection.execute(shards.lock_sharding(), of).one_or_none()
    old = msgspec.json.decode(row.draining or "{}", type=dict[str, object]) if row is not None else {}
    if row is None or (row.shards == 1 and row.moved_from is None and not old):
        return None
    connection.execute(shards.delete_gone(connection.dialect.name), of | {"ago": -gone})
    if connection.execute(shards.members(), of).first() is not None:
        lately = f"in the last {span(gone.total_seconds())}"
        raise ConfigurationError(f"a process has shared the shards of queue {queue!r} {lately}: stop it first")
    unsplit = {"of": storable(queue), "shards": 1, "draining": None, "moved_from": None, "move": row.move}
    connection.execute(shards.change_shards(), unsplit)
    both = [Shards(queue, count) for count in (row.shards, row.moved_from or 1) if count > 1]
    left = [f"exchanges {each.exchange} and {each.rest}, queues {each.names[0]} to {each.names[-1]}" for each in both]
    return ", ".join([*left, *(f"queue {name}" for name in old if name != queue)])
