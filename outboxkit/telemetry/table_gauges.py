"""The gauges of the tables: read from the database at a collection, and kept for a few seconds.

They need no event loop, so that they go on while a worker hangs. They are read in a thread of their own, for which a
collection does not wait if the database does not answer.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from threading import Lock, Thread

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.database import engines
from outboxkit.errors import ConfigurationError
from outboxkit.errors.figures import COUNTED
from outboxkit.errors.sqlstates import sqlstate_of
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.statements import activity, partitions, pauses, status
from outboxkit.statements.dialects import is_server, snapshot_options
from outboxkit.telemetry import catalogue, metrics
from outboxkit.telemetry.catalogue import Metric
from outboxkit.telemetry.metrics import NONE, Reading

Readings = dict[Metric, list[Reading]]

KEPT_SECONDS = 5.0
"""Readings are that old at most."""
PATIENCE_SECONDS = 3.0
"""The time for which a collection waits for the database, before it does without."""
MOST_DESTINATIONS = 20
COUNT_LIMIT = {"limit": COUNTED}
GAUGES = catalogue.CATALOGUE["The tables"]


class TableReader:
    """Reads the gauges of a database, at most one time every few seconds, however many collect."""

    def __init__(
        self,
        engine: Engine,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._now, self._monotonic = now, monotonic
        self._lock = Lock()
        self._due = float("-inf")
        self._readings: Readings = {}
        self._reading: Thread | None = None
        self._given_up: Thread | None = None

    def read(self, metric: Metric) -> Iterable[Reading]:
        """The readings of one gauge. Empty if the database does not answer, or if this role may not read the table."""
        with self._lock:
            if self._reading is None or (self._monotonic() >= self._due and not self._reading.is_alive()):
                self._readings = {}
                self._reading = Thread(target=self._refresh, name="outboxkit gauges", daemon=True)
                self._reading.start()
            if self._reading is not self._given_up or not self._reading.is_alive():
                self._reading.join(PATIENCE_SECONDS)
            self._given_up = self._reading if self._reading.is_alive() else None
            return () if self._given_up else self._readings.get(metric, ())

    def _refresh(self) -> None:
        readings: Readings = {}
        try:
            for part in PARTS if is_server(self._engine.dialect.name) else PARTS_OF_EACH:
                if not self._add(readings, part):
                    break
        finally:
            self._readings, self._due = readings, self._monotonic() + KEPT_SECONDS

    def _add(self, readings: Readings, part: "GaugeReader") -> bool:
        """Add one part's readings, if its tables may be read. False: the database is away."""
        try:
            with self._engine.connect() as connection:
                connection.execution_options(**snapshot_options(connection.dialect.name))
                if is_server(connection.dialect.name):
                    connection.execute(status.limit_reading())
                readings |= part(connection, self._now())
        except DBAPIError as error:
            return sqlstate_of(error) is not None and not error.connection_invalidated
        return True


GaugeReader = Callable[[Connection, datetime], Readings]


def _outbox(connection: Connection, now: datetime) -> Readings:
    names = connection.execute(status.destinations(), {"limit": 1, "most": MOST_DESTINATIONS}).scalars().all()
    counts, ages = list[Reading](), list[Reading]()
    for name in dict.fromkeys((DEFAULT_DESTINATION, *names[:MOST_DESTINATIONS])):
        ours = COUNT_LIMIT | {"destination": name}
        ready, oldest_ready = connection.execute(status.ready(), ours).one()
        waiting, next_due = connection.execute(status.count_waiting(), ours).one()
        parked = connection.execute(status.parked(), ours).scalar_one()
        states = {"ready": ready, "waiting": waiting, "parked": parked}
        counts += [(count, {"destination": name, "state": state}) for state, count in states.items()]
        since = [moment for moment in (oldest_ready, next_due) if moment is not None and moment <= now]
        ages.append(((now - min(since, default=now)).total_seconds(), {"destination": name}))
    return {catalogue.OUTBOX_MESSAGES: counts, catalogue.OLDEST_AGE: ages}


def _dead_letters(connection: Connection, _: datetime) -> Readings:
    counts = {(side, reason): 0 for side, reasons in catalogue.DEAD_REASONS.items() for reason in reasons}
    counts |= {(row.side, row.reason): row.rows for row in connection.execute(status.dead_open(), COUNT_LIMIT)}
    readings: list[Reading] = [(count, {"side": side, "reason": reason}) for (side, reason), count in counts.items()]
    return {catalogue.DEAD_OPEN: readings}


def _parked_keys(connection: Connection, _: datetime) -> Readings:
    count = connection.execute(status.count_parked_keys(), COUNT_LIMIT).scalar_one()
    return {catalogue.PARKED_KEYS: [(count, NONE)]}


def _pauses(connection: Connection, now: datetime) -> Readings:
    rows = connection.execute(pauses.active_pauses(connection.dialect.name)).all()
    ages = list[Reading]()
    for row in rows:
        names = {"destination": "", "queue": "", "destination" if row.process == "relay" else "queue": row.name}
        ages.append((max(0.0, (now - row.since).total_seconds()), names))
    return {catalogue.PAUSE_AGE: ages}


def _database(connection: Connection, now: datetime) -> Readings:
    oldest = connection.execute(activity.oldest_transactions()).first()
    since = oldest.since if oldest is not None else now
    vacuum = connection.execute(activity.vacuum()).first()
    return {
        catalogue.OLDEST_TRANSACTION_AGE: [((now - since).total_seconds(), NONE)] if since is not None else [],
        catalogue.DEAD_ROWS: [(vacuum.dead_rows, NONE)] if vacuum is not None else [],
    }


def _inbox(connection: Connection, _: datetime) -> Readings:
    days = partitions.INBOX.days_of(connection.execute(partitions.attached(partitions.INBOX)))
    oldest = [datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() for day in days[:1]]
    return {catalogue.INBOX_OLDEST_DAY: [(second, NONE) for second in oldest]}


PARTS_OF_EACH: tuple[GaugeReader, ...] = (_outbox, _dead_letters, _parked_keys, _pauses)
PARTS: tuple[GaugeReader, ...] = (*PARTS_OF_EACH, _database, _inbox)
"""The parts that are read one after the other. A role that may not read one has the others."""


class TableGauges:
    """The gauges of the tables in a process, which have a connection of their own beside its engine."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._reader: Engine | None = None

    async def open(self) -> None:
        """Make ready to read, if anybody collects. A database in memory has no gauges."""
        if metrics.is_on():
            try:
                self._reader = await engines.reader_beside(self._engine)
            except ConfigurationError:
                return

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Have the gauges read while the block runs."""
        if self._reader is None:
            yield
            return
        reader = TableReader(self._reader)
        try:
            with metrics.observed({metric: partial(reader.read, metric) for metric in GAUGES}):
                yield
        finally:
            self._reader.dispose()
