"""`outboxkit reconcile` on two PostgreSQL databases: pages and indexes, and the memory of a long run."""

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Engine, create_engine, insert, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import ids, tables
from outboxkit.operators import reconciliation, sql
from outboxkit.operators.reconciliation import Reconciled, Terms, reconcile_services
from outboxkit.operators.replay import Replayer, ReplaySelection
from outboxkit.runtime.outage import utc_now
from outboxkit.schema.partitions import make_ahead
from outboxkit.statements.partitions import INBOX, PUBLISHED, PartitionedTable
from tests.integration.operators.doctoring import with_engines
from tests.integration.operators.plans import explain, indexes_in
from tests.support.databases import DatabasePool
from tests.support.night import by_night

NOW = utc_now()
HOUR = timedelta(hours=1)
KEPT = {"payload": b"{}", "headers": b"{}", "content_type": "x", "type": "T"}
ODD = ["A", "a", "B", "_", "-", "é", "Z", "z", "a-1", "a_1", "ab", "\U0001f600", "\uffff", "1", "10", "9", "A" * 255]


@pytest.fixture
def second_url(pool: DatabasePool) -> Iterator[str]:
    url = pool.take()
    yield url
    pool.give_back(url)


@pytest.fixture
def consumer(second_url: str) -> Iterator[Engine]:
    engine = create_engine(second_url)
    with engine.begin() as connection:
        connection.execute(insert(tables.handler), {"handler": "H", "queue": "q", "types": '["T"]'})
    yield engine
    engine.dispose()


def run(producer: str, consumer: str, missing: list[str], **more: Any) -> Reconciled:
    terms = Terms(NOW - 24 * HOUR, timedelta(minutes=1))

    def lost(_: str, ids: Sequence[str]) -> None:
        missing.extend(ids)

    return with_engines(lambda *each: reconcile_services(*each, terms, missing=lost, **more), producer, consumer)


async def prepare(engine: AsyncEngine, partitioned: PartitionedTable) -> None:
    async with engine.connect() as connection:
        await make_ahead(connection, partitioned)


