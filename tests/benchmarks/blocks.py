"""Blocks of the database that a claim and an inbox row touch as tables grow: `python -m tests.benchmarks.blocks`.

Blocks are counted, not seconds, so another load on the machine does not matter.
"""

import argparse
import secrets
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, Executable, create_engine

from outboxkit import ids, statements
from tests.benchmarks import backlog
from tests.servers import create_database, drop_database, provide_postgresql
from tests.support.databases import migrate

CLAIM, INBOX = "a claim of 1 000 rows", "an inbox row"
FILL_INBOX = """
INSERT INTO outboxkit_inbox (handler, message_id, type, processed_at)
SELECT 'Bill', gen_random_uuid()::text, 'T', now() FROM generate_series(1, %(count)s)
"""


def blocks(engine: Engine, statement: Executable, values: dict[str, Any]) -> int:
    """The blocks that a statement read or wrote, by its plan after it ran. It is rolled back."""
    compiled = statement.compile(dialect=engine.dialect)  # type: ignore[attr-defined]
    with engine.connect() as connection:
        told = connection.exec_driver_sql(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {compiled}", compiled.construct_params(values)
        )
        plan = told.scalar_one()[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def measured(engine: Engine, url: str, rows: int) -> dict[str, int]:
    """The blocks of each statement with so many rows in the outbox and in the inbox."""
    backlog.fill(url, count=rows, size=20, keys=1000)
    with engine.begin() as connection:
        connection.exec_driver_sql("TRUNCATE outboxkit_inbox")
        connection.exec_driver_sql(FILL_INBOX, {"count": rows})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE outboxkit_outbox")
        connection.exec_driver_sql("VACUUM ANALYZE outboxkit_inbox")
    handled = {"handler": "Bill", "message_id": ids.new(), "type": "T", "attempts": 1, "payload_crc": 7}
    claimed = {"destination": "default", "floor": 0, "limit": 1000, "payload_limit": 16_000}
    return {
        CLAIM: blocks(engine, statements.claim.claim_ready(), claimed),
        INBOX: blocks(engine, statements.inbox.record_processed("postgresql"), handled | {"made": datetime.now(UTC)}),
    }


def main(sizes: list[int]) -> None:
    """Print a line for each size."""
    server = provide_postgresql()
    server.start()
    name = f"outboxkit_{secrets.token_hex(6)}"
    url = create_database(server.url, name)
    try:
        migrate(url)
        engine = create_engine(url)
        for rows in sizes:
            print(rows, measured(engine, url, rows), flush=True)
        engine.dispose()
    finally:
        drop_database(server.url, name)
        server.close()


if __name__ == "__main__":
    options = argparse.ArgumentParser(prog="python -m tests.benchmarks.blocks", description=__doc__)
    options.add_argument("rows", nargs="*", type=int, default=[10_000, 100_000, 1_000_000], help="of each table")
    main(options.parse_args().rows)
