"""Many deliveries in one transaction. A batch that fails is bisected, and the failed delivery is handled alone."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import cast

import structlog
from sqlalchemy.orm import Session
from structlog.typing import FilteringBoundLogger

from outboxkit import inbox
from outboxkit.consumer.attempts import NOTED_FROM
from outboxkit.consumer.decisions import Decision
from outboxkit.consumer.handle import HandlerRunner
from outboxkit.consumer.routing import Arrival
from outboxkit.consumer.transactions import BLAMELESS
from outboxkit.errors.failures import first_line, forget_locals
from outboxkit.inbox import BatchEntryFailed, Entry, Outcome
from outboxkit.inbox.run_batch import COMMITTED, traced
from outboxkit.inbox.run_once import event_for
from outboxkit.message import Message
from outboxkit.runtime.outage import is_cancelled


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a batch, in order of arrival. If `searched`, a part of it is known to fail."""

    arrivals: Sequence[Arrival]
    searched: bool = False


@dataclass(frozen=True, slots=True)
class BatchRunner:
    """Handles deliveries whose handlers have `batch=True`, many in a transaction."""

    runner: HandlerRunner
    _log: FilteringBoundLogger = field(
        init=False, default_factory=lambda: structlog.get_logger("outboxkit").bind(process="consumer")
    )

    async def handle(self, arrivals: Sequence[Arrival], stop: asyncio.Event) -> list[Arrival]:
        """Handle deliveries in order of arrival, in one transaction if possible; handlers in threads have another one.

        Returns those that are not settled: they wait in their key queues, or behind one that does.

        Raises:
            BrokerUnavailable, sqlalchemy.exc.DBAPIError: as `HandlerRunner.handle`.
        """
        try:
            return await self._handle(self._pieces(arrivals), stop)
        except (Exception, asyncio.CancelledError) as error:
            if self.runner.is_expected(error):
                raise
            self.runner.reports.unexpected("a batch failed unexpectedly, its messages are handled singly", error)
        return await self._handle([_Piece([arrival]) for arrival in reversed(arrivals) if not arrival.settled], stop)

    async def _handle(self, pieces: list[_Piece], stop: asyncio.Event) -> list[Arrival]:
        """Handle the pieces, the last one first, and the parts of those that fail.

        Behind a delivery that waits for its delay, or was requeued by a stop, none of its key is handled.
        """
        blocked, unsettled = set[str | None](), list[Arrival]()
        while pieces:
            piece = pieces.pop()
            free = [arrival for arrival in piece.arrivals if arrival.key not in blocked]
            unsettled += [arrival for arrival in piece.arrivals if arrival.key in blocked]
            if not free:
                continue
            if len(free) == 1:
                if free[0].waits is None:
                    await self.runner.handle(free[0], stop)
                if free[0].waits is not None:
                    unsettled.append(free[0])
                    blocked.add(free[0].key)
            else:
                entries, lone_index = await self._entries(free)
                if lone_index is not None:
                    pieces += reversed(_around(free, lone_index, searched=piece.searched))
                else:
                    pieces += reversed(await self._run(free, entries, piece, stop))
                entries.clear()  # their events would be in memory beside those of the next piece
            blocked |= {arrival.key for arrival in free if arrival.requeued} - {None}
        return unsettled

    def _pieces(self, arrivals: Sequence[Arrival]) -> list[_Piece]:
        """The parts in a thread and those in the event loop, the last first; two if no key asks for an order."""
        in_thread = self.runner.routing.in_thread
        if all(arrival.key is None for arrival in arrivals):
            arrivals = sorted(arrivals, key=in_thread)
        return [_Piece(list(part)) for _, part in groupby(arrivals, key=in_thread)][::-1]

    async def _entries(self, arrivals: Sequence[Arrival]) -> tuple[list[tuple[int, Entry]], int | None]:
        """The inbox entries, each with the index of its arrival; or the index of an arrival that must run alone."""
        entries: list[tuple[int, Entry]] = []
        now = self.runner.now()
        for index, arrival in enumerate(arrivals):
            message, delivery_headers = arrival.message, arrival.delivery.delivery_headers
            try:
                handlers = self.runner.routing.handlers(arrival, now, delivery_headers.attempt)
                if isinstance(handlers, Decision) or self.runner.routing.elsewhere(arrival):
                    return entries, index
                for handler in handlers:
                    taken = cast("Message", message)
                    event = await event_for(handler, taken)
                    entry = Entry(taken, handler, event, delivery_headers.attempt, delivery_headers.accepted_at)
                    entries.append((index, entry))
            except Exception:  # noqa: BLE001 - raised again when it is handled alone
                return entries, index
        return entries, None

    async def _run(
        self, arrivals: Sequence[Arrival], entries: Sequence[tuple[int, Entry]], piece: _Piece, stop: asyncio.Event
    ) -> list[_Piece]:
        """Run all entries in one transaction. Returns the pieces to run instead if it failed."""
        reports = self.runner.reports
        names = {entry.handler.name for _, entry in entries}
        first = entries[0][1].message.id if entries else ""

        def work(session: Session) -> list[Outcome]:
            with reports.timed(names, message_id=first, messages=len(arrivals)):
                return inbox.run_batch(session, [entry for _, entry in entries])

        in_thread = self.runner.routing.in_thread(arrivals[0])
        try:
            with traced([cast("Message", arrival.message) for arrival in arrivals], at=self.runner.endpoint) as span:
                outcomes = await self.runner.transactions.run(work, stop, in_thread=in_thread)
                span.counts(outcomes or (), fine=COMMITTED)
        except BLAMELESS:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled():  # another error may have taken the place of the cancellation
                raise
            # Whatever a handler raises: the failed entry fails again alone.
            self._log.debug("a batch failed, run again in pieces", size=len(arrivals), error=first_line(error))
            forget_locals(error)  # which has the events
            if isinstance(error, BatchEntryFailed) and not piece.searched:
                return _around(arrivals, entries[error.index][0], searched=True)
            middle = len(arrivals) // 2
            return [_Piece(arrivals[:middle], searched=True), _Piece(arrivals[middle:], searched=True)]
        if outcomes is None:
            for arrival in arrivals:
                await arrival.requeue()
            return []
        done = [(index, entry, outcome) for (index, entry), outcome in zip(entries, outcomes, strict=True)]
        reports.handled([(entry.message, entry.handler.name, outcome) for _, entry, outcome in done])
        reports.messages += len({index for index, _, outcome in done if outcome is Outcome.PROCESSED})
        noted = [
            cast("Message", each.message).id for each in arrivals if each.delivery.delivery_headers.attempt > NOTED_FROM
        ]
        can_ack = not noted or await self.runner.records.forget(*noted, stop=stop)
        for arrival in arrivals:
            await (arrival.ack() if can_ack else arrival.requeue())
        return []


def _around(arrivals: Sequence[Arrival], index: int, *, searched: bool) -> list[_Piece]:
    """Three pieces: the arrivals before this index, the one at it, and those behind it."""
    parts = (arrivals[:index], arrivals[index : index + 1], arrivals[index + 1 :])
    return [_Piece(part, searched=searched) for part in parts if part]
