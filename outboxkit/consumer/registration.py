"""The handlers of a consumer, as the database records them, so that two queues do not share a handler's name unseen.

They are recorded once their queue is consumed: a start that was refused leaves no trace.
"""

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import statements
from outboxkit.errors.failures import first_line, path_of
from outboxkit.errors.sqlstates import NO_RIGHT, sqlstate_of
from outboxkit.inbox import Handler
from outboxkit.message import NAME_LIMIT, storable
from outboxkit.runtime import known_handlers
from outboxkit.runtime.outage import Sleep
from outboxkit.schema import partitions

RECORDED_EVERY = timedelta(hours=1)
"""The interval at which a consumer that runs records its handlers again."""


class Registration:
    """Records which handlers a queue's consumer has, and warns if another queue's consumer has another one of the name.

    Args:
        retention: for how long the consumer counts on the inbox; None: not known.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        handlers: Sequence[Handler],
        *,
        queue: str,
        retention: timedelta | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._queue = queue
        rest = {"queue": storable(queue), "retention": None if retention is None else round(retention.total_seconds())}
        self._rows = [_row(each) | rest for each in sorted(handlers, key=lambda handler: handler.name)]
        self._names = [row["handler"] for row in self._rows]
        self._sleep = sleep
        self._is_begun = False
        self._log = structlog.get_logger("outboxkit").bind(process="consumer", queue=queue)

    async def begin(self) -> None:
        """Record the handlers, once, now that the queue is consumed. A role without the right goes on, with a warning.

        Raises:
            sqlalchemy.exc.DBAPIError: the database is away.
        """
        if self._is_begun:
            return
        try:
            async with self._engine.begin() as connection:
                known = await connection.run_sync(known_handlers.read_handlers)
                # Another queue may record those that this one has no longer. Committed first: locks in no order.
                retired = statements.handlers.retire_handlers(self._names)
                await connection.execute(retired, {"of_queue": storable(self._queue)})
            await self._record()
            shared = await self._compare() if self._rows else []
        except DBAPIError as error:
            if sqlstate_of(error) != NO_RIGHT:
                raise
            self._is_begun = True
            cure = "GRANT SELECT, INSERT, UPDATE ON outboxkit_handler to this role"
            self._log.warning("handlers not compared with those of other queues", error=first_line(error), cure=cure)
            return
        self._is_begun = True
        is_new = all(each.queue != self._queue for each in known)
        if is_new and (same := [each for each in shared if not each.is_clash]):
            self._log.warning(
                "a new queue has the handlers of another one: is its name right?",
                other_queues=sorted({one.queue for each in same for one in each.handlers} - {self._queue}),
                handlers=[each.handler for each in same],
                cure="If it was a mistake, stop this consumer, delete the queue at the broker, and forget it with: "
                f"{known_handlers.forget_command(self._queue)}",
            )
        for each in (each for each in shared if each.is_clash):
            cure = f"{each.cure} If a queue was a mistake, forget it with: {each.mistake}"
            self._log.warning("two queues use one handler name", what=each.what, cure=cure)

    async def run(self) -> None:
        """Record the handlers every hour, until cancelled. Outages are reported elsewhere."""
        while True:
            await self._sleep(RECORDED_EVERY.total_seconds())
            if not self._is_begun:
                continue
            try:
                await self._record()
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                self._log.debug("handlers not recorded", error=first_line(error))

    async def _record(self) -> None:
        if self._rows:
            async with self._engine.begin() as connection:
                await connection.execute(statements.handlers.register_handlers(connection.dialect.name), self._rows)

    async def _compare(self) -> list[known_handlers.SharedName]:
        """The names that stand here and elsewhere, for types that both take."""
        async with self._engine.begin() as connection:
            now = await partitions.clock(connection)
            shared = await connection.run_sync(known_handlers.read_shared, now)
        return [each for each in shared if self._queue in {one.queue for one in each.handlers}]


def _row(handler: Handler) -> dict[str, Any]:
    types = storable(json.dumps(handler.message_types, ensure_ascii=False))
    return {"handler": handler.name, "function": storable(path_of(handler.function))[-NAME_LIMIT:], "types": types}
