"""`outboxkit audit list`, and the rows that the commands of operators write."""

import json
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, update

from outboxkit import tables
from tests.integration.operators.dead_rows import dead, fill
from tests.unit.cli.conftest import Run
from tests.unit.shop import rows


def test_every_action_of_an_operator_is_a_row(run: Run, at: str, engine: Engine):
    fill(engine, [dead(1), dead(2), dead(3)])
    assert run("dead", "discard", "3", "--yes").code == 0
    assert run("dead", "replay", "--yes", "--type", "OrderConfirmed", "--dry-run").code == 0
    assert run("dead", "replay", "--yes", "--type", "OrderConfirmed", "--yes").code == 0
    assert run("prune", dead_retention="30d").code == 0
    assert run("pause", "relay", "--why", "a move").code == 0
    said = json.loads(run("audit", "list", "--json").out)
    assert [(one["action"], one["operator"], one["count"], one["result"]) for one in reversed(said)] == [
        ("dead discard", "ada", 1, "done"),
        ("dead replay", "ada", 2, "done"),
        ("prune", "ada", 0, "done"),
        ("pause", "ada", 1, "done"),
    ]
    filters = [one["filter"] for one in reversed(said)]
    assert filters[:2] == [{"numbers": [3]}, {"type": "OrderConfirmed"}]
    assert filters[2]["dead_retention"] == "30 d 0 h"
    moments = [[datetime.fromisoformat(one[name]) for name in ("started_at", "ended_at")] for one in said]
    assert all(started <= ended for started, ended in moments)
    assert [row["resolved_by"] for row in rows(at, tables.dead_letter)] == ["ada"] * 3


def test_what_was_refused_is_in_the_result(run: Run, at: str, engine: Engine):
    fill(engine, [dead(1), dead(2)])
    with engine.begin() as connection:
        connection.execute(update(tables.dead_letter).where(tables.dead_letter.c.id == 1).values(position=None))
    assert run("dead", "replay", "--yes", "--all", "--yes").code == 3
    (one,) = json.loads(run("audit", "list", "--json").out)
    assert (one["count"], one["result"]) == (1, "done, 1 refused")


def test_the_newest_since_a_time(run: Run, at: str, engine: Engine):
    for queue in "abc":
        run("pause", queue, "--why", "a move")
    with engine.begin() as connection:
        old = tables.audit.c.id == 1
        connection.execute(update(tables.audit).where(old).values(started_at=datetime.now(UTC) - timedelta(days=8)))
    assert len(json.loads(run("audit", "list", "--since", "7d", "--json").out)) == 2
    assert len(json.loads(run("audit", "list", "--limit", "1", "--json").out)) == 1
    assert len(json.loads(run("audit", "list", "--since", "2020-01-01T00:00Z", "--json").out)) == 3
    assert json.loads(run("audit", "list", "--since", "2999-01-01", "--json").out) == []
    ended = run("audit", "list", "--since", "yesterday")
    assert ended.code == 2
    assert "--since is 'yesterday': " in ended.err
    with engine.begin() as connection:
        connection.execute(tables.audit.delete())
    assert run("audit", "list", "--since", "7d").out == "no action since 7d\n"
