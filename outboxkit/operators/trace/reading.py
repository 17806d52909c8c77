"""Reading a database for `outboxkit trace`: what indexes lead to, a window of each table, and what rows wait for."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

from sqlalchemy import Connection, Executable, Row, Select

from outboxkit import ids, schema, statements
from outboxkit.errors.failures import class_of
from outboxkit.errors.figures import COUNTED, in_utc, number
from outboxkit.message import DEFAULT_DESTINATION, LAST_MOMENT
from outboxkit.operators import sql
from outboxkit.operators.blockers import Blocker, read_blockers
from outboxkit.runtime import urls
from outboxkit.runtime.known_handlers import KnownHandler, read_handlers
from outboxkit.runtime.pauses import Pause, read_pauses
from outboxkit.runtime.workers import RELAY, KnownWorker, is_session_of, read_workers
from outboxkit.statements.dialects import is_server
from outboxkit.statements.server import moment

T = TypeVar("T")
WINDOW = 20_000
"""Rows of a table that are read where no index leads to the messages."""
MOST = 500
"""Messages of a query that are taken from a table."""
MOST_NAMES = 200
"""Handlers and queues whose rows are looked for."""
MOST_EXPLAINED = 50
"""Rows of the outbox whose blockers are looked for, unless more are to be shown."""
ASSUMED_RETENTION = timedelta(days=1)
"""The retention that is assumed of dead letters, and of inbox rows if no handler is known."""


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """A message id, a key or a correlation id: one of them is not None. Of many, `limit` are shown, added `since`."""

    message_id: str | None = None
    key: str | None = None
    correlation_id: str | None = None
    limit: int = 50
    since: datetime | None = None

    @property
    def id_(self) -> str | None:
        """The id of a message that is looked for. The first message of a correlation id has it as its own id."""
        return self.message_id or self.correlation_id

    @property
    def begun(self) -> datetime | None:
        """The earliest moment at which such a message was added, by its producer; None if no id tells it."""
        return ids.time_before(self.id_) if self.id_ is not None else None

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of a match: the messages of the query, and those that the given one has caused."""
        of = {"message_id": self.id_, "causation_id": self.message_id}
        return of | {"correlation_id": self.correlation_id, "key": self.key}

    def selects(self, message_id: str, row: Any) -> bool:
        """Whether this message was asked for, and not one that it has caused."""
        if self.key is not None:
            return bool(row.key == self.key)
        return message_id == self.id_ or (self.correlation_id is not None and row.correlation_id == self.correlation_id)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The things that a row of the outbox may wait for; rows are of the statements of the same names.

    Attributes:
        lock: the session that has it locked.
        ready, held: the first rows of its key before it.
        parking: the dead letter that parks its key.
        ahead: ready rows of its destination before it, up to a limit.
        relays: sessions of its destination's relays; None if that cannot be known.
        pause: of its destination's relay.
    """

    lock: Row[Any] | None = None
    ready: Row[Any] | None = None
    held: Row[Any] | None = None
    parking: Row[Any] | None = None
    ahead: int = 0
    relays: int | None = None
    pause: Pause | None = None


@dataclass(slots=True)
class DatabaseRows:
    """The rows of one database that tell of the messages of a query.

    Attributes:
        name: its address, without user and password.
        waiting, kept, letters: rows of messages, by their own keys.
        handled, crashes: rows of the inbox, and records of starts and of failures.
        around: what rows of the outbox wait for, by position.
        oldest_kept: when the oldest message that is kept was published; None if none is.
        blockers: sessions for whose locks outboxkit's sessions wait.
        unread: the parts of tables that were not read.
    """

    name: str
    now: datetime
    waiting: dict[int, Row[Any]] = field(default_factory=dict)
    kept: dict[tuple[datetime, int], Row[Any]] = field(default_factory=dict)
    letters: dict[int, Row[Any]] = field(default_factory=dict)
    handled: list[Row[Any]] = field(default_factory=list)
    crashes: dict[tuple[str, str], Row[Any]] = field(default_factory=dict)
    handlers: list[KnownHandler] = field(default_factory=list)
    around: dict[int, Surroundings] = field(default_factory=dict)
    oldest_kept: datetime | None = None
    workers: tuple[KnownWorker, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    unread: list[str] = field(default_factory=list)

    def messages(self) -> Iterator[Row[Any]]:
        """The rows that have a message's properties."""
        yield from self.waiting.values()
        yield from self.kept.values()
        yield from self.letters.values()

    def ids(self) -> set[str]:
        """The ids of all messages; a dead letter may have none that could be read."""
        of_retried = {id_ for _, id_ in self.crashes}
        return {row.message_id for row in self.messages() if row.message_id is not None} | of_retried

    def hide_errors(self) -> None:
        """Keep of each error its class alone."""
        self.waiting = _classes_only(self.waiting)
        self.letters = _classes_only(self.letters)
        self.crashes = _classes_only(self.crashes)
        for position, each in self.around.items():
            errors = {name: _class_only(getattr(each, name)) for name in ("ready", "held", "parking")}
            self.around[position] = replace(each, **errors)

    def may_have_forgotten(self, born: datetime | None) -> bool:
        """Whether a message of this time, or of an unknown one, may be older than the inbox rows that are kept."""
        retentions = [each.retention for each in self.handlers] or [ASSUMED_RETENTION]
        return any(born is None or each is None or self.now - born >= each for each in retentions)

    def expected(self, message: Any) -> list[KnownHandler]:
        """The registered handlers that take a message of this type, queue and destination, if their types are known."""
        return [
            each
            for each in self.handlers
            if message.type in (each.types or ())
            and each.last_seen > statements.handlers.NEVER
            and message.destination in (None, DEFAULT_DESTINATION)
            and message.queue in (None, each.queue)
        ]


