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


def keep(engine: Engine, *days: int) -> None:
    row = {"message_id": "m", "type": "T", "payload": b"", "headers": b"{}", "content_type": "application/json"}
    now = datetime.now(UTC)
    with engine.begin() as connection:
        for day in days:
            moment = now - timedelta(days=day)
            connection.execute(insert(tables.published).values(**row, published_at=moment, position=day))


def test_kept_messages_are_forgotten_when_they_are_old_enough(run: Run, engine: Engine, database_url: str):
    keep(engine, 1, 8, 9)
    ended = run("prune", "--database-url", database_url, "--keep-published", "7d")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        "inbox: 0 rows forgotten",
        "published: 2 rows forgotten that were in no day's partition",
    ]
    assert [row["position"] for row in rows(database_url, tables.published)] == [1]


def test_without_a_retention_it_says_that_it_keeps_them(run: Run, engine: Engine, database_url: str):
    keep(engine, 900)
    ended = run("prune", "--database-url", database_url)
    assert ended.code == 0
    assert ended.out.splitlines()[1:] == [
        "published: left alone; OUTBOXKIT_KEEP_PUBLISHED is not set, and messages are kept"
    ]
    assert len(rows(database_url, tables.published)) == 1
