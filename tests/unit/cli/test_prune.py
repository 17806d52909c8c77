"""`outboxkit prune`."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, insert

from outboxkit import tables
from tests.integration.operators.dead_rows import buried, fill
from tests.integration.operators.kept import keep, row
from tests.unit.cli.conftest import Run
from tests.unit.shop import rows


def test_it_forgets_what_is_old_enough_and_says_how_much(run: Run, engine: Engine, database_url: str):
    for days in (1, 20, 40):
        handled = {"handler": "H", "message_id": f"{days}d", "type": "T"}
        with engine.begin() as connection:
            connection.execute(
                insert(tables.inbox), handled | {"processed_at": datetime.now(UTC) - timedelta(days=days)}
            )
    for retention, said, left in (
        ("30d", "inbox: 1 row deleted\n", ["1d", "20d"]),
        ("14d", "inbox: 1 row deleted\n", ["1d"]),
        ("14d", "inbox: 0 rows deleted\n", ["1d"]),
    ):
        ended = run("prune", "--database-url", database_url, inbox_retention=retention)
        assert (ended.code, ended.out, ended.err) == (0, said, "")
        assert [one["message_id"] for one in rows(database_url, tables.inbox)] == left


def test_kept_messages_are_forgotten_when_they_are_old_enough(run: Run, engine: Engine, database_url: str):
    keep(engine, *(row(days, datetime.now(UTC) - timedelta(days=days)) for days in (1, 8, 9)))
    ended = run("prune", "--database-url", database_url, published_retention="7d")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        "inbox: 0 rows deleted",
        "published: 2 rows deleted that were in no day's partition",
    ]
    assert [one["position"] for one in rows(database_url, tables.published)] == [1]


def test_old_dead_letters_go_and_it_says_how_many_were_open(run: Run, engine: Engine, database_url: str):
    ages = [(1, False, None), (100, False, None), (100, False, "replayed"), (100, True, None)]
    now = datetime.now(UTC)
    fill(
        engine,
        [
            buried(f"m-{number}", dead_at=now - timedelta(days=days), parked=parked, resolution=how)
            for number, (days, parked, how) in enumerate(ages)
        ],
    )
    ended = run("prune", "--database-url", database_url, dead_retention="90d")
    assert (ended.code, ended.out.splitlines()[1:]) == (0, ["dead letters: 2 rows deleted, 1 of them open"])
    assert [one["parked"] for one in rows(database_url, tables.dead_letter)] == [False, True]
