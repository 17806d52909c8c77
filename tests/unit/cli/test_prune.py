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
    for retention, said, left in (
        ("30d", "inbox: 1 row forgotten\n", ["1d", "20d"]),
        ("14d", "inbox: 1 row forgotten\n", ["1d"]),
        ("14d", "inbox: 0 rows forgotten\n", ["1d"]),
    ):
        ended = run("prune", "--database-url", database_url, inbox_retention=retention)
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
    ended = run("prune", "--database-url", database_url, published_retention="7d")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        "inbox: 0 rows forgotten",
        "published: 2 rows forgotten that were in no day's partition",
    ]
    assert [row["position"] for row in rows(database_url, tables.published)] == [1]


def test_old_dead_letters_go_and_it_says_how_many_were_open(run: Run, engine: Engine, database_url: str):
    known = {"side": "inbox", "payload": b"", "headers": b"{}", "content_type": "application/json", "reason": "failed"}
    letters = [(1, False, None), (100, False, None), (100, False, "replayed"), (100, True, None)]
    with engine.begin() as connection:
        for days, parked, resolution in letters:
            dead_at = datetime.now(UTC) - timedelta(days=days)
            row = known | {"attempts": days, "dead_at": dead_at, "parked": parked, "resolution": resolution}
            connection.execute(insert(tables.dead_letter).values(row))
    ended = run("prune", "--database-url", database_url, dead_retention="90d")
    assert (ended.code, ended.out.splitlines()[1:]) == (0, ["dead letters: 2 rows forgotten, 1 of them open"])
    assert [row["parked"] for row in rows(database_url, tables.dead_letter)] == [False, True]
