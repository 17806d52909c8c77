"""The registration of a consumer's handlers, visible to consumers of other queues.

The inbox knows a handler by its name alone, so two queues must not share a handler's name.
"""

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any

import structlog
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import partitions
from outboxkit.failures import first_line, path_of
from outboxkit.inbox import Handler
from outboxkit.message import NAME_LIMIT, storable
from outboxkit.outage import Sleep
from outboxkit.sqlstates import NO_RIGHT, sqlstate_of
from outboxkit.statements import activity as statements

EVERY = timedelta(hours=1)
CURE = "in one database a handler's name is its identity: of each message only one of them runs. Rename one"


class Registration:
    """Records which handlers a queue's consumer has, and warns if another queue's consumer has one of the same name.

    Args:
        engine: for its own connections.
        handlers: the consumer's.
        queue: the consumer's queue.
        retention: for how long the consumer counts on the inbox; None: not known.
        sleep: for tests.
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
        self._log = structlog.get_logger("outboxkit").bind(process="consumer", queue=queue)

    async def begin(self) -> None:
        """Record the handlers for the first time. A role without the grant for it goes on, with a warning.

        Raises:
            sqlalchemy.exc.DBAPIError: the database is away.
        """
        try:
            await self._release_others()
            shared = await self._record()
        except DBAPIError as error:
            if sqlstate_of(error) != NO_RIGHT:
                raise
            cure = "GRANT SELECT, INSERT, UPDATE ON outboxkit_handler to this role"
            self._log.warning("handlers not compared with those of other queues", error=first_line(error), cure=cure)
            return
        for other, names in groupby(shared, key=itemgetter(0)):
            handlers = [name for _, name in names]
            self._log.warning("two queues use one handler name", other_queue=other, handlers=handlers, cure=CURE)

    async def run(self) -> None:
        """Record the handlers every hour, until cancelled. Outages are reported elsewhere."""
        while True:
            await self._sleep(EVERY.total_seconds())
            try:
                await self._record()
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                self._log.debug("handlers not recorded", error=first_line(error))

    async def _release_others(self) -> None:
        """Delete this queue's records of handlers that it no longer has, so that another queue may record them."""
        async with self._engine.begin() as connection:
            await connection.execute(statements.retire_handlers(self._names), {"of_queue": storable(self._queue)})

    async def _record(self) -> list[tuple[str, str]]:
        if not self._rows:
            return []
        async with self._engine.begin() as connection:
            await connection.execute(statements.register_handlers(connection.dialect.name), self._rows)
            since = await partitions.clock(connection) - statements.SEEN
            statement = statements.of_other_queues(self._names, since)
            return [(queue, name) for queue, name in await connection.execute(statement, {"queue": self._queue})]


def _row(handler: Handler) -> dict[str, Any]:
    types = storable(json.dumps(handler.message_types, ensure_ascii=False))
    return {"handler": handler.name, "function": storable(path_of(handler.function))[-NAME_LIMIT:], "types": types}
