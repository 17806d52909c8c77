"""The handlers that consumers have registered: names that two queues share, and forgetting those of a queue."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby, permutations
from operator import attrgetter

import msgspec
from sqlalchemy import Connection, RowMapping

from outboxkit.database.session_names import may_be_of_queue
from outboxkit.errors import ConfigurationError
from outboxkit.errors.wording import printable_name, shell_word, span
from outboxkit.message import storable
from outboxkit.runtime import audit
from outboxkit.runtime.sources import Shards
from outboxkit.statements import activity, shards
from outboxkit.statements.dialects import is_server

_SHARD = re.compile(r"(\.\d+)+$")
"""The end of a shard's name: `steps.4.0` and `steps.4.1` are parts of the queue `steps`."""


@dataclass(frozen=True, slots=True)
class KnownHandler:
    """A handler that the consumer of a queue has registered.

    Attributes:
        queue: the consumer's.
        handler: its name.
        function: module and name; None: not known.
        types: of the messages that it takes; None: not known.
        last_seen: the last time at which its consumer registered it, which is every hour.
        is_connected: whether a consumer of the queue is connected now; None: the database cannot tell.
        first_seen: when its consumer registered it first; None: not known.
        retention: of the consumer's inbox; None: not known.
    """

    queue: str
    handler: str
    function: str | None
    types: tuple[str, ...] | None
    last_seen: datetime
    is_connected: bool | None = None
    first_seen: datetime | None = None
    retention: timedelta | None = None

    def seen(self, now: datetime) -> str:
        """The queue, and when its consumer was there."""
        ago = f"last seen {span(max(0.0, (now - self.last_seen).total_seconds()))} ago"
        return f"{printable_name(self.queue)} ({'connected now' if self.is_connected else ago})"


@dataclass(frozen=True, slots=True)
class SharedName:
    """A handler's name that the consumers of several queues have, for messages that may reach more than one of them.

    The shards of one queue share their handlers on purpose: a message reaches one of them. So do queues whose handlers
    take other types.

    Attributes:
        handler: the name.
        types: the types that more than one of them takes; empty if they are not known.
        has_handled: whether the inbox has messages of this name.
        places: the queues' handlers.
        as_of: when this was read.
    """

    handler: str
    types: tuple[str, ...]
    has_handled: bool
    places: tuple[KnownHandler, ...]
    as_of: datetime

    @property
    def what(self) -> str:
        """The finding, as a sentence."""
        queues = " and ".join(place.seen(self.as_of) for place in self.places)
        functions = sorted({printable_name(place.function) for place in self.places if place.function is not None})
        named = ("two functions, " if len(functions) > 1 else "") + " and ".join(functions)
        types = f", and both take {printable_name(', '.join(self.types))}" if self.types else ""
        shared = f"Queues {queues} have a handler {printable_name(self.handler)} each"
        return f"{shared}{': ' if named else ''}{named}{types}."

    @property
    def is_clash(self) -> bool:
        """Whether they are different functions, as far as known, so that one of two effects is left out."""
        functions = {place.function for place in self.places}
        return len(functions) > 1 or None in functions

    @property
    def why(self) -> str:
        """The consequence."""
        return (
            "The inbox knows a handler by its name alone. Of a message that reaches both queues one function runs, and "
            "the other consumer takes the message for a duplicate."
        )

    @property
    def cure(self) -> str:
        """The cure, without what is to be pasted. It renames nothing that has handled messages."""
        cure = (
            "Do not rename it: the inbox has messages of this name, and to a new name every message is new. Take the "
            "handler out of the consumer that should not have it, or give that service a database of its own."
            if self.has_handled
            else "Rename one of them before it handles a message, to a name that begins with its service."
        )
        return cure if self.is_clash else "If both queues are meant to feed it, nothing has to be done."

    @property
    def mistake(self) -> str:
        """The command that forgets the queue that was seen longest ago."""
        return forget_command(min(self.places, key=lambda place: (bool(place.is_connected), place.last_seen)).queue)

    @property
    def new_name(self) -> str | None:
        """A name that one of them may get; None if the inbox has messages of this one."""
        if self.has_handled or not self.is_clash:
            return None
        service, _, own = self.handler.rpartition(".")
        queue = next(place.queue for place in reversed(self.places) if place.queue != service)
        return f'@inbox_handler("{printable_name(queue)}.{printable_name(own)}")'


def forget_command(queue: str) -> str:
    """The command that forgets the handlers of a queue, to paste."""
    return f"outboxkit handlers forget {shell_word(queue)}"


def consume_command(queue: str, *, shards: int | None = None, ordered: bool = False) -> str:
    """The command that starts the consumer of a queue, to paste. One with a number of shards is ordered, too."""
    options = " --ordered" if ordered or shards is not None else ""
    options += "" if shards is None else f" --shards {shards}"
    return f"outboxkit consume MODULE --queue {shell_word(queue)}{options}"


def read_handlers(connection: Connection) -> list[KnownHandler]:
    """The handlers of all queues."""
    return _known(connection, connection.execute(activity.of_all_handlers()).mappings())


def read_shared(connection: Connection, now: datetime) -> list[SharedName]:
    """The names that several queues' consumers had within a day, for the same types."""
    rows = connection.execute(activity.of_several_queues(now - activity.SEEN)).mappings()

    def has_handled(name: str) -> bool:
        return bool(connection.execute(activity.has_handled(), {"handler": name}).scalar_one())

    shared = list(shared_names(_known(connection, rows)))
    return [SharedName(name, types, has_handled(name), places, now) for name, types, places in shared]


def shared_names(
    handlers: Iterable[KnownHandler],
) -> Iterable[tuple[str, tuple[str, ...], tuple[KnownHandler, ...]]]:
    """The names that are shared by queues which may get the same message, with the common types. Pure."""
    for name, group in groupby(sorted(handlers, key=attrgetter("handler", "queue")), key=attrgetter("handler")):
        types, places = set[str](), dict[str, KnownHandler]()
        for one, other in permutations(group, 2):
            common = None if one.types is None or other.types is None else set(one.types) & set(other.types)
            if common != set() and _SHARD.sub("", one.queue) != _SHARD.sub("", other.queue):
                types |= common or set()
                places |= {one.queue: one}
        if places:
            yield name, tuple(sorted(types)), tuple(places.values())


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
    connection.execute(activity.forget_handlers(forgotten), {"of_queue": storable(queue)})
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
    left = [f"exchange {each.exchange}, queues {each.names[0]} to {each.names[-1]}" for each in both]
    return ", ".join([*left, *(f"queue {name}" for name in old if name != queue)])


def _known(connection: Connection, rows: Iterable[RowMapping]) -> list[KnownHandler]:
    sessions = None
    if is_server(connection.dialect.name):
        sessions = [row.name for row in connection.execute(activity.sessions())]
    return [
        KnownHandler(
            queue=row["queue"],
            handler=row["handler"],
            function=row["function"],
            types=_types(row["types"]),
            last_seen=row["last_seen"],
            is_connected=None if sessions is None else any(may_be_of_queue(name, row["queue"]) for name in sessions),
            first_seen=row["first_seen"],
            retention=None if row["retention"] is None else timedelta(seconds=row["retention"]),
        )
        for row in rows
    ]


def _types(text: str | None) -> tuple[str, ...] | None:
    try:
        return None if text is None else msgspec.json.decode(text, type=tuple[str, ...])
    except (ValueError, RecursionError):
        return None
