"""Reconciliation: what one service published, beside what another one has handled.

Two cursors read kept messages and inbox rows in the order of their ids. They are compared page by page, so that the
memory does not grow with their number.
"""

from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import schema
from outboxkit.database.driver_rows import pages
from outboxkit.operators.reconciliation.result import HandlerTally, Reconciled, Terms
from outboxkit.operators.reconciliation.takers import Takers, takers_of
from outboxkit.runtime import urls
from outboxkit.runtime.engines import snapshot
from outboxkit.runtime.known_handlers import read_handlers
from outboxkit.schema import partitions
from outboxkit.statements import reconciliation as statements
from outboxkit.statements import status
from outboxkit.statements.dialects import is_server

__all__ = ["HandlerTally", "Reconciled", "Reconciliation", "Terms"]

PAGE = 5_000
"""Rows of a cursor that are in memory at once."""
MOST_QUEUES = 1_000

KeptId = tuple[str, str, str | None, bool, Any]
"""A kept message: its id, type, queue if it is for one alone, whether it may be in flight, and its payload's digest."""


Pair = tuple[str, str]
"""A message's id, and a handler."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The comparison of a page.

    Attributes:
        count: its kept messages.
        expected: the number of messages that each handler takes.
        left: those that it has not handled, and whether each may be in flight; in the order of the ids.
        without_handler: messages of each type that no handler takes.
        ambiguous: ids of messages with different payloads, each with the number of its messages.
    """

    count: int
    expected: Counter[str]
    left: dict[Pair, bool]
    without_handler: Counter[str]
    ambiguous: dict[str, int]


