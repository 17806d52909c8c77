"""Replay: kept messages are published again, to rebuild the state of one queue's consumers."""

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import schema, statements
from outboxkit.brokers import Publisher, Receipt, Verdict
from outboxkit.codec.headers import DeliveryHeaders, without_own
from outboxkit.codec.rows import from_row
from outboxkit.errors import BrokerUnavailable, OutboxkitError
from outboxkit.message import DEFAULT_DESTINATION, Message, changed
from outboxkit.operators import audit
from outboxkit.runtime import process
from outboxkit.runtime.outage import Outage, Sleep, keep_to_rate
from outboxkit.runtime.settings import Settings
from outboxkit.schema import partitions
from outboxkit.statements.dialects import is_server
from outboxkit.telemetry import tracing

PAGE = 500
"""The number of messages that are read and published at once."""
LOOK_EVERY = 0.05
"""Seconds between two looks at the relays that are settling."""
COUNT_EVERY = 2.0
"""Seconds between two writes of the count to the audit trail."""
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
KeptPlace = tuple[datetime, int]
"""The time and the position of a kept message."""


@dataclass(frozen=True, slots=True)
class ReplaySelection:
    """The kept messages to replay: those that match every field that is set.

    Attributes:
        until: published before this time; messages published after the start of a replay are never part of it.
        handlers: the handlers that run for them; if empty, all that the queue's consumer has.
        message_ids: the messages with these ids; if empty, all.
    """

    type: str | None = None
    key: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    destination: str = DEFAULT_DESTINATION
    handlers: tuple[str, ...] = ()
    message_ids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class KeptMessages:
    """The number of messages in a selection, and the times of the first and the last one; all are before `until`.

    `absent` is the number of its message ids that are not among them. With `is_partial` there may be more: not all kept
    messages of the time were read.
    """

    count: int
    first: datetime | None
    last: datetime | None
    until: datetime
    absent: int = 0
    is_partial: bool = False


@dataclass(slots=True)
class Replayed:
    """The progress of a replay.

    Attributes:
        total: the number of messages of the selection when the replay began; None lets `run` count them first.
        upto: the time at which the last of them was first published: the start of a continued replay.
        gone: messages of the selection that were deleted before it came to them.
        refused: the reason for which the broker did not take the next message; None if it did.
    """

    count: int = 0
    total: int | None = None
    upto: datetime | None = None
    complete: bool = False
    gone: int = 0
    refused: str | None = None


