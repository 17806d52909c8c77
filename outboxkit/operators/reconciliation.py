"""Reconciliation: what one service published, beside what another one has handled.

Kept messages are read page by page. Of each page the consumer's database says which messages a handler lacks.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import ids, schema, statements
from outboxkit.database.driver_rows import DriverRows, fetch, pages
from outboxkit.database.engines import snapshot
from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import printable
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators import sql
from outboxkit.runtime import urls
from outboxkit.runtime.known_handlers import KnownHandler, read_handlers
from outboxkit.schema import partitions
from outboxkit.statements.dialects import is_server
from outboxkit.statements.handlers import NEVER
from outboxkit.telemetry import catalogue

PAGE = 5_000
"""Kept messages that are compared at once."""
FEW = 5
"""Ids with different payloads that a result names."""
SHOWN = 10
"""Handlers that an error names."""
MOST_QUEUES = 1_000


@dataclass(frozen=True, slots=True)
class Terms:
    """The messages and handlers to reconcile.

    Attributes:
        margin: a message that was published so shortly ago may be in flight.
        handlers: only these; if empty, all.
        types: only messages of these types; if empty, all. With `handlers`, each of them takes each of these types.
    """

    since: datetime
    margin: timedelta
    handlers: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@dataclass(slots=True)
class HandlerTally:
    """The messages that a handler takes, by what became of them.

    Attributes:
        queues: the queues whose consumers have it, the one that was seen last first; none if that is not known.
        forgets_before: an older message may be missing because the inbox has forgotten it; None: not known.
        first_seen: when a consumer registered it first; None: not known.
        expected: messages that it takes: the sum of those that follow, but for the last two.
        processed: those that it has handled, or that were discarded for it.
        dead: those with an open dead letter.
        waiting: those with a crash record, that were published, or replayed as a dead letter, within the margin, or
            that wait in the consumer's outbox since their replay.
        missing: all others.
        older: those of the missing ones that were added before it was first seen.
        forgotten: messages of which nothing is known, and that are older than the inbox remembers.
    """

    handler: str
    types: Collection[str]
    queues: tuple[str, ...] = ()
    forgets_before: datetime | None = None
    first_seen: datetime | None = None
    expected: int = 0
    processed: int = 0
    dead: int = 0
    waiting: int = 0
    missing: int = 0
    older: int = 0
    forgotten: int = 0

    def takes(self, type_: str, queue: str | None) -> bool:
        """Whether a message of this type is for it. If the message is for one queue, that has to be the handler's."""
        return type_ in self.types and (queue is None or not self.queues or queue in self.queues)


@dataclass(slots=True)
class Reconciled:
    """The result.

    Attributes:
        since, until: the period, by the producer's clock; it ends at the present time.
        in_flight_since: messages published later may be in flight.
        compared: those of them that were compared so far.
        oldest_kept: when the oldest message that is kept at all was published; None if none is.
        without_handler: the number of messages of each type that no handler is known to take.
        ambiguous_ids: ids that were published with different payloads: an inbox takes one message of each.
        ambiguous: a few of these, each with the number of its messages.
    """

    since: datetime
    until: datetime
    in_flight_since: datetime
    published: int = 0
    compared: int = 0
    first: datetime | None = None
    last: datetime | None = None
    oldest_kept: datetime | None = None
    handlers: tuple[HandlerTally, ...] = ()
    without_handler: Counter[str] = field(default_factory=Counter)
    ambiguous_ids: int = 0
    ambiguous: dict[str, int] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """The number of all that is missing."""
        return sum(tally.missing for tally in self.handlers)


