"""`outboxkit trace` on large tables: by the indexes that the statements name, and a window reads its rows alone."""

import inspect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine

from outboxkit import statements
from outboxkit.message import LAST_MOMENT
from outboxkit.operators.sql import trace
from tests.integration.operators.plans import STATISTICS, assert_bounded, filled, indexes_in
from tests.servers import Server

ROWS, WINDOW = 30_000, 500
NOW = datetime.now(UTC)
FILL = (
    """
    INSERT INTO outboxkit_outbox (message_id, type, key, payload, headers, content_type, due_at, held, dedup)
    SELECT 'm' || n, 'T', 'k' || n % 1000, '', '{}', 'x', CASE WHEN n % 3 = 0 THEN now() + interval '1 hour' END,
           n % 6 = 0, n % 100 = 1
    FROM generate_series(1, :rows) n
    """,
    """
    INSERT INTO outboxkit_dead_letter (side, message_id, type, key, payload, headers, content_type, reason, attempts,
                                       position, parked)
    SELECT 'outbox', 'm' || n, 'T', 'k' || n % 1000, '', '{}', 'x', 'rejected', 10, n, n % 10 = 0
    FROM generate_series(1, :rows) n
    """,
    """
    INSERT INTO outboxkit_inbox (handler, message_id, type)
    SELECT 'H' || n % 3, 'm' || n, 'T' FROM generate_series(1, :rows) n
    """,
    "INSERT INTO outboxkit_attempt (queue, message_id) SELECT 'q' || n % 3, 'm' || n FROM generate_series(1, :rows) n",
    """
    INSERT INTO outboxkit_published (published_at, position, message_id, type, payload, headers, content_type)
    SELECT now() - n * interval '1 second', n, 'm' || n, 'T', '', '{}', 'x' FROM generate_series(1, :rows) n
    """,
)
IDS = {"ids": ["m60", "m61", "m101"], "limit": 100}
OF_KEY = {"key": "k60", "limit": 100}
PLACE = {"key": "k60", "destination": "default", "position": 20_000}
MATCH: dict[str, Any] = {"message_id": "m60", "causation_id": "m60", "correlation_id": None, "key": None}
MATCH |= {"limit": 501, "window": WINDOW}
PG = "postgresql"
READS: dict[str, tuple[Any, dict[str, Any]]] = {
    "delayed": (trace.delayed(PG), IDS),
    "deduplicated": (trace.deduplicated(PG), IDS),
    "ready_of_key": (trace.ready_of_key(PG), OF_KEY),
    "held_of_key": (trace.held_of_key(PG), OF_KEY),
    "dead": (trace.dead(PG), IDS),
    "parked_of_key": (trace.parked_of_key(), OF_KEY),
    "handled": (trace.handled(PG), IDS | {"handlers": ["H0", "H1", "H2"]}),
    "crashes": (trace.crashes(PG), IDS | {"queues": ["q0", "q1", "q2"]}),
    "first_ready_before": (trace.first_ready_before(), PLACE),
    "first_held_before": (trace.first_held_before(), PLACE),
    "parking": (trace.parking(), PLACE),
    "count_ahead": (trace.count_ahead(), PLACE | {"limit": WINDOW}),
    "first_added": (trace.first_added(), {"position": 10_000}),
    "ends": (trace.ends(), {}),
    "row_locks": (trace.row_locks(), {"positions": [1, 2, 3]}),
    "outbox_window": (trace.outbox_window(PG), MATCH | {"position": 1000}),
    "dead_window": (trace.dead_window(PG), MATCH),
}
for _newest_first, _at in ((True, LAST_MOMENT), (False, NOW - timedelta(hours=4))):
    READS[f"published_window, newest first: {_newest_first}"] = (
        trace.published_window(PG, newest_first=_newest_first),
        MATCH | {"at": _at},
    )


@pytest.fixture(scope="module", params=STATISTICS)
def large(request: pytest.FixtureRequest, postgresql: Server, template: str) -> Iterator[Engine]:
    quiet = ("outbox", "inbox_default", "dead_letter", "published_default", "attempt")
    with filled(postgresql, template, request.param, quiet, *((each, {"rows": ROWS}) for each in FILL)) as engine:
        yield engine


@pytest.mark.parametrize("name", READS)
def test_a_statement_reads_a_bounded_part_of_an_index(large: Engine, name: str):
    doc = inspect.getdoc(getattr(trace, name.partition(",")[0])) or ""
    assert_bounded(large, *READS[name], most=WINDOW + 1, doc=doc)


def test_queues_are_found_by_one_look_for_each(large: Engine):
    statement = statements.status.queues_with_crashes
    nodes = assert_bounded(large, statement(), {"most": 100}, most=4, doc=statement.__doc__ or "")
    assert indexes_in(nodes) == {"outboxkit_attempt_pkey"}
