"""Messages that wait for a time, made due or cancelled by `outboxkit waiting`."""

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta

import pytest
from sqlalchemy import Engine, delete, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import statements, tables
from outboxkit.operators import sql
from outboxkit.operators.sql.waiting import WaitingSelection
from outboxkit.operators.waiting import PAGE, ChangedMessages, WaitingChange, change_waiting, plan_change
from outboxkit.tables import PARKED
from tests.support.ledger_requests import waiting
from tests.support.polling import eventually
from tests.unit.cli.conftest import Run
from tests.unit.cli.status.rows import NOW, add_rows

FAR = NOW + timedelta(days=400)


def fill(engine: Engine) -> None:
    with engine.begin() as connection:
        for number in range(3):
            add_rows(connection, message_id=f"far-{number}", type="Reminder", due_at=FAR, created_at=FAR)
        add_rows(connection, message_id="soon", type="Reminder", due_at=NOW + timedelta(hours=2))
        add_rows(connection, message_id="held", key="a", held=True, attempts=3, last_error="no route", due_at=FAR)
        add_rows(connection, message_id="parked", key="b", held=True, due_at=PARKED)
        add_rows(connection, message_id="ready")


def due(engine: Engine) -> dict[str, bool]:
    with engine.connect() as connection:
        rows = select(tables.outbox.c.message_id, tables.outbox.c.due_at <= func.now())
        return {name: bool(is_due) for name, is_due in connection.execute(rows)}


def test_what_is_due_too_late_is_listed_made_due_and_audited(pg_engine: Engine, postgresql_url: str, run: Run):
    fill(pg_engine)
    listed = run("waiting", "list", "--due-after", "90d", "--json", "--database-url", postgresql_url)
    assert [row["message_id"] for row in json.loads(listed.out)["waiting"]] == ["far-0", "far-1", "far-2", "held"]
    assert "held, attempt 3 failed: no route" in run("waiting", "list", "--database-url", postgresql_url).out
    noted = run("status", "--database-url", postgresql_url).out
    assert "outboxkit waiting due-now --due-after 90d" in noted
    change = ("waiting", "due-now", "--type", "Reminder", "--due-after", "90d", "--database-url", postgresql_url)
    assert run(*change, "--dry-run").out.startswith("3 messages to be made due:\n  3 Reminder to default, due ")
    assert not any(due(pg_engine).values())
    refused = run(*change)
    assert (refused.code, "add --yes" in refused.err) == (2, True)
    done = run(*change, "--yes", "--by", "ada")
    assert (done.code, done.out.splitlines()[-1]) == (0, "made due 3")
    assert {name for name, is_due in due(pg_engine).items() if is_due} == {"far-0", "far-1", "far-2"}
    audited = json.loads(run("audit", "list", "--json", "--database-url", postgresql_url).out)
    assert '"waiting due-now"' in json.dumps(audited)
    assert "Reminder" in json.dumps(audited)


def test_only_what_waits_is_cancelled_and_one_choice_is_needed(pg_engine: Engine, postgresql_url: str, run: Run):
    fill(pg_engine)
    on = ("--database-url", postgresql_url)
    assert run("waiting", "cancel", "--yes", *on).code == 2
    misspelt = run("waiting", "cancel", "soon", "son", "--yes", *on)
    assert (misspelt.code, "1 of 2 ids are of messages that wait" in misspelt.err) == (2, True)
    assert run("waiting", "cancel", "--all", "--type", "Reminder", "--yes", *on).code == 2
    refused = run("waiting", "cancel", "parked", "ready", "--yes", *on)
    assert (refused.code, "0 of 2 ids are of messages that wait" in refused.err) == (2, True)
    assert run("waiting", "cancel", "soon", "far-1", "--yes", *on).out.splitlines()[-1] == "cancelled 2"
    assert run("waiting", "cancel", "--all", "--yes", *on).out.splitlines()[-1] == "cancelled 3"
    assert set(due(pg_engine)) == {"parked", "ready"}


