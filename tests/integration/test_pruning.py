"""`outboxkit prune` on PostgreSQL: one at a time, safe to kill, days of the inbox dropped."""

from datetime import timedelta
from pathlib import Path

from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import ids, statements
from outboxkit.partitions import INBOX
from outboxkit.retention import Periods, Retention
from tests.acceptance.worker_process import COMMAND, WorkerProcess, run_to_end
from tests.integration.kept import DAY, NOW, days
from tests.polling import eventually

FILL = """
INSERT INTO outboxkit_inbox (handler, message_id, type, processed_at)
SELECT 'H', 'order-' || n, 'T', now() - n % 2 * interval '30 days' FROM generate_series(1, :rows) n
"""
ROWS = 60_000


def remembered(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM outboxkit_inbox")).scalar_one())


def test_a_pruner_that_is_killed_in_the_middle_is_run_again(pg_engine: Engine, postgresql_url: str, tmp_path: Path):
    with pg_engine.begin() as connection:
        connection.execute(text(FILL), {"rows": ROWS})
    pruner = WorkerProcess([COMMAND, "prune", "--database-url", postgresql_url], {}, tmp_path / "prune.log")
    eventually(lambda: remembered(pg_engine), lambda count: count < ROWS)
    pruner.kill()
    left = remembered(pg_engine)
    assert ROWS // 2 < left < ROWS, "it was killed in the middle"

    def alone() -> bool:
        return "nothing done" not in run_to_end([COMMAND, "prune", "--database-url", postgresql_url], {}).stdout

    eventually(alone)  # the server has to notice first that the other one is gone
    with pg_engine.connect() as connection:
        old = text("SELECT count(*) FROM outboxkit_inbox WHERE processed_at < now() - interval '20 days'")
        assert connection.execute(old).scalar_one() == 0
    assert remembered(pg_engine) == ROWS // 2


def test_a_second_pruner_does_nothing_and_says_so(pg_engine: Engine, postgresql_url: str):
    with pg_engine.begin() as connection:
        connection.execute(text(FILL), {"rows": 10})
    command = [COMMAND, "prune", "--database-url", postgresql_url]
    with pg_engine.connect() as first:
        assert first.execute(statements.prune.be_the_one()).scalar_one() is True
        first.commit()
        ended = run_to_end(command, {})
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout == "nothing done: somebody else prunes this database at the moment\n"
        assert (remembered(pg_engine), days(pg_engine, INBOX)) == (10, [])
        first.execute(statements.prune.let_others())
        first.commit()
    assert "inbox: 5 rows forgotten" in run_to_end(command, {}).stdout
    assert "nothing done" not in run_to_end(command, {}).stdout


async def test_a_round_leaves_the_inbox_in_days(async_pg_engine: AsyncEngine, pg_engine: Engine):
    """Rows that came before there was a partition move to their day; days that are over go, whole."""
    moments = [NOW - 8 * DAY, NOW - 3 * DAY, NOW, NOW + 20 * DAY]
    with pg_engine.begin() as connection:
        statement = text(
            "INSERT INTO outboxkit_inbox (handler, message_id, type, processed_at) VALUES ('H',:id,'T',:at)"
        )
        connection.execute(statement, [{"id": ids.new(at=at), "at": at} for at in moments])

    def retention(after: timedelta) -> Retention:
        return Retention(async_pg_engine, Periods(inbox=7 * DAY), clock=lambda: NOW + after)

    first = await retention(timedelta(0)).prune()
    assert (first.inbox, first.inbox_days_dropped, first.problems) == (1, [], [])
    assert (NOW - 3 * DAY).date() in days(pg_engine, INBOX)
    assert (NOW + 20 * DAY).date() in days(pg_engine, INBOX)
    second = await retention(6 * DAY).prune()
    assert (second.inbox, second.inbox_days_dropped) == (0, [(NOW - 3 * DAY).date()])
    assert remembered(pg_engine) == 2


async def test_a_day_that_is_in_use_is_left_and_said(async_pg_engine: AsyncEngine, pg_engine: Engine):
    old = ids.new(at=NOW)
    await Retention(async_pg_engine, Periods(inbox=7 * DAY), clock=lambda: NOW).prune()
    with pg_engine.connect() as consumer:
        consumer.execute(
            text("INSERT INTO outboxkit_inbox (handler, message_id, type) VALUES ('H', :id, 'T')"), {"id": old}
        )
        done = await Retention(async_pg_engine, Periods(inbox=7 * DAY), clock=lambda: NOW + 9 * DAY).prune()
        assert (done.inbox_days_dropped, done.busy) == ([], True)
        assert any("lock timeout" in problem for problem in done.problems)
