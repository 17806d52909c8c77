"""`outboxkit status` on PostgreSQL: its plans and counts for large tables."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, text

from outboxkit import statements, tables
from outboxkit.errors.figures import COUNTED, Count, total
from outboxkit.operators import sql, status
from outboxkit.operators.status import LIMIT
from outboxkit.runtime.outage import utc_now
from tests.integration.operators.test_status import DEFAULT, OUTBOX
from tests.servers import Server, create_database, drop_database
from tests.support.night import by_night

ROWS = by_night(100_000, else_=25_000)
STATISTICS = [pytest.param("without statistics", marks=pytest.mark.night), "with statistics"]
"""What the planner knows of the tables that operators' tools read."""
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


@contextmanager
def database(server: Server, template: str, *quiet: str) -> Iterator[Engine]:
    """A database for a module, filled by the caller; tables that are `quiet` have no autovacuum."""
    name = f"outboxkit_{secrets.token_hex(6)}"
    engine = create_engine(create_database(server.url, name, template=template))
    with engine.begin() as connection:
        for table in quiet:
            connection.execute(text(f"ALTER TABLE outboxkit_{table} SET (autovacuum_enabled = false)"))
    yield engine
    engine.dispose()
    drop_database(server.url, name)


def analyze(engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))


@pytest.fixture(scope="module", params=STATISTICS)
def large(request: pytest.FixtureRequest, postgresql: Server, template: str) -> Iterator[Engine]:
    """Many ready rows, 40 delayed, 30 held and 20 parked ones of `default`; many of everything else.

    Of two other destinations one has as many rows again, most of them parked, and the last by its name has three.
    """
    quiet = ("outbox", "inbox_default", "dead_letter", "published_default", "idempotency", "effect")
    with database(postgresql, template, *quiet) as engine:
        with engine.begin() as connection:
            soon = utc_now() + timedelta(hours=1)
            for rows, due, held, destination in (
                (ROWS, None, False, "default"),
                (40, soon, False, "default"),
                (30, soon, True, "default"),
                (20, tables.PARKED, True, "default"),
                (ROWS // 2, None, False, "mail"),
                (ROWS // 2, tables.PARKED, True, "mail"),
                (5, soon, True, "mail"),
                (3, None, False, "payments"),
            ):
                given = {"rows": rows, "due": due, "held": held, "destination": destination}
                connection.execute(text(OUTBOX), given)
            connection.execute(text(DEAD), {"rows": 20} | DEFAULT)
            connection.execute(text(DEAD), {"rows": 100, "destination": "mail"})
            for statement in (RESOLVED, INBOX, PUBLISHED, REQUESTS, EFFECTS):
                connection.execute(text(statement), {"rows": ROWS})
        if request.param == "with statistics":
            analyze(engine)
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
READS: dict[str, Callable[[], Any]] = {
    function.__name__: function
    for function in (
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
}


@pytest.mark.parametrize("destination", ["default", "mail", "payments"])
def test_no_table_is_read_from_end_to_end(large: Engine, destination: str) -> None:
    with large.connect() as connection:
        status.read_figures(connection, utc_now())
        for name, made in READS.items():
            assert_bounded(list(walk(explain(connection, made(), destination))), name)


def assert_bounded(nodes: list[dict[str, Any]], name: str) -> None:
    """No more rows are read than are counted one by one, by the indexes that the statement names."""
    assert not [node for node in nodes if node["Node Type"] in ("Seq Scan", "Bitmap Heap Scan")], name
    scans = [node for node in nodes if "Scan" in node["Node Type"] and "Relation Name" in node]
    assert scans, name
    for scan in scans:
        read = scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)
        assert read * scan["Actual Loops"] <= COUNTED + 1, name
    used = {node["Index Name"] for node in nodes if "Index Name" in node}
    doc = READS[name].__doc__ or ""
    for index in [word.strip(".,:") for word in doc.split() if word.startswith("outboxkit_")]:
        assert index in used, name
    if name == statements.status.count_waiting.__name__:  # the gauges read no rows, which are dear to look up
        assert {scan["Node Type"] for scan in scans} == {"Index Only Scan"}
    if "Index: the primary key" in " ".join(doc.split()):
        assert all(index.endswith("_pkey") for index in used), name


@pytest.mark.parametrize("make", [statements.status.destinations, statements.notifier.something_to_do])
def test_statistics_that_know_no_delayed_rows_mislead_nobody(pg_engine: Engine, make: Callable[[], Any]) -> None:
    with pg_engine.begin() as connection:
        connection.execute(text("ALTER TABLE outboxkit_outbox SET (autovacuum_enabled = false)"))
        connection.execute(text(OUTBOX), {"rows": 5000, "due": None, "held": False} | DEFAULT)
        connection.execute(text("ANALYZE outboxkit_outbox"))
        due = {"due": utc_now() + timedelta(hours=1)}
        connection.execute(text("UPDATE outboxkit_outbox SET due_at = :due WHERE position % 2 = 0"), due)
    with pg_engine.connect() as connection:
        nodes = list(walk(explain(connection, make())))
    scans = [node for node in nodes if node.get("Relation Name") == "outboxkit_outbox"]
    assert {scan["Index Name"] for scan in scans} == {"outboxkit_outbox_ready", "outboxkit_outbox_due"}
    assert max(scan["Actual Rows"] for scan in scans) == 1


def explain(connection: Connection, statement: Any, destination: str = "default") -> dict[str, Any]:
    made = statement.compile(connection)
    given = {
        "destination": destination,
        "most": 100,
        "now": utc_now(),
        "top": 10,
        "handler": "H1",
        "text": "x",
        "floor": 0,
    }
    values = made.params | LIMIT | given
    given = {name: values[name] for name in made.params}
    query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {made}"
    plan: dict[str, Any] = connection.exec_driver_sql(query, given).scalar_one()[0]["Plan"]
    return plan


def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from walk(child)