def _class_only(row: Any) -> Any:
    """A row whose error is its class alone; None stays None."""
    if row is None:
        return None
    values = row._asdict()
    return SimpleNamespace(
        **values | {name: class_of(values[name]) for name in ("error", "last_error") if values.get(name)}
    )


def _classes_only(rows: dict[T, Any]) -> dict[T, Any]:
    return {key: _class_only(row) for key, row in rows.items()}


def read_messages(connection: Connection, query: TraceQuery) -> DatabaseRows:
    """Find the messages of a query, in the connection's transaction."""
    schema.check(connection)
    dialect = connection.dialect.name
    if is_server(dialect):
        connection.execute(statements.status.forbid_sorting())
    now = connection.execute(moment(dialect)).scalar_one()
    database = DatabaseRows(urls.shown(connection.engine.url), now)
    database.oldest_kept = connection.execute(statements.status.oldest_published()).scalar_one()
    if query.key is not None:
        outbox = {"ready": sql.trace.ready_of_key(dialect), "held": sql.trace.held_of_key(dialect)}
        letters, retried = sql.trace.parked_of_key(), sql.trace.retried_of_key()
    else:
        outbox = {"delayed": sql.trace.delayed(dialect), "deduplicated": sql.trace.deduplicated(dialect)}
        letters, retried = sql.trace.dead(dialect), None

    def read(statement: Executable, what: str) -> Sequence[Row[Any]]:
        parameters = {"key": query.key, "ids": [query.id_], "limit": MOST + 1}
        rows = connection.execute(statement, parameters).all()
        if len(rows) > MOST:
            database.unread.append(f"{what} behind the first {MOST}")
        return rows[:MOST]

    for state, statement in outbox.items():
        database.waiting |= {row.position: row for row in read(statement, f"{state} messages")}
    database.letters |= {row.id: row for row in read(letters, "dead letters")}
    if retried is not None:
        _add_records(database, read(retried, "messages that are tried again"))
    _read_windows(connection, query, database)
    return database


def _read_windows(connection: Connection, query: TraceQuery, database: DatabaseRows) -> None:
    """Read a window of each table. If an id tells a time, it is there, and else at the newest rows."""
    dialect, begun = connection.dialect.name, query.begun
    lowest, highest = connection.execute(sql.trace.ends()).one()

    def read(statement: Select[Any], rest: Callable[[Row[Any]], str], **start: Any) -> list[Row[Any]]:
        parameters = query.parameters | start | {"window": WINDOW, "limit": MOST + 1}
        rows = connection.execute(statement, parameters).all()
        if len(rows) > MOST:
            database.unread.append(f"{rest(rows[MOST - 1])}, as {MOST} messages had been found")
        elif rows and rows[-1].number == WINDOW:
            database.unread.append(rest(rows[-1]))
        return [row for row in rows[:MOST] if row.is_match]

    if lowest is not None:
        newest = highest + 2 - WINDOW  # a window to the end is not full
        first = min(_position_at(connection, begun, lowest, highest), newest) if begun else newest
        if first > lowest:
            database.unread.append(f"the outbox before position {number(first)}")
        outbox = sql.trace.outbox_window(dialect)
        rows = read(outbox, lambda row: f"the outbox behind position {number(row.position)}", position=first)
        database.waiting |= {row.position: row for row in rows}
    at = begun if begun is not None and begun < database.now else LAST_MOMENT
    for newest_first, side in ((True, "before"), (False, "after")):
        if newest_first or at < LAST_MOMENT:
            published = sql.trace.published_window(dialect, newest_first=newest_first)
            rows = read(published, partial(_rest_of_kept, side), at=at)
            database.kept |= {(row.published_at, row.position): row for row in rows}
    rows = read(sql.trace.dead_window(dialect), lambda row: f"dead letters below number {row.id}")
    database.letters |= {row.id: row for row in rows}