class Replayer:
    """Publishes kept messages again, with the same ids and in the same order.

    It reads a page at a time, so it takes little memory, and holds no transaction while it publishes. Messages of one
    key keep their order. After an interruption, messages that were published and not confirmed are published twice.

    Args:
        publisher: publishes to the queue alone.
        rate: the maximum number of messages a second; None for no limit.
        patience: how long the database or the broker may be away.
        by: the operator's name, for the audit trail; None: the user of the system.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        publisher: Publisher,
        selection: ReplaySelection,
        *,
        rate: float | None = None,
        patience: timedelta = timedelta(seconds=30),
        by: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._publisher = publisher
        self._selection = selection
        self._rate, self._by = rate, by
        self._page = PAGE if rate is None else max(int(min(PAGE, rate)), 1)
        self._patience = patience
        self._outage = Outage("replay", patience=patience.total_seconds())
        self._monotonic = monotonic
        self._sleep = sleep
        self._range: dict[str, Any] = {}
        self._places: list[KeptPlace] = []
        """Those of messages that were asked for by their ids."""

    async def find(self, *, window: int | None = None) -> KeptMessages:
        """Count the messages; those published from now on are not part of the replay.

        At most about `window` kept messages are read for that, from the first one on; None: all.

        Raises:
            OutboxkitError: a relay's transaction does not end.
        """
        async with self._engine.connect() as connection:
            await connection.run_sync(schema.check)
            now = await partitions.clock(connection)
            selection = self._selection
            until = now if selection.until is None else min(selection.until, now)
            since = selection.since or BEGINNING
            self._range = {"destination": selection.destination, "since": since, "until": until}
            await self._settled(connection)
            conditions = {"type_": selection.type, "key": selection.key}
            if not selection.message_ids:
                end = None if window is None else await self._end(connection, window)
                counted = await connection.execute(
                    statements.published.count_kept(**conditions), self._range | ({} if end is None else {"until": end})
                )
                count, first, last = counted.one()
                return KeptMessages(count, first, last, until, is_partial=end is not None)
            statement = statements.published.kept_places(connection.dialect.name, **conditions)
            rows = await connection.execute(statement, self._range | {"ids": list(selection.message_ids)})
            places = {(row.published_at, row.position): row.message_id for row in rows}
            self._places = sorted(places)
            first_at, last_at = (self._places[0][0], self._places[-1][0]) if places else (None, None)
            absent = len(selection.message_ids - {*places.values()})
            return KeptMessages(len(places), first_at, last_at, until, absent)

    async def _end(self, connection: AsyncConnection, window: int) -> datetime | None:
        if is_server(connection.dialect.name):
            await connection.execute(statements.status.forbid_sorting())
        ended = await connection.execute(statements.published.end_of_kept(), self._range | {"window": window})
        end: datetime | None = ended.scalar_one_or_none()
        return end

    async def run(self, stop: asyncio.Event, done: Replayed, *, running: audit.RunningAction | None = None) -> None:
        """Publish the selected messages until all are confirmed, the broker refuses one, or `stop` is set.

        `done` holds the progress, however the run ends. `running` is the action, if its row is written already: the run
        begins behind its place.

        Raises:
            BrokerUnavailable, sqlalchemy.exc.DBAPIError: an outage lasted longer than `patience`.
        """
        if not self._range:
            messages = await self.find()
            done.total = messages.count if done.total is None else done.total
        queue = self._publisher.queue
        filter_ = ({} if queue is None else {"to_queue": queue}) | audit.filter_of(self._selection)
        recorded = audit.recorded(self._engine, "republish", filter_, by=self._by)
        async with recorded if running is None else nullcontext(running) as audited:
            await self._publish_pages(stop, done, audited, counts=running is None)
            outcome = audit.DONE if done.complete else audit.STOPPED
            if done.gone:
                outcome = f"incomplete: {done.gone} of {done.total} messages were deleted meanwhile"
            audited.result = outcome if done.refused is None else f"refused: {done.refused}"

    async def _publish_pages(
        self,
        stop: asyncio.Event,
        done: Replayed,
        audited: audit.RunningAction,
        *,
        counts: bool,
    ) -> None:
        """Publish page by page. Unless it `counts`, another task writes the count."""
        selection, begun, started = self._selection, done.count, self._monotonic()
        counted = started
        cursor = audited.place or (self._range["since"], -1)
        while not stop.is_set():
            rows = await self._outage.ride_out(partial(self._read, cursor), stop)
            if not rows:
                if rows is not None:
                    done.gone = max((done.total or 0) - done.count, 0)
                    done.complete = not done.gone
                break
            receipts = await self._outage.ride_out(
                partial(self._publish, [_message(row, selection.handlers) for row in rows]), stop
            )
            confirmed = _confirmed(receipts or ())
            if confirmed:
                cursor = (rows[confirmed - 1].published_at, rows[confirmed - 1].position)
                done.count, done.upto = done.count + confirmed, cursor[0]
                audited.uncounted, audited.place = audited.uncounted + confirmed, cursor
            if counts and self._monotonic() - counted >= COUNT_EVERY:
                await audited.write(self._engine)
                counted = self._monotonic()
            if confirmed < len(rows):
                done.refused = (
                    f"message {rows[confirmed].message_id}: {receipts[confirmed].reason}" if receipts else None
                )
                break
            await keep_to_rate(self._rate, done.count - begun, self._monotonic() - started, stop, self._sleep)

    async def _settled(self, connection: AsyncConnection) -> None:
        """Wait for the relays that are settling at this moment: their rows are dated before their commits."""
        if not is_server(connection.dialect.name):
            return
        before: set[str] | None = None
        end = self._monotonic() + self._patience.total_seconds()
        while before is None or before:
            now = set((await connection.execute(statements.published.settling())).scalars())
            await connection.rollback()  # so that the next read sees their commits
            before = now if before is None else before & now
            if before and self._monotonic() > end:
                raise OutboxkitError(
                    f"a relay has been settling messages for {self._patience.total_seconds():.0f} s: they would "
                    "be missing from the replay. Try again once its transaction has ended"
                )
            if before:
                await self._sleep(LOOK_EVERY)

    async def _read(self, cursor: KeptPlace) -> Sequence[Row[Any]]:
        selection = self._selection
        page = statements.published.kept_page(type_=selection.type, key=selection.key)
        async with self._engine.connect() as connection:
            if is_server(connection.dialect.name):
                await connection.execute(statements.published.keep_partitions())
            if selection.message_ids:
                return await self._read_named(connection, cursor)
            place = {"after_at": cursor[0], "after_position": cursor[1], "limit": self._page}
            rows: Sequence[Row[Any]] = (await connection.execute(page, self._range | place)).all()
            return rows

    async def _read_named(self, connection: AsyncConnection, cursor: KeptPlace) -> Sequence[Row[Any]]:
        """The next page of messages that were asked for by their ids, and are still there."""
        statement = statements.published.kept_rows(connection.dialect.name)
        for first in range(bisect_right(self._places, cursor), len(self._places), self._page):
            page = self._places[first : first + self._page]
            period = {"first_at": page[0][0], "last_at": page[-1][0], "positions": [place[1] for place in page]}
            rows: Sequence[Row[Any]] = (await connection.execute(statement, period)).all()
            if rows:
                return rows
        return ()

    async def _publish(self, messages: Sequence[Message]) -> Sequence[Receipt]:
        """Publish a page. An outage repeats the whole page, so that each key stays in order."""
        await self._publisher.connect()
        place = tracing.Endpoint(self._publisher.system, self._publisher.queue)
        with tracing.sending(messages, place) as span:
            receipts = await self._publisher.publish(messages)
            span.counts((receipt.verdict for receipt in receipts), fine=(Verdict.CONFIRMED,))
        for receipt in receipts:
            if receipt.verdict is Verdict.UNKNOWN:
                raise BrokerUnavailable(receipt.reason or "the broker did not answer")
        return receipts


@asynccontextmanager
async def replaying(
    engine: AsyncEngine,
    settings: Settings,
    selection: ReplaySelection,
    queue: str,
    *,
    rate: float | None = None,
    by: str | None = None,
) -> AsyncIterator[Replayer]:
    """A replayer to one queue of the settings' broker, from which it is disconnected at the end."""
    timeout = settings.publish_timeout
    publisher = process.queue_publisher(settings.broker_url.get_secret_value(), queue, timeout=timeout)
    try:
        yield Replayer(engine, publisher, selection, rate=rate, patience=timeout, by=by)
    finally:
        await publisher.close()


def _confirmed(receipts: Sequence[Receipt]) -> int:
    """The number of messages that the broker confirmed before the first that it did not."""
    verdicts = [receipt.verdict for receipt in receipts]
    return next((index for index, verdict in enumerate(verdicts) if verdict is not Verdict.CONFIRMED), len(verdicts))


def _message(row: Row[Any], handlers: tuple[str, ...]) -> Message:
    message = from_row(row[2:])
    own = without_own(message.headers)  # a replayed dead letter is addressed to one queue
    return changed(message, queue=None, headers=own | DeliveryHeaders(handlers=handlers, replayed=True).headers())
