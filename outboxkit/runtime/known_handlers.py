"""The handlers that consumers have registered: names that queues share, and commands that start or forget a queue."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby, permutations
from operator import attrgetter

import msgspec
from sqlalchemy import Connection, RowMapping

from outboxkit.database.session_names import may_be_of_queue
from outboxkit.errors.figures import printable_name, shell_word, span
from outboxkit.statements import activity, handlers
from outboxkit.statements.dialects import is_server

_SHARD = re.compile(r"(\.\d+)+$")
"""The end of a shard's name: `steps.4.0` and `steps.4.1` are parts of the queue `steps`."""


@dataclass(frozen=True, slots=True)
class KnownHandler:
    """A handler that the consumer of a queue has registered.

    Attributes:
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
        types: the types that more than one of them takes; empty if they are not known.
    """

    handler: str
    types: tuple[str, ...]
    has_handled: bool
    handlers: tuple[KnownHandler, ...]
    as_of: datetime

    @property
    def what(self) -> str:
        """The finding, as a sentence."""
        queues = " and ".join(each.seen(self.as_of) for each in self.handlers)
        functions = sorted({printable_name(each.function) for each in self.handlers if each.function is not None})
        named = ("two functions, " if len(functions) > 1 else "") + " and ".join(functions)
        types = f", and both take {printable_name(', '.join(self.types))}" if self.types else ""
        shared = f"Queues {queues} have a handler {printable_name(self.handler)} each"
        return f"{shared}{': ' if named else ''}{named}{types}."

    @property
    def is_clash(self) -> bool:
        """Whether they are different functions, as far as known, so that one of two effects is left out."""
        functions = {each.function for each in self.handlers}
        return len(functions) > 1 or None in functions

    @property
    def cure(self) -> str:
        """The cure. It renames nothing that has handled messages."""
        if not self.has_handled:
            return "Rename one of them before it handles a message, to a name that begins with its service."
        return (
            "Do not rename it: the inbox has messages of this name, and to a new name every message is new. Take the "
            "handler out of the consumer that should not have it, or give that service a database of its own."
        )

    @property
    def mistake(self) -> str:
        """The command that forgets the queue that was seen longest ago."""
        return forget_command(min(self.handlers, key=lambda each: (bool(each.is_connected), each.last_seen)).queue)


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
    return _known(connection, connection.execute(handlers.of_all_handlers()).mappings())


def read_shared(connection: Connection, now: datetime) -> list[SharedName]:
    """The names that several queues' consumers had within a day, for the same types."""
    rows = connection.execute(handlers.of_several_queues(now - handlers.SEEN)).mappings()

    def has_handled(name: str) -> bool:
        return bool(connection.execute(handlers.has_handled(), {"handler": name}).scalar_one())

    shared = list[SharedName]()
    known = sorted(_known(connection, rows), key=attrgetter("handler", "queue"))
    for name, group in groupby(known, key=attrgetter("handler")):
        types, places = set[str](), dict[str, KnownHandler]()
        for one, other in permutations(group, 2):
            common = None if one.types is None or other.types is None else set(one.types) & set(other.types)
            if common != set() and _SHARD.sub("", one.queue) != _SHARD.sub("", other.queue):
                types |= common or set()
                places |= {one.queue: one}
        if places:
            shared.append(SharedName(name, tuple(sorted(types)), has_handled(name), tuple(places.values()), now))
    return shared


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
