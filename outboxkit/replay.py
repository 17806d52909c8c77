"""Replay: messages that were kept when they were published are published again, to rebuild what a queue feeds."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import codec, partitions, schema, statements
from outboxkit.brokers import Publisher, Receipt, Verdict, reserved
from outboxkit.brokers.reserved import DeliveryHeaders
from outboxkit.errors import BrokerUnavailable, OutboxkitError
from outboxkit.message import DEFAULT_DESTINATION, Message
from outboxkit.outage import Outage, Sleep, pause

PAGE = 500
"""Messages that are read and published at once."""
LOOK_EVERY = 0.05
"""Seconds between two looks at what is being settled."""
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which kept messages: each one that is given must hold.

    Attributes:
        type: the message type.
        key: the ordering key.
        since: published at this moment or later.
        until: published before this moment; what is published after the start of a replay is no part of it.
        destination: where it went.
        handlers: the handlers that are to run for them; all that the queue's consumer has if it is empty.
    """

    type: str | None = None
    key: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    destination: str = DEFAULT_DESTINATION
    handlers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """How many messages a selection has, and when the first and the last of them were published: before `until`."""

    count: int
    first: datetime | None
    last: datetime | None
    until: datetime


@dataclass(slots=True)
class Replayed:
    """How far a replay is.

    Attributes:
        count: messages that the broker has confirmed.
        upto: when the last of them was first published: a replay that goes on begins there.
        complete: whether that is all of the selection.
        refused: why the broker did not take the message behind the last one; None where it has.
    """

    count: int = 0
    upto: datetime | None = None
    complete: bool = False
    refused: str | None = None


def _quiet(_: Replayed) -> None:
    pass


class Replay:
    """Publishes kept messages again, with the same ids, in the order in which they were published.

    It reads a page at a time, so it takes little memory, and holds no transaction while it publishes. Messages of one
    key keep their order. What had been published, but not confirmed, when it was ended is published twice where it
    goes on.

    Args:
        engine: for its own connections.
        publisher: publishes to the queue alone.
        selection: which messages.
        rate: messages a second, at most; None for no limit.
        patience: how long the database or the broker may be away.
        monotonic, sleep: for tests.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        publisher: Publisher,
        selection: Selection,
        *,
        rate: float | None = None,
        patience: timedelta = timedelta(seconds=30),
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._publisher = publisher
        self._selection = selection
        self._rate = rate
        self._page = PAGE if rate is None else max(min(PAGE, int(rate)), 1)
        self._patience = patience
        self._outage = Outage("replay", patience=patience.total_seconds())
        self._monotonic = monotonic
        self._sleep = sleep
        self._range: dict[str, Any] = {}

    async def find(self) -> Found:
        """Count the messages; what is published from now on is no part of the replay.

        Raises:
            SchemaError: the tables are missing or old.
            OutboxkitError: a relay does not end what it is settling.
        """
        async with self._engine.connect() as connection:
            await connection.run_sync(schema.check)
            now = await partitions.clock(connection)
            chosen = self._selection
            until = now if chosen.until is None else min(chosen.until, now)
            since = chosen.since or BEGINNING
            self._range = {"destination": chosen.destination, "since": since, "until": until}
            await self._settled(connection)
            counting = statements.published.count_kept(type_=chosen.type, key=chosen.key)
            count, first, last = (await connection.execute(counting, self._range)).one()
            return Found(count, first, last, until)

    async def run(self, stop: asyncio.Event, done: Replayed, progress: Callable[[Replayed], None] = _quiet) -> None:
        """Publish them until all are confirmed, the broker refuses one, or `stop` is set.

        `done` tells how far it is, however it ends; `progress` is called with it after each page.

        Raises:
            SchemaError: the tables are missing or old.
            BrokerUnavailable, sqlalchemy.exc.DBAPIError: away for longer than `patience`.
        """
        if not self._range:
            await self.find()
        chosen = self._selection
        place, started = (self._range["since"], -1), self._monotonic()
        while not stop.is_set():
            rows = await self._outage.ride_out(partial(self._read, place), stop)
            if not rows:
                done.complete = rows is not None
                break
            receipts = await self._outage.ride_out(
                partial(self._publish, [_message(row, chosen.handlers) for row in rows]), stop
            )
            taken = _taken(receipts or ())
            if taken:
                place = (rows[taken - 1].published_at, rows[taken - 1].position)
                done.count, done.upto = done.count + taken, place[0]
            if taken < len(rows):
                done.refused = f"message {rows[taken].message_id}: {receipts[taken].reason}" if receipts else None
                break
            progress(done)
            await self._slow_down(done.count, started, stop)

    async def _settled(self, connection: AsyncConnection) -> None:
        """Wait until what relays are settling at this moment is there: it is dated before its commit.

        Raises:
            OutboxkitError: it takes longer than `patience`.
        """
        if connection.dialect.name != "postgresql":
            return
        before: set[str] | None = None
        end = self._monotonic() + self._patience.total_seconds()
        while before is None or before:
            now = set((await connection.execute(statements.published.settling())).scalars())
            await connection.rollback()  # what is read next sees what they have committed
            before = now if before is None else before & now
            if before and self._monotonic() > end:
                raise OutboxkitError(
                    f"a relay is settling messages for longer than {self._patience.total_seconds():.0f} s: they would "
                    "be missing from the replay. Try again once its transaction has ended"
                )
            if before:
                await self._sleep(LOOK_EVERY)

    async def _read(self, place: tuple[datetime, int]) -> Sequence[Row[Any]]:
        chosen = self._selection
        page = statements.published.kept_page(type_=chosen.type, key=chosen.key)
        given = {"after_at": place[0], "after_position": place[1], "limit": self._page}
        async with self._engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                await connection.execute(statements.published.be_reading())
            rows: Sequence[Row[Any]] = (await connection.execute(page, self._range | given)).all()
            return rows

    async def _publish(self, messages: Sequence[Message]) -> Sequence[Receipt]:
        """Publish a page; all of it again where an outage interrupts it, so that no key is out of order."""
        await self._publisher.connect()
        receipts = await self._publisher.publish(messages)
        for receipt in receipts:
            if receipt.verdict is Verdict.UNKNOWN:
                raise BrokerUnavailable(receipt.reason or "the broker did not answer")
        return receipts

    async def _slow_down(self, count: int, started: float, stop: asyncio.Event) -> None:
        if self._rate is not None:
            early = started + count / self._rate - self._monotonic()
            if early > 0:
                await pause(stop, early, self._sleep)


def _taken(receipts: Sequence[Receipt]) -> int:
    """How many messages the broker took before the first that it did not."""
    verdicts = [receipt.verdict for receipt in receipts]
    return next((index for index, verdict in enumerate(verdicts) if verdict is not Verdict.CONFIRMED), len(verdicts))


def _message(row: Row[Any], handlers: tuple[str, ...]) -> Message:
    headers = reserved.without(codec.decode_headers(row.headers))  # a replayed dead letter was for one queue
    return Message(
        id=row.message_id,
        type=row.type,
        payload=bytes(row.payload),
        key=row.key,
        topic=row.topic,
        headers=headers | DeliveryHeaders(handlers=handlers).headers(),
        correlation_id=row.correlation_id,
        causation_id=row.causation_id,
        created_at=row.created_at,
        content_type=row.content_type,
        content_encoding=row.content_encoding,
    )
