"""The trace of a message through the tables of one or several services, from its `add` to its handlers.

`reading` asks a database for rows, `reasons` says why a message is where it is, `message` puts both together.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from outboxkit.database.engines import snapshot
from outboxkit.database.sqlalchemy_asyncio import AsyncEngine
from outboxkit.operators.trace.message import MessageTrace, Trace, assemble
from outboxkit.operators.trace.reading import TraceQuery, read_messages, read_outcomes
from outboxkit.runtime import urls

__all__ = ["MessageTrace", "Trace", "TraceQuery", "trace_messages"]

T = TypeVar("T")


async def trace_messages(engines: Sequence[AsyncEngine], query: TraceQuery, *, hides_errors: bool = False) -> Trace:
    """Find the messages of a query in these databases, each in a snapshot of its own; nothing is written.

    With `hides_errors` the trace has the classes of errors alone, without their texts.
    """
    databases = [await _read(engine, partial(read_messages, query=query)) for engine in engines]
    ids = {id_ for database in databases for id_ in database.ids()} | ({query.id_} if query.id_ else set())
    for engine, database in zip(engines, databases, strict=True):
        await _read(engine, partial(read_outcomes, database=database, message_ids=ids))
        if hides_errors:
            database.hide_errors()
    return assemble(query, databases)


async def _read(engine: AsyncEngine, work: Callable[[Connection], T]) -> T:
    with urls.naming(engine.url):
        async with snapshot(engine).connect() as connection:
            return await connection.run_sync(work)
