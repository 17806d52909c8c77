"""The report of a handler that does not end, with its name and its message."""

import asyncio
from datetime import timedelta

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.consumer.measurements import HandlerRun, HandlerRuns
from outboxkit.errors.failures import first_line, printable
from outboxkit.message import storable
from outboxkit.runtime.outage import Sleep
from outboxkit.schema import partitions
from outboxkit.statements import activity as statements
from outboxkit.statements.dialects import has_one_writer

LONG_SECONDS = 60.0
"""A handler that has run for so long is reported; again after twice the time, and so on."""
EVERY_SECONDS = 10.0
NAME = 300
CURE = (
    "if it waits for a lock, `outboxkit status` names the session that holds it. If it hangs otherwise, restart this "
    "consumer: the message comes again. Give the handler a timeout, such as @inbox_handler(..., timeout=60)"
)


class LongRuns:
    """Reports runs that do not end: in the log, and in `outboxkit_handler`, so that `doctor` can name them.

    Args:
        engine: for its own connections.
        runs: the consumer's.
        queue: the consumer's queue.
        sleep: for tests.
    """

    def __init__(self, engine: AsyncEngine, runs: HandlerRuns, *, queue: str, sleep: Sleep = asyncio.sleep) -> None:
        self._engine, self._runs, self._queue, self._sleep = engine, runs, queue, sleep
        self._due: dict[HandlerRun, float] = {}
        self._log = structlog.get_logger("outboxkit").bind(process="consumer", queue=queue)

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self._sleep(EVERY_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Report each run that is long, if it was not reported lately. Outages are reported elsewhere."""
        ages = self._runs.ages()
        self._due = {run: due for run, due in self._due.items() if run in ages}
        for run, age in ages.items():
            if age < self._due.get(run, LONG_SECONDS):
                continue
            is_new = run not in self._due
            self._due[run] = 2 * age
            batch = {"messages": run.messages} if run.messages > 1 else {}
            self._log.warning(
                f"handler has not ended for {age:.0f} s",
                handler=", ".join(run.handlers),
                message_id=printable(run.message_id, NAME),
                **batch,
                cure=CURE,
            )
            if is_new and not has_one_writer(self._engine.dialect.name):
                await self._note(run)

    async def _note(self, run: HandlerRun) -> None:
        try:
            async with self._engine.begin() as connection:
                row = {"of_queue": storable(self._queue), "message_id": storable(run.message_id)}
                since = await partitions.clock(connection) - timedelta(seconds=self._runs.age(run))
                await connection.execute(statements.note_long_run(list(run.handlers)), row | {"since": since})
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            self._log.debug("a long run was not recorded", error=first_line(error))
