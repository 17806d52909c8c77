"""`outboxkit status` on PostgreSQL: its plans and counts for large tables."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from outboxkit import statements, tables
from outboxkit.errors.figures import COUNTED, Count, total
from outboxkit.operators import sql, status
from outboxkit.operators.status import LIMIT
from outboxkit.runtime.outage import utc_now
from tests.integration.operators.plans import STATISTICS, assert_bounded, explain, filled, indexes_in
from tests.integration.operators.test_status import DEFAULT, OUTBOX
from tests.servers import Server
from tests.support.night import by_night

ROWS = by_night(100_000, else_=25_000)
DEAD = """
    INSERT INTO outboxkit_dead_letter (side, type, key, payload, headers, content_type, reason, attempts, parked,
                                       destination)
    SELECT 'outbox', 'T', 'k' || n, '', '{}', 'x', 'refused', 10, true, :destination FROM generate_series(1, :rows) n
"""
INBOX = """
    INSERT INTO outboxkit_inbox (handler, message_id, type)
    SELECT 'H' || n % 2, 'm' || n, 'T' FROM generate_series(1, :rows) n
"""
RESOLVED = """
    INSERT INTO outboxkit_dead_letter (side, type, payload, headers, content_type, reason, attempts, resolution)
    SELECT 'outbox', 'T', '', '{}', 'x', 'refused', 10, 'discarded' FROM generate_series(1, :rows) n
"""
PUBLISHED = """
    INSERT INTO outboxkit_published (published_at, position, message_id, type, payload, headers, content_type)
    SELECT now(), n, 'm' || n, 'T', '', '{}', 'x' FROM generate_series(1, :rows) n
"""
REQUESTS = """
    INSERT INTO outboxkit_idempotency (scope, principal, key, fingerprint, state, token, created_at, expires_at)
    SELECT 's', 'p', n, '', 'done', 't', now(), now() + interval '1 day' FROM generate_series(1, :rows) n
"""
EFFECTS = """
    INSERT INTO outboxkit_effect (key, state, token, started_at, used_at, locked_until)
    SELECT n, CASE WHEN n % 1000 = 0 THEN 'started' ELSE 'done' END, 't', now(), now(), now() - interval '1 hour'
    FROM generate_series(1, :rows) n
