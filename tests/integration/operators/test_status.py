"""`outboxkit status` on PostgreSQL: one snapshot, and what the server knows."""

import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, event, text

from outboxkit.operators.findings import LIMITS
from outboxkit.operators.status import read_figures, read_status
from outboxkit.runtime import workers
from outboxkit.runtime.outage import utc_now
from outboxkit.statements.dialects import snapshot_options
from outboxkit.statements.handlers import NEVER
from tests.integration.operators.doctoring import examining
from tests.support.pages import libpq
from tests.unit.cli.conftest import Run

OUTBOX = """
    INSERT INTO outboxkit_outbox (message_id, type, key, payload, headers, content_type, created_at, due_at, held,
                                  destination)
    SELECT 'm' || n, 'T' || n % 4, 'k' || n % 100, convert_to(repeat('x', 200), 'UTF8'), '{}', 'x', now(), :due, :held,
           :destination
    FROM generate_series(1, :rows) n
"""
DEFAULT = {"destination": "default"}
HERE = DEFAULT | {"due": None, "held": False}


def test_a_row_that_is_moved_meanwhile_is_counted_once(pg_engine: Engine, postgresql_url: str) -> None:
    with pg_engine.begin() as connection:
        connection.execute(text(OUTBOX), {"rows": 1} | HERE)
    mover = psycopg.connect(libpq(postgresql_url), autocommit=True)
    executed = []

    def move(*arguments: Any) -> None:
        if "due_at IS NULL" in arguments[2]:
            executed.append(mover.execute("UPDATE outboxkit_outbox SET held = true, due_at = '9999-12-31 00:00+00'"))

    event.listen(Engine, "after_cursor_execute", move)
    try:
        with pg_engine.connect().execution_options(**snapshot_options("postgresql")) as connection:
            found = read_figures(connection, utc_now())
    finally:
        event.remove(Engine, "after_cursor_execute", move)
        mover.close()
    assert executed
    assert (found.outbox.ready.value, found.outbox.parked.value, found.outbox.pending.value) == (1, 0, 1)


WORKER = """
    INSERT INTO outboxkit_worker (id, kind, name, release, host, pid, exchange, started_at, seen_at, skew, sessions,
                                  places, taken, rate, queues)
    VALUES (:id, 'relay', 'default', '0.1', 'shop-1', 7, :exchange, now() - interval '1 h', now() - :ago, :skew,
            :sessions, 8, 8, 12.5, '{"billing": 32}')
"""
HERE_NOW = {"id": "1", "exchange": "outboxkit", "ago": timedelta(), "skew": 0.0, "sessions": "[]"}


def test_workers_are_those_seen_lately_or_still_connected(
    pg_engine: Engine, postgresql_url: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was killed is gone at once, or soon; one that hangs is not taken for gone, and a finding names it."""
    with psycopg.connect(libpq(postgresql_url), application_name="outboxkit relay") as hung:
        with pg_engine.begin() as connection:
            connection.execute(text(WORKER), HERE_NOW | {"ago": timedelta(minutes=-1)})
            old = HERE_NOW | {"ago": timedelta(0)}  # its session began before that
            connection.execute(text(WORKER), old | {"id": "2", "sessions": f"[{hung.info.backend_pid}]"})
            connection.execute(text(WORKER), old | {"id": "3", "sessions": "[]"})
        monkeypatch.setattr(workers, "GONE_AFTER", timedelta(0))
        found = examining(postgresql_url, read_status, limits=LIMITS)
    assert found.figures is not None
    assert sorted(each.silent_seconds is None for each in found.figures.workers) == [False, True]
    assert {(each.silent_seconds is None, each.rate) for each in found.figures.workers} == {(True, 12.5), (False, None)}
    assert len(found.figures.workers) == 2
    assert found.figures.workers[0].queues == {"billing": 32}
    assert [each.code for each in found.advice if each.code == "worker-silent"] == ["worker-silent"]
    with pg_engine.begin() as connection:  # the session that hung may still be seen for a moment
        connection.execute(text("DELETE FROM outboxkit_worker WHERE id IN ('2', '3')"))
    shown = run("status", "--database-url", postgresql_url).out
    assert "default: pid 7 on shop-1 for 1 h" in shown
    assert "release 0.1, exchange outboxkit, 8 of 8 places taken" in shown
    assert "billing: 32 messages" in shown


def test_the_shards_that_a_process_consumes_are_one_line(pg_engine: Engine, postgresql_url: str, run: Run) -> None:
    consumer = WORKER.replace("'relay', 'default'", "'consumer', 'ledger'")
    with pg_engine.begin() as connection:
        for number in range(3):
            connection.execute(text(consumer), HERE_NOW | {"id": f"{number}"})
        connection.execute(text(consumer.replace("'shop-1'", "'shop-2'")), HERE_NOW | {"id": "other"})
    shown = " ".join(run("status", "--database-url", postgresql_url).out.split())
    one, other = shown.split("ledger: pid 7 on ")[1:]
    assert one.startswith(
        "shop-1 for 1 h 0 min, 3 queues, release 0.1, exchange outboxkit, 24 of 24 places taken, 38 m"
    )
    assert other.startswith("shop-2 for 1 h 0 min, release 0.1, exchange outboxkit, 8 of 8 places taken, 12 messages a")


def test_a_queue_that_nobody_consumes_is_named(pg_engine: Engine, postgresql_url: str, run: Run) -> None:
    register = text("INSERT INTO outboxkit_handler (handler, queue, last_seen) VALUES ('h', :queue, :seen)")
    with pg_engine.begin() as connection:
        for queue, seen in {"billing": utc_now(), "mails": utc_now(), "old": NEVER}.items():
            connection.execute(register, {"queue": queue, "seen": seen})
        connection.execute(text(WORKER.replace("'relay', 'default'", "'consumer', 'mails'")), HERE_NOW)
    assert "no consumer of queue billing\n" in run("status", "--database-url", postgresql_url).out


def test_relays_that_publish_to_different_exchanges_and_a_wrong_clock_are_named(
    pg_engine: Engine, postgresql_url: str
) -> None:
    with pg_engine.begin() as connection:
        connection.execute(text(WORKER), HERE_NOW)
        connection.execute(text(WORKER), HERE_NOW | {"id": "2", "exchange": "outboxkit-staging", "skew": 1200.0})
    found = {each.code: each for each in examining(postgresql_url, read_status, limits=LIMITS).advice}
    assert "exchange outboxkit at - (pid 7 on shop-1) and exchange outboxkit-staging" in found["exchange-differs"].what
    assert "behind that of relay default (pid 7 on shop-1)" in found["clock-skew"].what
    assert found["clock-skew"].severity == "problem"


def test_it_writes_nothing(postgresql_url: str, run: Run) -> None:
    """So that it runs on a server that is read-only after a failover."""
    ended = run("status", "--json", "--database-url", f"{postgresql_url}?options=-cdefault_transaction_read_only%3Don")
    assert json.loads(ended.out)["figures"]
