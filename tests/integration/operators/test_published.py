"""Kept messages on PostgreSQL: pruned, and read page by page for a replay."""

from datetime import datetime, timedelta

from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import statements
from outboxkit.runtime.retention import Periods, Retention
from outboxkit.schema.partitions import make_ahead
from tests.integration.operators.kept import DAY, DAYS, NOW, days, keep, places, row
from tests.integration.operators.plans import explain, indexes_in


async def test_pruning_drops_days_and_deletes_only_what_has_none(async_pg_engine: AsyncEngine, pg_engine: Engine):
    keep(pg_engine, *(row(number, NOW - 9 * DAY + timedelta(seconds=number)) for number in range(7)))
    keep(pg_engine, row(7, NOW - DAY), row(8, NOW), row(9, NOW + DAY))

    def now_is(moment: datetime) -> Retention:
        return Retention(async_pg_engine, Periods(inbox=DAY, published=2 * DAY), batch_size=3, clock=lambda: moment)

    first = await now_is(NOW).prune()
    assert (first.days_made, first.days_dropped, first.published, first.problems) == (DAYS, [], 7, [])
    second = await now_is(NOW + 4 * DAY).prune()
    assert (second.days_dropped, second.published) == (DAYS[:2], 1)
    assert places(pg_engine) == {}
    assert days(pg_engine) == [DAYS[0] + number * DAY for number in range(2, 12)]


async def test_no_row_moves_while_a_page_is_read(async_pg_engine: AsyncEngine, pg_engine: Engine):
    """A page that was planned before a move and read after it would miss what has moved."""
    keep(pg_engine, row(1, NOW))
    async with async_pg_engine.connect() as reader, async_pg_engine.connect() as mover:
        await reader.execute(statements.published.keep_partitions())
        assert (await make_ahead(mover, now=NOW)).busy
        await reader.rollback()
        assert (await make_ahead(mover, now=NOW)).days == DAYS


async def test_a_page_is_read_from_the_index(async_pg_engine: AsyncEngine, pg_engine: Engine):
    async with async_pg_engine.connect() as connection:
        await make_ahead(connection, now=NOW)
    keep(pg_engine, *(row(number, NOW + number * timedelta(minutes=1)) for number in range(5_000)))
    page = statements.published.kept_page(type_="OrderConfirmed", key=None)
    given = {
        "destination": "default",
        "since": NOW,
        "until": NOW + 9 * DAY,
        "after_at": NOW + DAY,
        "after_position": 1440,
        "limit": 500,
    }
    with pg_engine.connect() as other:
        other.execute(text("ANALYZE outboxkit_published"))
        nodes = explain(other, page, given)
    assert "outboxkit_published_20260302_pkey" in indexes_in(nodes)
    assert "outboxkit_published_20260301_pkey" not in indexes_in(nodes), "days before the place are not read"
    assert not {"Seq Scan", "Sort", "Bitmap Heap Scan"} & {node["Node Type"] for node in nodes}
