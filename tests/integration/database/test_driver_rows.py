"""Rows as the driver reads them, by cursors, on both databases."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, Select, bindparam, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.database.driver_rows import pages
from outboxkit.tables import handler

SEEN = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAMES = [f"H{n:02}" for n in range(7)]


def of_queue() -> Select[Any]:
    columns = (handler.c.handler, handler.c.types, handler.c.last_seen)
    return select(*columns).where(handler.c.queue == bindparam("of")).order_by(handler.c.handler)


async def test_two_cursors_of_a_connection_are_read_in_turn(engine: Engine, async_engine: AsyncEngine):
    """As plain tuples, with moments in UTC, and no more rows at once than were asked for."""
    with engine.begin() as connection:
        rows = [{"handler": name, "queue": queue, "last_seen": SEEN} for name in NAMES for queue in ("a", "b")]
        connection.execute(insert(handler), rows)
    async with async_engine.connect() as connection:
        first = pages(connection, of_queue(), {"of": "a"}, name="first", size=3)
        second = pages(connection, of_queue(), {"of": "b"}, name="second", size=4)
        sizes, seen = list[int](), list[tuple[Any, ...]]()
        for each in (first, second, first, second, first):
            page = await anext(each)
            sizes.append(len(page))
            seen += page
        assert [page async for page in first] == [page async for page in second] == []
    assert sizes == [3, 4, 3, 3, 1]
    assert sorted(seen) == sorted((name, None, SEEN) for name in NAMES * 2)
    assert {(type(row), row[2].tzinfo) for row in seen} == {(tuple, UTC)}