def _rest_of_kept(side: str, row: Row[Any]) -> str:
    return f"messages kept {side} {in_utc(row.published_at)}"


def _position_at(connection: Connection, moment: datetime, lowest: int, highest: int) -> int:
    """A position half a window before rows that were added at this moment: positions follow the time, if roughly."""
    while lowest < highest:
        middle = (lowest + highest) // 2
        rows = connection.execute(sql.trace.first_added(), {"position": middle}).all()
        # a delayed row is dated by its due time
        added = next((row.created_at for row in rows if row.held or row.due_at is None), rows[0].created_at)
        lowest, highest = (middle + 1, highest) if added is not None and added < moment else (lowest, middle)
    return lowest - WINDOW // 2


def read_outcomes(
    connection: Connection, query: TraceQuery, database: DatabaseRows, message_ids: Collection[str]
) -> None:
    """Find what became of these messages, and what those in the outbox wait for."""
    dialect = connection.dialect.name
    if is_server(dialect):
        connection.execute(statements.status.forbid_sorting())
    most = {"most": MOST_NAMES + 1}
    handlers = connection.execute(statements.status.handlers(), most).scalars().all()
    queues = connection.execute(statements.status.queues_with_crashes(), most).scalars().all()
    if len(handlers) > MOST_NAMES:
        database.unread.append(f"the inbox's rows of handlers behind {handlers[MOST_NAMES - 1]}")
    by_ids = {"limit": 10 * MOST, "ids": sorted(message_ids)}
    database.handled += connection.execute(sql.trace.handled(dialect), by_ids | {"handlers": [*handlers]})
    _add_records(database, connection.execute(sql.trace.crashes(dialect), by_ids | {"queues": [*queues]}))
    database.letters |= {row.id: row for row in connection.execute(sql.trace.dead(dialect), by_ids)}
    database.handlers, database.workers = read_handlers(connection), read_workers(connection)
    if is_server(dialect):
        database.blockers = read_blockers(connection, database.now)
    if database.waiting:
        _read_surroundings(connection, query, database)


def _add_records(database: DatabaseRows, rows: Iterable[Row[Any]]) -> None:
    database.crashes |= {(row.queue, row.message_id): row for row in rows}


def _read_surroundings(connection: Connection, query: TraceQuery, database: DatabaseRows) -> None:
    """Of the messages of the query first, and then of those that they have caused."""

    def place(row: Row[Any]) -> tuple[bool, int]:
        return not query.selects(row.message_id, row), row.position

    rows = sorted(database.waiting.values(), key=place)[: max(MOST_EXPLAINED, query.limit)]
    locks, sessions = dict[int, Row[Any]](), None
    if is_server(connection.dialect.name):
        positions = {"positions": [row.position for row in rows]}
        locks = {lock.position: lock for lock in connection.execute(sql.trace.row_locks(), positions)}
        sessions = [row.name for row in connection.execute(statements.activity.sessions())]
    pauses = {pause.name: pause for pause in read_pauses(connection) if pause.process == RELAY}
    counted = dict[str, int]()
    for row in rows:
        of_key = {"key": row.key, "destination": row.destination, "position": row.position}
        ahead = counted.get(row.destination, 0)
        if ahead <= COUNTED:  # else the rows behind it have as many ahead
            ahead = connection.execute(sql.trace.count_ahead(), of_key | {"limit": COUNTED + 1}).scalar_one()
            counted[row.destination] = ahead
        ready, held, parking = (
            connection.execute(statement, of_key).one_or_none() if row.key is not None else None
            for statement in (sql.trace.first_ready_before(), sql.trace.first_held_before(), sql.trace.parking())
        )
        relays = None if sessions is None else sum(is_session_of(name, RELAY, row.destination) for name in sessions)
        database.around[row.position] = Surroundings(
            locks.get(row.position), ready, held, parking, ahead, relays, pauses.get(row.destination)
        )