class Reconciliation:
    """Compares the kept messages of a producer with the inbox of a consumer. It only reads.

    Args:
        producer, consumer: engines of the two databases; the same one if both are in one.
        terms: the messages and handlers to compare.
        take_missing: called with a handler and a message's id for each that is missing, in the order of the ids.
        progress: called with the number of messages of each page that was compared.
    """

    def __init__(
        self,
        producer: AsyncEngine,
        consumer: AsyncEngine,
        terms: Terms,
        *,
        take_missing: Callable[[str, str], None] = lambda _, __: None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._engines = producer, consumer
        self._terms = terms
        self._take_missing = take_missing
        self._progress = progress

    async def run(self) -> Reconciled:
        """Compare all of it, each database as of one moment.

        Raises:
            ConfigurationError: a handler is wanted that is not known.
            SchemaError: the tables of a database are missing or old.
            sqlalchemy.exc.DBAPIError: a database is away.
        """
        producer, consumer = self._engines
        async with AsyncExitStack() as stack:
            source = await _opened(stack, producer)
            sink = source if consumer is producer else await _opened(stack, consumer)
            return await self._compare(source, sink)

    async def _compare(self, source: AsyncConnection, sink: AsyncConnection) -> Reconciled:
        terms, now = self._terms, await partitions.clock(source)
        result = Reconciled(terms.since, min(terms.until, now), now - terms.margin)
        period = {
            "destination": terms.destination,
            "since": result.since,
            "until": result.until,
            "types": list(terms.types),
            "any_type": not terms.types,
        }
        dialect = source.dialect.name
        row = (await source.execute(statements.kept_messages(dialect), period)).one()
        result.published, first_id, last_id, result.first, result.last = row
        result.oldest_kept = (await source.execute(status.oldest_published())).scalar_one()
        between = {"first_id": first_id, "last_id": last_id}
        takers = await self._find_takers(sink, between)
        result.handlers = {taker.handler: HandlerTally(taker.handler, taker.queues) for taker in takers.all}
        period["in_flight"] = result.in_flight_since
        messages = pages(source, statements.kept_ids(dialect), period, name="kept_ids", size=PAGE)
        handlers = between | {"handlers": list(result.handlers)}
        rows = pages(sink, statements.handled_ids(sink.dialect.name), handlers, name="handled_ids", size=PAGE)
        async with aclosing(messages), aclosing(rows), aclosing(compare(messages, rows, takers)) as comparison:
            async for page in comparison:
                await self._count(page, sink, result)
                self._progress(page.count)
        return result

    async def _find_takers(self, sink: AsyncConnection, between: Mapping[str, Any]) -> Takers:
        registered = await sink.run_sync(read_handlers)
        pairs = (await sink.execute(statements.handled_types(), between)).all()
        return takers_of(registered, [(name, type_) for name, type_ in pairs], self._terms)

    async def _count(self, page: Compared, sink: AsyncConnection, result: Reconciled) -> None:
        """Add a page to the result: what no inbox row tells of is told by dead letters and crash records."""
        result.without_handler.update(page.without_handler)
        result.note_ambiguous(page.ambiguous)
        fates = await _fates(sink, page.left, result) if page.left else {}
        for handler, count in page.expected.items():
            result.handlers[handler].expected += count
        left = Counter(handler for _, handler in page.left)
        for handler, count in page.expected.items():
            result.handlers[handler].processed += count - left[handler]
        for (id_, handler), fate in fates.items():
            tally = result.handlers[handler]
            setattr(tally, fate, getattr(tally, fate) + 1)
            if fate == "missing":
                self._take_missing(handler, id_)


async def _fates(sink: AsyncConnection, left: Mapping[Pair, bool], result: Reconciled) -> dict[Pair, str]:
    """The fates of messages that a handler has not handled: each is the name of a count of its tally."""
    dialect, ids = sink.dialect.name, {"ids": sorted({id_ for id_, _ in left})}
    letters = _by_id(await sink.execute(statements.letters_of(dialect), ids))
    queues = (await sink.execute(status.queues_with_crashes(), {"most": MOST_QUEUES})).scalars().all()
    crashes = _by_id(await sink.execute(statements.crashes_of(dialect), ids | {"queues": list(queues)}))
    return {
        (id_, handler): _fate(
            [row for row in letters[id_] if row.handler in (None, handler)],
            crashes=any(row.queue in result.handlers[handler].queues for row in crashes[id_]),
            is_young=is_young,
            in_flight_since=result.in_flight_since,
        )
        for (id_, handler), is_young in left.items()
    }


def _fate(letters: Iterable[Row[Any]], *, crashes: bool, is_young: bool, in_flight_since: datetime) -> str:
    resolutions = {row.resolution for row in letters}
    if None in resolutions:
        return "dead"
    if crashes or any(row.resolution == "replayed" and row.resolved_at > in_flight_since for row in letters):
        return "waiting"
    if "discarded" in resolutions:
        return "processed"
    return "in_flight" if is_young else "missing"


def _by_id(rows: Iterable[Row[Any]]) -> defaultdict[str, list[Row[Any]]]:
    by_id = defaultdict[str, list[Row[Any]]](list)
    for row in rows:
        by_id[row.message_id].append(row)
    return by_id


async def _opened(stack: AsyncExitStack, engine: AsyncEngine) -> AsyncConnection:
    """A connection that the stack closes, to tables that this version can read."""
    with urls.naming(engine.url):
        connection = await stack.enter_async_context(snapshot(engine).connect())
        await connection.run_sync(schema.check)
        if is_server(connection.dialect.name):
            await connection.execute(statements.whole_cursors())
    return connection


async def compare(
    messages: AsyncIterator[Sequence[KeptId]], rows: AsyncIterator[Sequence[Pair]], takers: Takers
) -> AsyncGenerator[Compared]:
    """Compare the two, page by page; of each stream, no more than a page is in memory.

    A message that is there twice, because it was published twice, counts once.

    Args:
        messages: pages of kept messages, none of them empty, in the order of the ids by their code points. Of one id,
            those of one type and queue are together.
        rows: pages of inbox rows, none of them empty, in the order of the ids.
        takers: the handlers of each type.
    """
    done: Sequence[Pair] = ()
    async for page, repeats, ambiguous in _with_whole_ids(messages):
        expected = {(id_, name): young for id_, type_, queue, young, _ in page for name in takers[type_, queue]}
        counted, last = Counter(map(itemgetter(1), expected)), page[-1][0]
        while True:
            for pair in done:
                expected.pop(pair, None)
            if done and done[-1][0] > last:
                break
            try:
                done = await anext(rows)
            except StopAsyncIteration:  # anext(rows, ()) fails with the pages of some drivers
                done = ()
                break
        idle = Counter(type_ for _, type_, queue, *_ in page if not takers[type_, queue])
        several = Counter(row[0] for row in page if row[0] in ambiguous)
        yield Compared(
            len(page) + repeats.total(), counted, expected, idle, {id_: n + repeats[id_] for id_, n in several.items()}
        )


async def _with_whole_ids(
    pages: AsyncIterator[Sequence[KeptId]],
) -> AsyncIterator[tuple[list[KeptId], Counter[str], set[str]]]:
    """The same rows, in pages of which none ends between two rows of one id; a repeated message is one row.

    With each page the number of repetitions of its ids, and those ids whose payloads differ.
    """
    rows, repeats, ambiguous = list[KeptId](), Counter[str](), set[str]()
    async for page in pages:
        for row in page:
            if rows and row[0] == rows[-1][0]:
                if row[4] != rows[-1][4]:
                    ambiguous.add(row[0])
                if row[:3] == rows[-1][:3]:
                    repeats[row[0]] += 1
                    continue
            rows.append(row)
        last, end = rows[-1][0], len(rows) - 1
        while end and rows[end - 1][0] == last:
            end -= 1
        if end:
            later = Counter({last: repeats.pop(last, 0)})
            yield rows[:end], repeats, ambiguous - {last}
            rows, repeats, ambiguous = rows[end:], later, ambiguous & {last}
    if rows:
        yield rows, repeats, ambiguous
