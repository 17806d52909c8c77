"""Reconciliation: how many kept messages a second are compared with the inbox, and how much memory that takes."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg

from outboxkit.operators.reconciliation import Terms, reconcile_services
from outboxkit.runtime import process
from outboxkit.runtime.outage import utc_now
from tests.benchmarks.backlog import plain
from tests.benchmarks.place import Case, Place
from tests.benchmarks.rounds import Figures, Line, Measure

COUNT, QUICK = 1_000_000, 20_000
IDS = "SELECT n, '019cbd26-8c00-7' || lpad(to_hex(n), 20, '0') AS id FROM generate_series(1, %(count)s) n"
FILL = (
    "TRUNCATE outboxkit_published, outboxkit_inbox, outboxkit_handler",
    """
    INSERT INTO outboxkit_published (published_at, position, message_id, type, payload, headers, content_type)
    SELECT now() - interval '1 hour', n, id, 'T', '', '{}', 'x' FROM (IDS) s
    """,
    "INSERT INTO outboxkit_inbox (handler, message_id, type) SELECT 'H', id, 'T' FROM (IDS) s WHERE n %% 100000 <> 1",
    """INSERT INTO outboxkit_handler (handler, queue, types) VALUES ('H', 'q', '["T"]')""",
    "VACUUM ANALYZE outboxkit_published, outboxkit_inbox",
)
EMPTY = "TRUNCATE outboxkit_published, outboxkit_inbox, outboxkit_handler"


@contextmanager
def filled(place: Place) -> Iterator[Mapping[str, Measure]]:
    """One handler of one type, ten of a million messages missing."""
    count = QUICK if place.quick else COUNT
    with psycopg.connect(plain(place.database_url), autocommit=True) as connection:
        for statement in FILL:
            parameters = {"count": count} if "IDS" in statement else None
            connection.execute(statement.replace("IDS", IDS).encode(), parameters)
        yield {"reconcile": lambda: asyncio.run(measure(place.database_url, count))}
        connection.execute(EMPTY)


async def measure(url: str, count: int) -> Figures:
    """Compare all of it, with two engines, as two services have them."""
    engines = [process.engine(url, name="benchmark") for _ in range(2)]
    now, resident = utc_now(), list[int]()
    terms = Terms(now - timedelta(days=1), now, timedelta(minutes=1))
    started = time.perf_counter()
    result = await reconcile_services(engines[0], engines[1], terms, progress=lambda _: resident.append(megabytes()))
    seconds = time.perf_counter() - started
    for engine in engines:
        await engine.dispose()
    if result.compared != count or result.handlers[0].expected != count:
        raise RuntimeError(f"{result.compared} of {count} messages were compared")
    return {"rate": count / seconds, "growth": max(resident) - max(resident[: len(resident) // 4 + 1])}


def megabytes() -> int:
    """The resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 // 1024


CASES = (
    Case(
        "reconcile",
        "kept messages compared with an inbox, a million of each",
        filled,
        (
            Line("messages a second", ("reconcile", "rate"), at_least=50_000, unit="/s"),
            Line("memory beyond that of the first quarter", ("reconcile", "growth"), at_most=16, unit="MB"),
        ),
    ),
)
