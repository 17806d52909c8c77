"""The trace of a message through the tables of one or several services, from its `add` to its handlers.

`reading` asks a database for rows, `reasons` says why a message is where it is, `message` puts both together.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from outboxkit.database.engines import snapshot
from outboxkit.database.sqlalchemy_asyncio import AsyncEngine
from outboxkit.errors.failures import first_line
from outboxkit.operators.trace.message import Caused, MessageTrace, Trace, assemble
from outboxkit.operators.trace.reading import DatabaseRows, TraceQuery, read_messages, read_outcomes
from outboxkit.runtime import urls
from outboxkit.runtime.outage import what_is_away

__all__ = ["Caused", "MessageTrace", "Trace", "TraceQuery", "trace_messages"]

T = TypeVar("T")


async def trace_messages(engines: Sequence[AsyncEngine], query: TraceQuery, *, hides_errors: bool = False) -> Trace:
    """Find the messages of a query in these databases, each in a snapshot of its own; nothing is written.

    If one behind the first is away, the trace says so, and has the others. With `hides_errors` it has the classes of
    errors alone, without their texts.
    """
    databases, away = dict[AsyncEngine, DatabaseRows](), list[str]()

    async def read(engine: AsyncEngine, work: Callable[[Connection], T]) -> T | None:
        try:
            return await _read(engine, work)
        except SQLAlchemyError as error:
            if engine is engines[0] or what_is_away(error) is None:
                raise
            databases.pop(engine, None)
            away.append(f"{urls.shown(engine.url)}: {first_line(error)}")
            return None

    for engine in engines:
        if (rows := await read(engine, partial(read_messages, query=query))) is not None:
            databases[engine] = rows
    ids = {id_ for database in databases.values() for id_ in database.ids()} | ({query.id_} if query.id_ else set())
    for engine, database in [*databases.items()]:
        await read(engine, partial(read_outcomes, query=query, database=database, message_ids=ids))
        if hides_errors:
            database.hide_errors()
    return assemble(query, [*databases.values()], away)


async def _read(engine: AsyncEngine, work: Callable[[Connection], T]) -> T:
    with urls.naming(engine.url):
        async with snapshot(engine).connect() as connection:
            return await connection.run_sync(work)
