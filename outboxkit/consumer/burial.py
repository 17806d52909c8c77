"""Setting messages aside: into the dead letters, in a transaction of its own, and never acked before."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import statements
from outboxkit.consumer import decision as decisions
from outboxkit.consumer.lanes import Arrival
from outboxkit.consumer.reports import Failed, Reports
from outboxkit.inbox import Outcome
from outboxkit.outage import PASSING_SQLSTATES, Outage, what_is_away


class Burial:
    """Writes the dead letters of one queue, counts them and says so."""

    def __init__(
        self, engine: AsyncEngine, *, queue: str, outage: Outage, outcomes: Counter[Outcome], reports: Reports
    ) -> None:
        self._engine = engine
        self._queue = queue
        self._outage = outage
        self._outcomes = outcomes
        self._reports = reports

    async def bury(self, arrival: Arrival, failed: Failed, stop: asyncio.Event, *, attempts: int) -> bool:
        """Put the message among the dead letters, once for each handler; False if `stop` came during an outage.

        What the database refuses is put there without what is not needed to handle it again.

        Raises:
            Exception: it could not be stored even so.
        """
        delivery = arrival.delivery
        rows = [
            decisions.dead_letter(
                delivery.message,
                decision,
                queue=self._queue,
                handler=handler,
                attempts=attempts,
                first_failed_at=delivery.marks.first_failed_at or arrival.first_failed_at,
            )
            for handler, decision in failed.items()
        ]
        try:
            written = await self._write(rows, stop)
        except Exception as error:
            if what_is_away(error, passing=PASSING_SQLSTATES):
                raise
            written = await self._write([decisions.bare(row, error) for row in rows], stop)
        if not written:
            return False
        self._outcomes.update(decision.outcome for decision in failed.values())
        self._reports.failed("message set aside as a dead letter", delivery.message, failed, attempt=attempts)
        return True

    async def _write(self, rows: Sequence[dict[str, Any]], stop: asyncio.Event) -> bool:
        async def write() -> bool:
            async with self._engine.begin() as connection:
                await connection.execute(statements.dead.bury_once(), rows)
            return True

        return bool(await self._outage.ride_out(write, stop))