async def reconcile_services(
    producer: AsyncEngine,
    consumer: AsyncEngine,
    terms: Terms,
    *,
    missing: Callable[[HandlerTally, Sequence[str]], None],
    progress: Callable[[Reconciled], None] = lambda _: None,
) -> Reconciled:
    """Compare the kept messages of a producer with the inbox of a consumer, each as of one moment. It only reads.

    Args:
        producer: the engine of its database.
        consumer: likewise; the same one if both are in one database.
        terms: the messages and handlers to compare.
        missing: called with the ids of messages that a handler lacks, page by page.
        progress: called with the result so far after each page.

    Raises:
        ConfigurationError: a handler is wanted that is not known.
    """
    async with AsyncExitStack() as stack:
        source = await _opened(stack, producer)
        sink = source if consumer is producer else await _opened(stack, consumer)
        dialect, now = source.dialect.name, await partitions.clock(source)
        result = Reconciled(terms.since, now, now - terms.margin)
        period = {
            "destination": DEFAULT_DESTINATION,
            "since": result.since,
            "until": result.until,
            "types": list(terms.types),
            "any_type": not terms.types,
        }
        row = (await source.execute(sql.reconciliation.kept_messages(dialect), period)).one()
        result.published, first_id, last_id, result.first, result.last = row
        result.oldest_kept = (await source.execute(statements.status.oldest_published())).scalar_one()
        several = (await source.execute(sql.reconciliation.ambiguous_ids(dialect), period)).all()
        result.ambiguous_ids, result.ambiguous = len(several), dict(map(tuple, sorted(several)[:FEW]))
        between = {"first_id": first_id, "last_id": last_id}
        handled = [(name, type_) for name, type_ in await sink.execute(sql.reconciliation.handled_types(), between)]
        result.handlers = tuple(tallies_of(await sink.run_sync(read_handlers), handled, terms, now=now))
        young = period | {"in_flight": result.in_flight_since}
        async with aclosing(
            pages(source, sql.reconciliation.kept_ids(dialect), young, name="kept_ids", size=PAGE)
        ) as kept:
            async for page in kept:
                if not result.compared and is_server(sink.dialect.name):
                    await sink.execute(sql.resolve.forbid_seqscan())  # the cursor has its plan already
                await _compare(page, sink, result, missing)
                progress(result)
        return result


def textfile(result: Reconciled) -> str:
    """The result in Prometheus' text format, for node_exporter's textfile collector."""
    missing = {f'{{handler="{_label(each.handler)}"}}': each.missing for each in result.handlers}
    values: dict[catalogue.Metric, Mapping[str, float]] = {
        catalogue.RECONCILE_MISSING: missing,
        catalogue.RECONCILE_AMBIGUOUS: {"": result.ambiguous_ids},
        catalogue.RECONCILE_FINISHED: {"": round(result.until.timestamp())},
    }
    lines = list[str]()
    for metric, series in values.items():
        name = metric.prometheus_name
        lines += [f"# HELP {name} {metric.description}", f"# TYPE {name} gauge"]
        lines += [f"{name}{labels} {value}" for labels, value in series.items()]
    return "".join(f"{line}\n" for line in lines)