def test_each_message_is_compared_once(
    pg_engine: Engine, postgresql_url: str, consumer: Engine, second_url: str, monkeypatch: pytest.MonkeyPatch
):
    """Whatever the databases' own collation, with ids in several partitions and outside of them, some of them twice."""
    monkeypatch.setattr(reconciliation, "PAGE", 7)
    for url, partitioned in ((postgresql_url, PUBLISHED), (second_url, INBOX)):
        with_engines(lambda engine, of=partitioned: prepare(engine, of), url)
    dice = random.Random(7)
    all_ids = ODD + [ids.new(at=NOW - n * HOUR) for n in range(0, 40, 3)] + [f"m-{n}" for n in range(50)]
    handled = dice.sample(all_ids, len(all_ids) // 2)
    rows = [KEPT | {"message_id": id_, "published_at": NOW - HOUR} for id_ in [*all_ids, *dice.sample(all_ids, 10)]]
    with pg_engine.begin() as connection:
        connection.execute(insert(tables.published), [row | {"position": n} for n, row in enumerate(rows)])
    with consumer.begin() as connection:
        connection.execute(insert(tables.inbox), [{"handler": "H", "message_id": id_, "type": "T"} for id_ in handled])
    missing: list[str] = []
    result = run(postgresql_url, second_url, missing)
    (tally,) = result.handlers
    assert sorted(missing) == sorted(set(all_ids) - set(handled))
    assert result.compared == len(rows)
    assert (result.published, tally.expected) == (len(rows), len(all_ids))
    assert (tally.processed, tally.missing) == (len(handled), len(missing))
    selection = ReplaySelection(message_ids=frozenset(missing))
    kept = with_engines(lambda engine: Replayer(engine, cast("Any", None), selection).find(), postgresql_url)
    assert (kept.count, kept.absent) == (sum(row["message_id"] in set(missing) for row in rows), 0)


def test_what_the_inbox_has_forgotten_is_not_missing_and_what_is_older_than_the_handler_is_told(
    pg_engine: Engine, postgresql_url: str, consumer: Engine, second_url: str
):
    forgotten, older, lost = (ids.new(at=NOW - n * HOUR) for n in (5, 3, 1))
    rows = [KEPT | {"message_id": id_, "published_at": NOW - HOUR} for id_ in (forgotten, older, lost)]
    with pg_engine.begin() as connection:
        connection.execute(insert(tables.published), [row | {"position": n} for n, row in enumerate(rows)])
    with consumer.begin() as connection:
        seen = {"retention": 4 * 3600, "first_seen": NOW - 2 * HOUR}
        connection.execute(update(tables.handler).values(seen))
    missing: list[str] = []
    (tally,) = run(postgresql_url, second_url, missing).handlers
    assert sorted(missing) == sorted((older, lost))
    assert (tally.expected, tally.missing, tally.older, tally.forgotten) == (2, 2, 1, 1)


DEAD = """
    INSERT INTO outboxkit_dead_letter (side, message_id, type, payload, headers, content_type, reason, attempts)
    SELECT 'inbox', 'm' || n, 'T', '', '{}', 'x', 'failed', 10 FROM generate_series(1, 20000) n
"""
CRASHES = "INSERT INTO outboxkit_attempt (queue, message_id) SELECT 'q', 'm' || n FROM generate_series(1, 20000) n"


def test_what_is_left_is_looked_up_by_indexes(pg_engine: Engine):
    with pg_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in (DEAD, CRASHES, "ANALYZE outboxkit_dead_letter, outboxkit_attempt"):
            connection.execute(text(statement))
    some = {"ids": ["m1", "m777", "m19999"]}
    reads: dict[str, tuple[Callable[[str], Any], dict[str, Any]]] = {
        "outboxkit_dead_letter_message": (sql.reconciliation.letters_of, some),
        "outboxkit_attempt_pkey": (sql.trace.crashes, some | {"queues": ["q"], "limit": 3}),
    }
    with pg_engine.connect() as connection:
        for index, (read, parameters) in reads.items():
            nodes = explain(connection, read("postgresql"), parameters)
            assert indexes_in(nodes) == {index}
            assert "Seq Scan" not in {node["Node Type"] for node in nodes}


def test_handled_messages_are_looked_up_by_the_index_before_any_analyze(pg_engine: Engine):
    """The planner expects a handful of rows of a handler then, and would build a table of all of them for each page."""
    source = "SELECT 'H', 'm' || n, 'T' FROM generate_series(1, 20000) n"
    fill = f"INSERT INTO outboxkit_inbox (handler, message_id, type) {source}"
    with pg_engine.connect() as connection:
        connection.execute(text("ALTER TABLE outboxkit_inbox_default SET (autovacuum_enabled = off)"))
        connection.execute(text(fill))
        parameters = {"handler": "H", "ids": [f"m{number}" for number in range(1000)]}
        nodes = explain(connection, sql.reconciliation.handled_ids("postgresql"), parameters)
        assert {"Hash", "Seq Scan", "Bitmap Heap Scan"} & {node["Node Type"] for node in nodes} == set()
        assert indexes_in(nodes) == {"outboxkit_inbox_default_pkey"}
        connection.rollback()


@pytest.mark.night
def test_the_memory_does_not_grow(pg_engine: Engine, postgresql_url: str, consumer: Engine, second_url: str):
    rows = by_night(1_000_000, else_=20_000)
    source = "SELECT n, '019cbd26-8c00-7' || lpad(to_hex(n), 20, '0') AS id FROM generate_series(1, :rows) n"
    with pg_engine.begin() as connection:
        into = (
            "INSERT INTO outboxkit_published (published_at, position, message_id, type, payload, headers, content_type)"
        )
        made = f"{into} SELECT now() - interval '1 hour', n, id, 'T', '', '{{}}', 'x' FROM ({source}) s"
        connection.execute(text(made), {"rows": rows})
    with consumer.begin() as connection:
        into = "INSERT INTO outboxkit_inbox (handler, message_id, type)"
        connection.execute(text(f"{into} SELECT 'H', id, 'T' FROM ({source}) s WHERE n % 10000 <> 1"), {"rows": rows})
    resident: list[int] = []
    result = run(postgresql_url, second_url, [], progress=lambda _: resident.append(resident_pages()))
    (tally,) = result.handlers
    assert (tally.expected, tally.missing) == (rows, rows // 10_000)
    early, late = max(resident[: len(resident) // 4]), max(resident)
    assert late - early < 4096, f"{(late - early) * 4} KiB more at the end than in the first quarter"


def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])
