"""The consumer of an ordered queue that is split into shards, which its processes share among themselves.

The broker keeps the order: a shard is a queue with a single active consumer. The processes agree in the database which
of them consumes which shard. They begin with new shards once the old ones are empty.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import ids, schema
from outboxkit.consumer.consumer import Consumer
from outboxkit.consumer.reports import Consumed, OnError, Watchdog
from outboxkit.consumer.several import Consumers
from outboxkit.errors import BrokerUnavailable, ConfigurationError
from outboxkit.health import Health
from outboxkit.inbox import Handler, Outcome
from outboxkit.outage import Outage
from outboxkit.sources import Shards
from outboxkit.sqlstates import TRANSIENT
from outboxkit.statements import shards as statements
from outboxkit.telemetry.tables import TableGauges

SEEN_SECONDS = 2.0
"""A process says every so many seconds that it is there, and sees which others are."""
GONE = timedelta(seconds=10)
"""A process that has not been seen for so long shares no shards any more."""
LEAVING_SECONDS = 2.0


class Move(Protocol):
    """The broker's part in a change of the number of shards."""

    async def begin(self, before: Shards, after: Shards) -> bool:
        """Send messages to the new shards from now on; whether the old ones may hold some."""

    async def is_empty(self, queue: str) -> bool:
        """Whether a queue has neither a message nor a consumer."""