def _label(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')


async def _opened(stack: AsyncExitStack, engine: AsyncEngine) -> AsyncConnection:
    """A connection that the stack closes, to tables that this version can read."""
    with urls.naming(engine.url):
        connection = await stack.enter_async_context(snapshot(engine).connect())
        await connection.run_sync(schema.check)
        if is_server(connection.dialect.name):
            await connection.execute(sql.reconciliation.whole_cursors())
    return connection


def tallies_of(
    registered: Iterable[KnownHandler], handled: Iterable[tuple[str, str]], terms: Terms, *, now: datetime
) -> list[HandlerTally]:
    """The handlers that messages are expected of, with their types.

    A consumer registers its handlers with their types. Of a handler that did not, those types count that it has
    handled. One that its queue's consumer no longer has counts no more.

    Args:
        registered: the rows of `outboxkit_handler`.
        handled: handlers, each with a type that it has handled.
        terms: which of them are wanted. If it names handlers and types, each of them takes each type.
        now: the time from which inboxes remember so long.

    Raises:
        ConfigurationError: a handler is wanted that is not known, and no type is named.
    """
    living, types = defaultdict[str, list[KnownHandler]](list), defaultdict[str, set[str]](set)
    declared = set[str]()
    for row in sorted(registered, key=attrgetter("last_seen"), reverse=True):
        if row.types is not None:
            declared.add(row.handler)
        if row.last_seen > NEVER:
            living[row.handler].append(row)
            types[row.handler].update(row.types or ())
    for name, type_ in handled:
        if name not in declared:
            types[name].add(type_)
    names = terms.handlers or sorted(types)
    if terms.handlers and terms.types:
        types.update((name, {*terms.types}) for name in names)
    elif unknown := [name for name in names if name not in types]:
        some = ", ".join(printable(name, 60) for name in sorted(types)[:SHOWN]) or "none"
        raise ConfigurationError(
            f"--handler is {unknown[0]!r}, which the consumer's database does not know; it knows {some}. With --type "
            "any name is accepted"
        )
    return [_tally(name, types[name], living[name], now) for name in names]


def _tally(name: str, types: Iterable[str], rows: Sequence[KnownHandler], now: datetime) -> HandlerTally:
    retention = min((row.retention for row in rows if row.retention is not None), default=None)
    seen = [row.first_seen for row in rows]
    return HandlerTally(
        name,
        frozenset(types),
        tuple(row.queue for row in rows),
        forgets_before=None if retention is None else now - retention,
        first_seen=min((at for at in seen if at is not None), default=None) if None not in seen else None,
    )


async def _compare(
    page: DriverRows, sink: AsyncConnection, result: Reconciled, missing: Callable[[HandlerTally, Sequence[str]], None]
) -> None:
    """Add a page of kept messages to the result."""
    places = Counter((type_, queue) for _, type_, queue, *_ in page)
    result.compared += sum(messages for *_, messages in page)
    for (type_, queue), count in places.items():
        if not any(tally.takes(type_, queue) for tally in result.handlers):
            result.without_handler[type_] += count
    for tally in result.handlers:
        taken = {place for place in places if tally.takes(*place)}
        is_young = {id_: young for id_, type_, queue, young, _ in page if (type_, queue) in taken}
        if is_young:
            asked = {"handler": tally.handler, "ids": list(is_young)}
            handled = await fetch(sink, sql.reconciliation.handled_ids(sink.dialect.name), asked)
            left = {id_: is_young[id_] for id_ in is_young.keys() - {id_ for (id_,) in handled}}
            tally.expected, tally.processed = tally.expected + len(is_young), tally.processed + len(handled)
            if left and (lost := await _count_left(tally, left, sink, result.in_flight_since)):
                missing(tally, lost)


async def _count_left(
    tally: HandlerTally, left: Mapping[str, bool], sink: AsyncConnection, in_flight_since: datetime
) -> list[str]:
    """Count messages that a handler has not handled, by what dead letters and crash records tell of them.

    Returns the ids of those that are missing.
    """
    missing: list[str] = []
    dialect, ids = sink.dialect.name, {"ids": list(left)}
    letters = defaultdict[str, list[Any]](list)
    for row in await sink.execute(sql.reconciliation.letters_of(dialect), ids):
        is_of_queue = row.handler is None and (row.queue in tally.queues or not tally.queues)
        if row.handler == tally.handler or is_of_queue:
            letters[row.message_id].append(row)
    queues = (await sink.execute(statements.status.queues_with_crashes(), {"most": MOST_QUEUES})).scalars()
    ours = [queue for queue in queues if queue in tally.queues]
    records = {"queues": ours, "limit": len(left) * len(ours)}
    crashed = {row.message_id for row in await sink.execute(sql.trace.crashes(dialect), ids | records)}
    replays = [id_ for id_, rows in letters.items() if any(row.resolution == "replayed" for row in rows)]
    back = set[str]()
    if replays:
        back.update((await sink.execute(sql.reconciliation.back_in_outbox(dialect), {"ids": replays})).scalars())
    for id_, is_young in left.items():
        resolutions = {row.resolution for row in letters[id_]}
        replayed = (row.resolved_at for row in letters[id_] if row.resolution == "replayed")
        if None in resolutions:
            tally.dead += 1
        elif id_ in crashed or id_ in back or any(at > in_flight_since for at in replayed):
            tally.waiting += 1
        elif "discarded" in resolutions:
            tally.processed += 1
        elif is_young:
            tally.waiting += 1
        elif _is_before(id_, tally.forgets_before):
            tally.forgotten += 1
            tally.expected -= 1
        else:
            missing.append(id_)
    tally.missing += len(missing)
    tally.older += sum(_is_before(id_, tally.first_seen) for id_ in missing)
    return missing


def _is_before(id_: str, moment: datetime | None) -> bool:
    """Whether the time in an id is before the moment; not if it has none."""
    at = ids.time_of(id_)
    return at is not None and moment is not None and at < moment
