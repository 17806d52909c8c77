"""The consumer of an ordered queue that is split into shards, which its processes share among themselves.

The broker keeps the order: a shard is a queue with a single active consumer. The processes agree in the database which
of them consumes which shard. They begin with new shards once it is known which keys have messages in the old ones.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import ids, schema
from outboxkit.consumer.consumer import Consumer, ProcessWide
from outboxkit.consumer.membership import (
    SEEN_SECONDS,
    Agreement,
    ShardSource,
    enter,
    quit_sharing,
    write_agreement,
)
from outboxkit.consumer.payload_memory import PayloadMemory
from outboxkit.consumer.reports import Consumed, OnError
from outboxkit.consumer.several import Consumers
from outboxkit.consumer.watchdog import Watchdog
from outboxkit.errors import ConfigurationError
from outboxkit.errors.sqlstates import TRANSIENT
from outboxkit.inbox import Handler, Outcome
from outboxkit.runtime.health import Health
from outboxkit.runtime.outage import Outage
from outboxkit.runtime.sources import Shards
from outboxkit.telemetry.table_gauges import TableGauges


class Move(Protocol):
    """The broker's part in a change of the number of shards."""

    async def prepare(self, before: Shards, after: Shards) -> bool:
        """Declare the queues of new shards, which get no messages yet; whether there are old ones."""

    async def bind(self, shards: Shards) -> None:
        """Declare the queues of these shards, and have them get the messages."""

    async def begin(self, before: Shards, after: Shards, move: int) -> tuple[str, ...]:
        """Mark the beginning of the new shards for this change, and send messages to them, and none to the old ones.

        Returns the old ones that exist.
        """

    async def mark(self, shards: Shards, queues: Iterable[str], move: int) -> None:
        """Mark the end of old shards, for the change to these."""


@dataclass(frozen=True, slots=True)
class ShardConsumer:
    """The consumer of one queue among the shards, and its subscriber."""

    consumer: Consumer
    source: ShardSource

    def heed(self, agreement: Agreement, home: str, queue: str) -> None:
        """Hold the keys that wait for old shards, and deliver what is behind the markers up to this agreement's."""
        self.consumer.hold(agreement.held(queue))
        self.source.follow(agreement.move, is_settled=agreement.is_over(home, queue))