@dataclass(frozen=True, slots=True)
class ShardConsumer:
    """The consumer of one queue among the shards.

    Attributes:
        consumer: of the queue.
        is_drained: whether the queue is empty, and nobody else may hold messages of it.
    """

    consumer: Consumer
    is_drained: Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of the processes of a queue, as the database has it.

    Attributes:
        shards: the number of shards that get the queue's messages.
        draining: the queues of before that are not empty yet. Nothing else is consumed until they are.
        members: the processes by their ids, in order, and the number of shards that each was started for.
    """

    shards: int
    draining: tuple[str, ...]
    members: tuple[tuple[str, int], ...]

    def queues_of(self, member: str, ours: Shards) -> tuple[str, ...]:
        """The queues that this process is to consume now."""
        sharing = [id_ for id_, count in self.members if count == ours.count]
        if self.shards != ours.count or member not in sharing:
            return ()
        queues = self.draining or ours.consumed
        return tuple(queue for number, queue in enumerate(queues) if sharing[number % len(sharing)] == member)

    def others(self, ours: Shards) -> dict[int, int]:
        """The numbers of shards that other processes were started for, and how many have each."""
        return Counter(count for _, count in self.members if count != ours.count)


class ShardedConsumer:
    """A consumer of an ordered queue that is split into shards, used as a `Consumer` is.

    It consumes its part of the shards: all if it is alone, and none if there are more processes than shards. A process
    that ends leaves its shards to the others, at once after a clean end and after `GONE` otherwise. If the number of
    shards changes, the messages in the old shards are handled first.

    Args:
        engine: of the handlers' sessions; each process writes every two seconds that it is there.
        shards: the queue, and the number of its shards.
        consumer_of: the consumer of one of its queues, which may be an old shard.
        move: the broker's part in a change of their number.
        handlers: those of the queue.
        patience: how long an outage is waited out; None means for ever.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        shards: Shards,
        consumer_of: Callable[[str], ShardConsumer],
        move: Move,
        *,
        handlers: Sequence[Handler],
        patience: timedelta | None = None,
    ) -> None:
        self.engine, self._shards, self._move = engine, shards, move
        self._consumer_of = consumer_of
        self.on_error: OnError | None = None
        self._member = ids.new()
        self._running: dict[str, _Running] = {}
        self._ended: Counter[Outcome] = Counter()
        self._drained_once: set[str] = set()
        self._watchdog, self._tables = Watchdog(handlers), TableGauges(engine)
        self._last: object = None
        seconds = patience.total_seconds() if patience else None
        self._outage = Outage("consumer", queue=shards.queue, patience=seconds, passing=TRANSIENT)
        self._log = structlog.get_logger("outboxkit").bind(process="consumer", queue=shards.queue)

    @property
    def outcomes(self) -> Counter[Outcome]:
        """The outcomes of all deliveries of this process, counted once for each handler."""
        return sum((each.consumer.outcomes for each in self._running.values()), Counter(self._ended))

    def health(self) -> Health:
        """The state of the shards that this process consumes, from any thread: the first in trouble decides."""
        states = [each.consumer.health() for each in tuple(self._running.values())]
        alone = Health("consumer", servers={"broker": self._outage.errors.get("broker")})
        return next((state for state in states if any(state.servers.values())), states[0] if states else alone)

    async def run(self, stop: asyncio.Event) -> None:
        """Handle deliveries of this process's shards until `stop` is set, then finish those in flight.

        Raises:
            SchemaError: the tables are missing or old.
            ConfigurationError: the broker refuses a queue or has no exchange for shards, or a move goes on.
        """
        await self._outage.ride_out(lambda: schema.check_engine(self.engine), stop)
        await self._outage.ride_out(self._tables.open, stop)
        watching = asyncio.create_task(self._watchdog.run())
        try:
            with self._tables.observed():
                while not stop.is_set():
                    agreement = await self._outage.ride_out(self._agree, stop)
                    if agreement is not None and not stop.is_set():
                        self._tell(agreement)
                        self._follow(agreement)
                        await self._wait(stop)
        finally:
            watching.cancel()
            await self._end()

    async def drain(self, stop: asyncio.Event) -> Consumed:
        """Handle deliveries until all shards are empty, then return. A pause ends it early.

        Raises:
            SchemaError, BrokerUnavailable, sqlalchemy.exc.DBAPIError: as `Consumer.drain`.
            ConfigurationError: other processes consume another number of shards.
        """
        await self._outage.ride_out(lambda: schema.check_engine(self.engine), stop)
        try:
            agreement = await self._outage.ride_out(self._agree, stop)
            if agreement is None:
                return Consumed(self.outcomes, 0, None)
            if others := agreement.others(self._shards):
                raise ConfigurationError(f"{self._split(others)}: stop them first, and drain then")
            if agreement.draining:
                done = await self._drain_all(agreement.draining, stop)
                empty = [await self._is_empty(queue) for queue in agreement.draining for _ in range(2)]
                if done.paused is not None or not all(empty) or stop.is_set():
                    return done
                await self._outage.ride_out(lambda: self._note_drained(agreement.draining), stop)
            return await self._drain_all(self._shards.consumed, stop)
        finally:
            await self._leave()

    async def _drain_all(self, queues: Sequence[str], stop: asyncio.Event) -> Consumed:
        consumers = [self._make(queue).consumer for queue in queues]
        try:
            done = await Consumers(consumers).drain(stop)
        finally:
            for consumer in consumers:
                self._ended += consumer.outcomes
        return Consumed(self.outcomes, done.postponed, done.paused)

    async def _is_empty(self, queue: str) -> bool:
        await asyncio.sleep(SEEN_SECONDS / 4)  # what was routed before the bindings were taken away arrives
        return await self._move.is_empty(queue)

    async def _agree(self) -> Agreement:
        """Say that this process is there, see which others are, and begin a move if nobody is in its way."""
        queue, dialect, ours = {"queue": self._shards.queue}, self.engine.dialect.name, self._shards
        async with self.engine.begin() as connection:
            await connection.execute(statements.begin_sharding(dialect), queue)
            count, draining = (await connection.execute(statements.lock_sharding(), queue)).one()
            await connection.execute(
                statements.register_member(dialect), queue | {"member": self._member, "shards": ours.count}
            )
            await connection.execute(statements.delete_gone(dialect), queue | {"ago": -GONE})
            members = tuple((id_, shards) for id_, shards in await connection.execute(statements.members(), queue))
            agreement = Agreement(count, tuple(json.loads(draining or "[]")), members)
            if count == ours.count:
                return await self._without_drained(connection, agreement)
            if agreement.others(ours):
                return agreement
            if agreement.draining:
                raise ConfigurationError(
                    f"queue {ours.queue!r} is on its way to {count} shards, and {', '.join(agreement.draining)} have "
                    f"messages: start with --shards {count} until they are empty, and change the number then"
                )
            before = Shards(ours.queue, count)
            self._log.info("the number of shards changes", before=count, shards=ours.count)
            left = before.names if await self._move.begin(before, ours) else ()
            await self._change(connection, left)
            return Agreement(ours.count, left, members)

    async def _without_drained(self, connection: AsyncConnection, agreement: Agreement) -> Agreement:
        """The agreement without the old shards that have been empty, and this process's, at two looks in a row."""
        empty = set[str]()
        for queue in agreement.draining:
            running = self._running.get(queue)
            with suppress(BrokerUnavailable):
                if running is not None and await running.is_drained():
                    empty.add(queue)
        drained, self._drained_once = empty & self._drained_once, empty
        if not drained:
            return agreement
        left = tuple(queue for queue in agreement.draining if queue not in drained)
        await self._change(connection, left)
        return Agreement(agreement.shards, left, agreement.members)

    async def _change(self, connection: AsyncConnection, draining: Sequence[str]) -> None:
        values = {"shards": self._shards.count, "draining": json.dumps(draining) if draining else None}
        await connection.execute(statements.change_shards(), {"of": self._shards.queue} | values)

    async def _note_drained(self, drained: Sequence[str]) -> None:
        async with self.engine.begin() as connection:
            _, draining = (await connection.execute(statements.lock_sharding(), {"queue": self._shards.queue})).one()
            left = [queue for queue in json.loads(draining or "[]") if queue not in drained]
            await self._change(connection, left)

    def _tell(self, agreement: Agreement) -> None:
        """Log once what this process waits for, and which queues it consumes."""
        others, queues = agreement.others(self._shards), agreement.queues_of(self._member, self._shards)
        state = (agreement.shards, agreement.draining, queues, tuple(others))
        if state == self._last:
            return
        self._last = state
        processes = len(agreement.members) - sum(others.values())
        if agreement.shards != self._shards.count:  # then another process has begun it
            self._log.warning("waiting: other processes are for another number of shards", cure=self._split(others))
        elif agreement.draining:
            self._log.info("old shards are emptied first", draining=agreement.draining, consumed=queues)
        else:
            self._log.info("shards shared", consumed=queues, processes=processes)

    def _split(self, others: dict[int, int]) -> str:
        counts = " and ".join(f"{number} with --shards {count}" for count, number in sorted(others.items()))
        return f"processes of queue {self._shards.queue!r} run {counts}, and this one has --shards {self._shards.count}"

    def _make(self, queue: str) -> ShardConsumer:
        shard = self._consumer_of(queue)
        shard.consumer.watchdog = shard.consumer.tables = None
        shard.consumer.on_error = self.on_error
        return shard

    def _follow(self, agreement: Agreement) -> None:
        """Consume the queues that are this process's, and let go of the others."""
        queues = agreement.queues_of(self._member, self._shards)
        for queue, running in self._running.items():
            if queue not in queues:
                running.stop.set()
        for queue in queues:
            if queue not in self._running:
                self._running[queue] = _Running(self._make(queue))

    async def _wait(self, stop: asyncio.Event) -> None:
        """Wait until it is time to look again, or a consumer has ended. Its error is raised."""
        stopping = asyncio.ensure_future(stop.wait())
        tasks = [each.task for each in self._running.values()]
        try:
            await asyncio.wait([stopping, *tasks], timeout=SEEN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        self._forget_ended()

    def _forget_ended(self) -> None:
        for queue, running in tuple(self._running.items()):
            if running.task.done():
                del self._running[queue]
                self._ended += running.consumer.outcomes
                running.task.result()

    async def _end(self) -> None:
        """Stop all consumers, and leave their shards to the other processes."""
        for running in self._running.values():
            running.stop.set()
        tasks = [each.task for each in self._running.values()]
        try:
            if tasks:
                await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        await self._leave()
        self._forget_ended()

    async def _leave(self) -> None:
        with suppress(SQLAlchemyError, OSError, TimeoutError):
            async with asyncio.timeout(LEAVING_SECONDS), self.engine.begin() as connection:
                await connection.execute(
                    statements.delete_member(), {"queue": self._shards.queue, "member": self._member}
                )


class _Running:
    """A consumer that runs in a task of its own, until `stop` is set."""

    def __init__(self, shard: ShardConsumer) -> None:
        self.stop = asyncio.Event()
        self.consumer, self.is_drained = shard.consumer, shard.is_drained
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self.consumer.run(self.stop)