@pytest.mark.parametrize("selection", [WaitingSelection(), WaitingSelection(message_ids=("far-1",))])
def test_a_list_reads_an_index_however_many_rows_are_ready(pg_engine: Engine, selection: WaitingSelection):
    with pg_engine.begin() as connection:
        add_rows(connection, 5000)
        add_rows(connection, 50, due_at=FAR)
        connection.execute(text("ANALYZE outboxkit_outbox"))
        connection.execute(statements.status.forbid_sorting())
        plain = sql.waiting.next_due(selection).params(limit=50)
        plain_sql = str(plain.compile(connection.engine, compile_kwargs={"literal_binds": True}))
        plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {plain_sql}".replace("%", "%%")).scalars())
    assert "outboxkit_outbox_due" in plan or "outboxkit_outbox_delayed" in plan
    assert "Seq Scan" not in plan


async def test_what_a_relay_takes_meanwhile_ends_no_cancel(pg_engine: Engine, async_pg_engine: AsyncEngine):
    """It holds some rows of the first page, then they are published: the others are cancelled all the same."""
    many = 2 * PAGE
    with pg_engine.begin() as connection:
        for number in range(many):
            add_rows(connection, message_id=f"late-{number}", type="Reminder", due_at=FAR)
    chosen = WaitingSelection(type="Reminder")
    planned, done = plan(pg_engine, chosen), ChangedMessages()
    with pg_engine.connect() as relay:
        first = select(tables.outbox.c.position).order_by(tables.outbox.c.position).limit(20)
        positions = relay.execute(first.with_for_update()).scalars().all()
        cancelled = asyncio.create_task(
            change_waiting(async_pg_engine, "cancel", chosen, planned, asyncio.Event(), done, by="ada")
        )
        await asyncio.to_thread(eventually, lambda: waiting(pg_engine))
        relay.execute(delete(tables.outbox).where(tables.outbox.c.position.in_(positions)))
        relay.commit()
    await cancelled
    assert (done.count, done.complete) == (many - len(positions), True)
    assert due(pg_engine) == {}


async def test_a_row_that_is_parked_meanwhile_is_not_cancelled(pg_engine: Engine, async_pg_engine: AsyncEngine):
    with pg_engine.begin() as connection:
        add_rows(connection, message_id="late", type="Reminder", key="a", due_at=FAR)
    chosen = WaitingSelection(type="Reminder")
    planned, done = plan(pg_engine, chosen), ChangedMessages()
    with pg_engine.connect() as relay:
        relay.execute(update(tables.outbox).values(due_at=PARKED, held=True))
        cancelled = asyncio.create_task(
            change_waiting(async_pg_engine, "cancel", chosen, planned, asyncio.Event(), done, by="ada")
        )
        await asyncio.to_thread(eventually, lambda: waiting(pg_engine))
        relay.commit()
    await cancelled
    assert done.count == 0
    assert due(pg_engine) == {"late": False}


@pytest.mark.parametrize("change", ["cancel", "due-now"])
async def test_what_waits_only_after_the_plan_is_left_alone(
    engine: Engine, async_engine: AsyncEngine, change: WaitingChange
):
    """A publish that fails, and a dead letter that is replayed, both of lower positions."""
    with engine.begin() as connection:
        for name, due_at in (("ready", None), ("parked", PARKED), ("late", FAR)):
            add_rows(connection, message_id=name, type="Reminder", due_at=due_at, held=due_at == PARKED)
    chosen, done = WaitingSelection(type="Reminder"), ChangedMessages()
    planned = plan(engine, chosen)
    with engine.begin() as connection:
        connection.execute(update(tables.outbox).values(due_at=FAR, held=True))
    await change_waiting(async_engine, change, chosen, planned, asyncio.Event(), done, by="ada")
    assert (done.count, done.complete) == (1, True)
    with engine.connect() as connection:
        left = connection.execute(select(tables.outbox.c.message_id).where(tables.outbox.c.due_at == FAR))
        assert set(left.scalars()) == {"ready", "parked"}


def plan(engine: Engine, selection: WaitingSelection) -> Sequence[int]:
    with engine.connect() as connection:
        return plan_change(connection, selection, "due-now").positions
