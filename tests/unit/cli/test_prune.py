"""`outboxkit prune`."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, insert

from outboxkit import tables
from tests.unit.cli.conftest import Run
from tests.unit.shop import rows


def test_it_forgets_what_is_old_enough_and_says_how_much(run: Run, engine: Engine, database_url: str):
    for days in (1, 20, 40):
        row = {"handler": "H", "message_id": f"{days}d", "type": "T"}
        with engine.begin() as connection:
            connection.execute(
                insert(tables.inbox).values(**row, processed_at=datetime.now(UTC) - timedelta(days=days))
            )
    for arguments, said, left in (
        (("--inbox-retention", "30d"), "inbox: 1 rows forgotten\n", ["1d", "20d"]),
        ((), "inbox: 1 rows forgotten\n", ["1d"]),
        ((), "inbox: 0 rows forgotten\n", ["1d"]),
    ):
        ended = run("prune", "--database-url", database_url, *arguments)
        assert (ended.code, ended.out, ended.err) == (0, said, "")
        assert [row["message_id"] for row in rows(database_url, tables.inbox)] == left
