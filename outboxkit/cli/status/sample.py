"""Samples: what a bounded part of a table says about all of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, Table

from outboxkit import statements
from outboxkit.cli.wording import Count
from outboxkit.statements.dialects import has_one_writer

EXACT_UP_TO = 10_000
"""Rows that are counted one by one; what is more is estimated."""
SAMPLED_PAGES = 1_000
"""Pages of a table that are read for an estimate on PostgreSQL: 8 MB. A smaller table is read whole."""

LIMIT = {"limit": EXACT_UP_TO + 1}


@dataclass(frozen=True)
class Sample:
    """Rows with counts (`rows`) of a part of a table, and how often that part fits into it."""

    rows: Sequence[Row[Any]]
    factor: float

    def count(self, where: Callable[[Row[Any]], bool] = lambda _: True) -> Count:
        """How many rows there are in the whole table."""
        return self.whole(sum(row.rows for row in self.rows if where(row)))

    def whole(self, found: int) -> Count:
        """What so many rows in the part say of the whole table."""
        return Count(round(found * self.factor), estimate=self.factor > 1)


def take(connection: Connection, table: Table, query: Select[Any]) -> Sample:
    """Execute a statement on a sample of the table; its `rows` are counts."""
    dialect = connection.dialect.name
    size = float(connection.execute(statements.status.size(dialect, table)).scalar_one())
    if has_one_writer(dialect):
        rows = connection.execute(query, {"limit": EXACT_UP_TO}).all()
        is_whole = sum(row.rows for row in rows) < EXACT_UP_TO
        return Sample(rows, 1 if is_whole else max(size / EXACT_UP_TO, 1))
    share = min(1, SAMPLED_PAGES / size) if size else 1
    return Sample(connection.execute(query, {"percent": 100 * share}).all(), 1 / share)