class ShardedConsumer:
    """A consumer of an ordered queue that is split into shards, used as a `Consumer` is.

    It consumes its part of the shards and of the queue itself. If there are more processes than queues, some have
    nothing to do. A process that ends leaves its queues to the others, within 2 s after a clean end and after `GONE`
    otherwise. If the number of shards changes, a message waits for those of its key in the old shards.

    Args:
        engine: of the handlers' sessions; each process writes every two seconds that it is there.
        shards: the queue, and the number of its shards.
        consumer_of: the consumer of one of its queues, which may be an old shard.
        move: the broker's part in a change of their number.
        publish_timeout: how long a relay waits for a confirm. After that, no message arrives in a queue that is bound
            no more.
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
        publish_timeout: timedelta,
        patience: timedelta | None = None,
    ) -> None:
        self.engine, self._shards, self._move = engine, shards, move
        self._consumer_of = consumer_of
        self.on_error: OnError | None = None
        self._member = ids.new()
        self._running: dict[str, _RunningShard] = {}
        self._ended: Counter[Outcome] = Counter()
        self._bound: dict[str, int] | None = None
        self._has_agreed, self._reached = False, set[str]()
        self._publish_timeout = publish_timeout.total_seconds()
        self._released = (-1, 0.0)
        self._watchdog, self._tables, self._memory = Watchdog(handlers), TableGauges(engine), PayloadMemory()
        self._last: object = None
        seconds = patience.total_seconds() if patience else None
        self._outage = Outage("consumer", queue=shards.queue, patience=seconds, passing=TRANSIENT)
        self._log = structlog.get_logger("outboxkit").bind(process="consumer", queue=shards.queue)

    @property
    def outcomes(self) -> Counter[Outcome]:
        """The outcomes of all deliveries of this process, counted once for each handler."""
        return sum((each.shard.consumer.outcomes for each in self._running.values()), Counter(self._ended))

    def health(self) -> Health:
        """The state of the shards that this process consumes, from any thread: the first in trouble decides."""
        states = [each.shard.consumer.health() for each in tuple(self._running.values())]
        trouble = self._outage.errors.get("broker", None if self._has_agreed else "its shards are not bound yet")
        states.append(Health("consumer", servers={"broker": trouble}))
        return next((state for state in states if any(state.servers.values())), states[0])

    async def run(self, stop: asyncio.Event) -> None:
        """Handle deliveries of this process's shards until `stop` is set, then finish those in flight.

        Raises:
            SchemaError: the tables are missing or old.
            ConfigurationError: the broker refuses a queue or an exchange.
        """
        await self._outage.ride_out(lambda: schema.check_engine(self.engine), stop)
        await self._outage.ride_out(self._tables.open, stop)
        watching = asyncio.create_task(self._watchdog.run())
        try:
            with self._tables.observed():
                while not stop.is_set():
                    agreement = await self._outage.ride_out(self._agree, stop)
                    if agreement is not None and not stop.is_set():
                        self._outage.reached("database")
                        if self._bound is not None:
                            self._outage.reached("broker")
                        await self._apply(agreement, stop)
            await self._end()
        except (Exception, asyncio.CancelledError):
            with suppress(Exception):
                await self._end()
            raise
        finally:
            watching.cancel()

    async def drain(self, stop: asyncio.Event) -> Consumed:
        """Handle deliveries until all shards are empty, then return. A pause ends it.

        What waits for its retry delay or behind such a message stays, as in `Consumer.drain`.

        Raises:
            SchemaError, BrokerUnavailable, sqlalchemy.exc.DBAPIError: as `Consumer.drain`.
            ConfigurationError: other processes consume another number of shards.
        """
        await self._outage.ride_out(lambda: schema.check_engine(self.engine), stop)
        before: object = None
        try:
            while (agreement := await self._outage.ride_out(self._agree, stop)) is not None and not stop.is_set():
                if self._is_ready(agreement) and agreement.draining in ({}, before):
                    await self._stop_consumers()
                    return await self._drain_all(agreement, stop)
                before = agreement.draining
                if agreement.in_the_way_of(self._shards.count):
                    raise ConfigurationError(f"{self._in_the_way(agreement)}: stop them first, and drain then")
                pauses = [each.shard.consumer.paused for each in self._running.values()]
                paused = next(filter(None, pauses), None)
                if paused is not None:
                    return Consumed(self.outcomes, 0, paused)
                await self._apply(agreement, stop)
            return Consumed(self.outcomes, away=self._outage.words, stopped=stop.is_set())
        finally:
            await self._end()

    def _is_ready(self, agreement: Agreement) -> bool:
        return agreement.is_open and agreement.shards == self._shards.count and not self._is_next(agreement)

    def _is_next(self, agreement: Agreement) -> bool:
        """Whether the next step can be taken at once: to bind new shards, or at the start of this process its own."""
        is_ours = agreement.is_settled and agreement.shards == self._shards.count
        return (agreement.moved_from is not None and not agreement.draining) or (is_ours and self._bound is None)

    async def _drain_all(self, agreement: Agreement, stop: asyncio.Event) -> Consumed:
        consumers = list[Consumer]()
        for queue in dict.fromkeys((*agreement.draining, *self._shards.consumed)):
            shard = self._make(queue)
            shard.heed(agreement, self._shards.queue, queue)
            consumers.append(shard.consumer)
        try:
            done = await Consumers(consumers).drain(stop)
        finally:
            for consumer in consumers:
                self._ended += consumer.outcomes
        return replace(done, outcomes=self.outcomes)

    async def _apply(self, agreement: Agreement, stop: asyncio.Event) -> None:
        """Consume the queues of this process until the next agreement is due."""
        self._tell(agreement)
        self._follow(agreement)
        if not self._is_next(agreement):
            self._has_agreed = True
            await self._wait(stop)

    async def _agree(self) -> Agreement:
        """Say that this process is there, see which others are, and take the next step of a change, if there is one.

        A change is written before the broker is asked for it, so that any process can go on with it after a crash. The
        consumers hear of it also at a stop: nobody else would ack the marker of an old shard that is empty now.
        """
        ours = self._shards
        async with self.engine.begin() as connection:
            agreement = await enter(connection, ours.queue, self._member, ours.count)
            target = Shards(ours.queue, agreement.shards)
            changed = agreement
            if agreement.moved_from is not None and not agreement.draining:
                old = await self._move.begin(Shards(ours.queue, agreement.moved_from), target, agreement.move)
                moved_from = agreement.moved_from if old else None
                changed = replace(agreement, moved_from=moved_from, draining=dict.fromkeys(old))
                self._is_routed(agreement.move)
            elif agreement.moved_from is not None:
                if self._is_routed(agreement.move):
                    await self._move.mark(target, agreement.draining, agreement.move)
                    changed = replace(agreement, moved_from=None)
            elif agreement.draining:
                changed = replace(agreement, draining=self._what_is_left(agreement))
            elif agreement.shards != ours.count and not agreement.in_the_way_of(ours.count):
                moved_from = agreement.shards if await self._move.prepare(target, ours) else None
                changed = replace(agreement, shards=ours.count, moved_from=moved_from, move=agreement.move + 1)
            elif agreement.shards == ours.count and self._bound != (connects := self._connects_again()):
                await self._move.bind(target)  # here, under the row's lock: the number may not change meanwhile
                self._bound = connects
            if changed != agreement:
                await write_agreement(connection, ours.queue, changed)
        if changed.shards != agreement.shards:
            self._log.info("the number of shards changes", before=changed.moved_from, shards=changed.shards)
        for queue, running in self._running.items():
            running.shard.heed(changed, ours.queue, queue)
        return changed

    def _is_routed(self, move: int) -> bool:
        """Whether each message that was routed to the old shards has arrived there: this knows for long that they end.

        A relay publishes a message again that is not confirmed in this time, and then it comes to the new shards.
        """
        now = asyncio.get_running_loop().time()
        if self._released[0] != move:
            self._released = (move, now)
        return now - self._released[1] >= self._publish_timeout

    def _what_is_left(self, agreement: Agreement) -> dict[str, tuple[str, ...] | None]:
        """The old shards that are not empty, and the keys of their last messages, as far as they are known."""
        left = dict(agreement.draining)
        for queue in left.keys() & self._running.keys():
            keys = self._running[queue].shard.source.keys_left(agreement.move)
            if keys == ():
                del left[queue]
            elif keys is not None:
                left[queue] = keys
        return left

    def _connects_again(self) -> dict[str, int]:
        """The consumers that have connected again, and how often: a queue that was deleted has lost its bindings."""
        connects = {queue: each.shard.source.connects for queue, each in self._running.items()}
        return {queue: count for queue, count in connects.items() if count > 1}

    def _tell(self, agreement: Agreement) -> None:
        """Log once what this process waits for, and which queues it consumes."""
        queues = agreement.queues_of(self._member, self._shards.queue)
        waits = agreement.in_the_way_of(self._shards.count) > 0
        state = (agreement.shards, tuple(agreement.draining), agreement.is_open, queues, waits)
        if state == self._last or (agreement.moved_from is not None and not agreement.draining):
            return
        self._last = state
        if waits:
            self._log.warning(
                "waiting: other processes are for another number of shards",
                reason=self._in_the_way(agreement),
                cure=f"stop them, or start this one with --shards {agreement.shards}",
            )
        elif agreement.draining:
            wait = "keys wait for old shards" if agreement.is_open else "old shards are emptied first"
            self._log.info(wait, draining=agreement.draining, consumed=queues)
        else:
            self._log.info("shards shared", consumed=queues, processes=len(agreement.members))

    def _in_the_way(self, agreement: Agreement) -> str:
        number = agreement.in_the_way_of(self._shards.count)
        return (
            f"{number} of the processes of queue {self._shards.queue!r} run with --shards {agreement.shards}, and this "
            f"one has --shards {self._shards.count}"
        )

    def _make(self, queue: str) -> ShardConsumer:
        shard = self._consumer_of(queue)
        shard.consumer.on_error = self.on_error
        shard.consumer.share_reached(self._reached)
        return shard

    def _follow(self, agreement: Agreement) -> None:
        """Consume the queues that are this process's, and let go of the others."""
        queues = agreement.queues_of(self._member, self._shards.queue)
        for queue in queues:
            if queue not in self._running:
                shard = self._make(queue)
                shard.heed(agreement, self._shards.queue, queue)
                self._running[queue] = _RunningShard(shard, self._memory)
        for queue, running in self._running.items():
            if queue not in queues:
                running.stop.set()

    async def _wait(self, stop: asyncio.Event) -> None:
        """Wait until the next agreement is due, or a consumer has ended. Its error is raised."""
        stopping = asyncio.ensure_future(stop.wait())
        tasks = [each.task for each in self._running.values()]
        try:
            await asyncio.wait([stopping, *tasks], timeout=SEEN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        self._forget_ended()

    def _forget_ended(self) -> None:
        """Count what ended consumers have done. The first error is raised."""
        errors = list[BaseException]()
        for queue, running in tuple(self._running.items()):
            if running.task.done():
                del self._running[queue]
                self._ended += running.shard.consumer.outcomes
                if not running.task.cancelled() and (error := running.task.exception()) is not None:
                    errors.append(error)
        if errors:
            raise errors[0]

    async def _stop_consumers(self) -> None:
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
        self._forget_ended()

    async def _end(self) -> None:
        """Stop all consumers, and leave their shards to the other processes."""
        try:
            await self._stop_consumers()
        finally:
            await quit_sharing(self.engine, self._shards.queue, self._member)


class _RunningShard:
    """A consumer that runs in a task of its own, until `stop` is set."""

    def __init__(self, shard: ShardConsumer, memory: PayloadMemory) -> None:
        self.stop = asyncio.Event()
        self.shard = shard
        self._shared = ProcessWide(memory)
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self.shard.consumer.run(self.stop, shared=self._shared)
