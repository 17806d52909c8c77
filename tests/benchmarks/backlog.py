"""Rows that wait in the outbox, and a transaction elsewhere that holds vacuum back."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from tests.benchmarks.raw_publisher import TRACE, TYPE

FILL = """
INSERT INTO outboxkit_outbox (message_id, type, key, payload, headers, content_type, created_at)
SELECT gen_random_uuid()::text, %(type)s, CASE WHEN %(keys)s > 0 THEN 'key-' || n %% greatest(%(keys)s, 1) END,
       convert_to('{"pad":"' || repeat('x', greatest(%(size)s - 10, 0)) || '"}', 'UTF8'),
       convert_to('{"traceparent":"' || %(trace)s || '"}', 'UTF8'), 'application/json', now()
FROM generate_series(1, %(count)s) n
"""


def plain(url: str) -> str:
    """A SQLAlchemy URL as the driver itself takes it."""
    return url.replace("postgresql+psycopg://", "postgresql://", 1)


def fill(url: str, *, count: int, size: int = 1024, keys: int = 0, analyzed: bool = True) -> None:
    """Have the outbox hold exactly `count` rows with payloads of `size` bytes, in turn of `keys` keys, or of none."""
    given = {"type": TYPE, "keys": keys, "size": size, "trace": TRACE, "count": count}
    with psycopg.connect(plain(url), autocommit=True, prepare_threshold=None) as connection:
        connection.execute("TRUNCATE outboxkit_outbox")
        if not analyzed:  # the statistics are those of an empty table, as after `outboxkit migrate`
            connection.execute("VACUUM ANALYZE outboxkit_outbox")
        connection.execute(FILL, given)
        if analyzed:
            connection.execute("ANALYZE outboxkit_outbox")


def left(url: str) -> int:
    """How many rows the outbox holds."""
    return int(ask(url, "SELECT count(*) FROM outboxkit_outbox")[0][0])


def ask(url: str, statement: str) -> list[tuple[Any, ...]]:
    """The rows of one statement, in a connection and transaction of its own."""
    with psycopg.connect(plain(url)) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@contextmanager
def blocking_vacuum(url: str, *, wanted: bool = True) -> Iterator[None]:
    """A transaction elsewhere that may still look at everything that is deleted meanwhile."""
    if not wanted:
        yield
        return
    with psycopg.connect(plain(url)) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM outboxkit_schema_version")
        yield