"""


@pytest.fixture(scope="module", params=STATISTICS)
def large(request: pytest.FixtureRequest, postgresql: Server, template: str) -> Iterator[Engine]:
    """Many ready rows, 40 delayed, 30 held and 20 parked ones of `default`; many of everything else.

    Of two other destinations one has as many rows again, most of them parked, and the last by its name has three.
    """
    soon = utc_now() + timedelta(hours=1)
    waiting = (
        (ROWS, None, False, "default"),
        (40, soon, False, "default"),
        (30, soon, True, "default"),
        (20, tables.PARKED, True, "default"),
        (ROWS // 2, None, False, "mail"),
        (ROWS // 2, tables.PARKED, True, "mail"),
        (5, soon, True, "mail"),
        (3, None, False, "payments"),
    )
    names = ("rows", "due", "held", "destination")
    fill = [(OUTBOX, dict(zip(names, row, strict=True))) for row in waiting]
    fill += [(DEAD, {"rows": 20} | DEFAULT), (DEAD, {"rows": 100, "destination": "mail"})]
    fill += [(statement, {"rows": ROWS}) for statement in (RESOLVED, INBOX, PUBLISHED, REQUESTS, EFFECTS)]
    quiet = ("outbox", "inbox_default", "dead_letter", "published_default", "idempotency", "effect")
    with filled(postgresql, template, request.param, quiet, *fill) as engine:
        yield engine


MORE = Count(COUNTED + 1, at_least=True)


def test_rows_are_counted_up_to_the_limit(large: Engine) -> None:
    with large.connect() as connection:
        report = status.read_figures(connection, utc_now())
    ours, mail, payments = (report.outbox.by_destination[name] for name in ("default", "mail", "payments"))
    assert (ours.ready, ours.delayed, ours.held, ours.parked) == (MORE, Count(40), Count(30), Count(20))
    assert (mail.ready, mail.delayed, mail.held, mail.parked) == (MORE, Count(0), Count(5), MORE)
    assert (payments.pending, payments.ready) == (Count(3), Count(3))
    assert report.outbox.pending == report.outbox.ready + report.outbox.parked + Count(75)
    assert report.outbox.parked_keys == Count(100)
    assert report.outbox.held == Count(35)
    assert sorted(report.outbox.by_type) == ["T0", "T1", "T2", "T3"]
    assert total(of_type.pending for of_type in report.outbox.by_type.values()) == MORE
    assert report.inbox.by_handler == {"H0": MORE, "H1": MORE}
    assert report.history.published == MORE
    assert report.dead_letters.open == Count(120)
    assert report.dead_letters.resolved == Count(COUNTED + 1 - 120, at_least=True)
    assert report.history.requests == MORE
    assert report.history.unknown_effects == Count(ROWS // 1000)


def oldest_unplaced() -> Any:
    return sql.doctor.oldest_unplaced("postgresql")


oldest_unplaced.__doc__ = sql.doctor.oldest_unplaced.__doc__
READS: tuple[Callable[[], Any], ...] = (
    statements.status.destinations,
    statements.status.ready,
    statements.status.waiting,
    statements.status.count_waiting,
    statements.status.parked,
    statements.status.parked_keys,
    statements.status.count_parked_keys,
    statements.status.oldest_by_type,
    statements.status.dead_open,
    statements.status.dead_resolved,
    statements.status.handlers,
    statements.status.count_processed,
    statements.status.count_published,
    statements.status.oldest_published,
    statements.status.count_remembered,
    statements.status.unknown_effects,
    sql.doctor.oldest_by_route,
    statements.status.failing,
    sql.doctor.oldest_dead,
    sql.doctor.first_dead_letter,
    sql.doctor.oldest_effect,
    sql.doctor.oldest_request,
    oldest_unplaced,
)


@pytest.mark.parametrize("destination", ["default", "mail", "payments"])
def test_no_table_is_read_from_end_to_end(large: Engine, destination: str) -> None:
    given = LIMIT | {"destination": destination, "most": 100, "now": utc_now(), "top": 10, "handler": "H1"}
    for made in READS:
        name, doc = made.__name__, made.__doc__ or ""
        nodes = assert_bounded(large, made(), given, most=COUNTED + 1, doc=doc)
        assert {word.strip(".,:") for word in doc.split() if word.startswith("outboxkit_")} <= indexes_in(nodes), name
        if name == statements.status.count_waiting.__name__:  # the gauges read no rows, which are dear to look up
            assert {node["Node Type"] for node in nodes if "Scan" in node["Node Type"]} == {"Index Only Scan"}


@pytest.mark.parametrize("make", [statements.status.destinations, statements.notifier.something_to_do])
def test_statistics_that_know_no_delayed_rows_mislead_nobody(pg_engine: Engine, make: Callable[[], Any]) -> None:
    with pg_engine.begin() as connection:
        connection.execute(text("ALTER TABLE outboxkit_outbox SET (autovacuum_enabled = false)"))
        connection.execute(text(OUTBOX), {"rows": 5000, "due": None, "held": False} | DEFAULT)
        connection.execute(text("ANALYZE outboxkit_outbox"))
        due = {"due": utc_now() + timedelta(hours=1)}
        connection.execute(text("UPDATE outboxkit_outbox SET due_at = :due WHERE position % 2 = 0"), due)
    with pg_engine.connect() as connection:
        nodes = explain(connection, make(), LIMIT | DEFAULT | {"most": 100, "now": utc_now(), "floor": 0})
    scans = [node for node in nodes if node.get("Relation Name") == "outboxkit_outbox"]
    assert {scan["Index Name"] for scan in scans} == {"outboxkit_outbox_ready", "outboxkit_outbox_due"}
    assert max(scan["Actual Rows"] for scan in scans) == 1
