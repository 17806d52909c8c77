"""The console with a million rows of everything and ten million of the inbox: the time and the memory of each page.

`python -m tests.benchmarks --case console` serves it by the command, in a process of its own, and reads each page once
before it is measured. Pages with their filters are `PAGES`.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import httpx
import psycopg

from outboxkit.runtime import process
from outboxkit.runtime.outage import utc_now
from outboxkit.schema.partitions import make_ahead
from outboxkit.statements.partitions import INBOX, PUBLISHED
from tests.benchmarks.backlog import plain
from tests.benchmarks.place import Case, Place
from tests.benchmarks.rounds import Figures, Line, Measure

ROWS, QUICK = 1_000_000, 20_000
DAYS = 7
"""Of inbox rows: they have a partition for each day, and ten for each row of the other tables."""
TABLES = (
    "outboxkit_outbox, outboxkit_published, outboxkit_inbox, outboxkit_dead_letter, outboxkit_idempotency, "
    "outboxkit_audit, outboxkit_handler, outboxkit_attempt"
)
TIME = "lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0')"
RANDOM = "substr(md5(n::text), 1, 3) || '-8' || substr(md5(n::text), 4, 3) || '-' || substr(md5(n::text), 7, 12)"
ID = f"overlay({TIME} placing '-' from 9 for 0) || '-7' || {RANDOM}"
"""A UUIDv7 of the moment `at`."""
ERROR = """
    'TimeoutError: service ' || n % 500 || ' did not answer in 10 s: ' || repeat('while it was asked for a price, ', 4)
    || CASE WHEN n % 3 = 0 THEN ' request ' || n ELSE '' END
"""
PAYLOAD = """convert_to('{"order_id": ' || n || ', "lines": "' || repeat('0123456789', 25) || '"}', 'UTF8')"""
FILL = (
    f"TRUNCATE {TABLES} RESTART IDENTITY",
    f"""
    INSERT INTO outboxkit_outbox (position, message_id, type, key, payload, headers, correlation_id, destination,
                                  created_at, due_at, held, attempts, last_error)
    SELECT n + 90000000, {ID}, 'shop.Event' || n % 30, 'order-' || n % 100000, {PAYLOAD},
           '{{"tenant": "acme"}}', 'request-' || n / 3, CASE n % 10 WHEN 0 THEN 'mail' ELSE 'default' END, at,
           CASE WHEN n % 100 < 85 THEN NULL WHEN n % 100 < 90 THEN now() + interval '1 hour' + n * interval '1 ms'
                WHEN n % 100 < 97 THEN now() + n * interval '1 ms' ELSE '9999-12-31 UTC' END,
           n % 100 >= 90, CASE WHEN n % 100 BETWEEN 90 AND 96 THEN 3 ELSE 0 END,
           CASE WHEN n % 100 BETWEEN 90 AND 96 THEN {ERROR} END
    FROM (SELECT n, now() - (%(rows)s - n) * interval '20 ms' AS at FROM generate_series(1, %(rows)s) n) s
    """,
    f"""
    INSERT INTO outboxkit_dead_letter (side, queue, handler, message_id, type, key, payload, headers, content_type,
        correlation_id, created_at, reason, error, attempts, dead_at, position, parked, destination, traceback,
        resolution, resolved_at, resolved_by)
    SELECT CASE WHEN outside THEN 'outbox' ELSE 'inbox' END, CASE WHEN NOT outside THEN 'queue-' || n % 5 END,
           CASE WHEN NOT outside THEN 'shop.handlers.Handle' || n % 20 END, {ID},
           'shop.Event' || n % 30, 'order-' || n % 100000, {PAYLOAD}, '{{"tenant": "acme"}}', 'application/json',
           'request-' || n / 3, at, CASE WHEN outside THEN 'rejected' WHEN n % 500 = 3 THEN 'stale' ELSE 'failed' END,
           {ERROR}, 10, at + interval '1 hour', CASE WHEN outside THEN n END, n % 100 >= 97 AND n % 20 <> 7,
           CASE n % 10 WHEN 0 THEN 'mail' ELSE 'default' END,
           CASE WHEN NOT outside THEN repeat('  File "shop/handlers.py", line 12, in handle' || chr(10), 20) END,
           CASE WHEN n % 20 = 7 THEN 'discarded' END, CASE WHEN n % 20 = 7 THEN now() END,
           CASE WHEN n % 20 = 7 THEN 'ann' END
    FROM (SELECT n, n % 10 > 6 AS outside, now() - interval '1 hour' - (%(rows)s - n) * interval '0.5 s' AS at
          FROM generate_series(1, %(rows)s) n) s
    """,
    f"""
    INSERT INTO outboxkit_inbox (handler, message_id, type, processed_at)
    SELECT 'shop.handlers.Handle' || n % 20, {ID}, 'shop.Event' || n % 30, at
    FROM (SELECT n, now() - n * (interval '{DAYS} days' / (%(rows)s * 10)) AS at
          FROM generate_series(1, %(rows)s * 10) n) s
    """,
    f"""
    INSERT INTO outboxkit_published (published_at, position, message_id, type, key, payload, headers, content_type,
                                     correlation_id, created_at)
    SELECT at + interval '1 s', 90000000 - n, {ID}, 'shop.Event' || n % 30, 'order-' || n % 100000,
           {PAYLOAD}, '{{}}', 'application/json', 'request-' || n / 3, at
    FROM (SELECT n, now() - n * (interval '{DAYS} days' / %(rows)s) AS at FROM generate_series(1, %(rows)s) n) s
    """,
    """
    INSERT INTO outboxkit_idempotency (scope, principal, key, fingerprint, state, token, created_at, expires_at,
                                       locked_until, response_status, response_headers, response_body)
    SELECT 'POST /orders/' || n % 9, 'customer ' || n % 5000, md5(n::text), '', CASE WHEN n % 1000 = 0 THEN 'processing'
           ELSE 'done' END, '', now(), now() + n * interval '50 ms', now(), 201, '[]', repeat('x', 200)::bytea
    FROM generate_series(1, %(rows)s) n
    """,
    """
    INSERT INTO outboxkit_audit (action, operator, filter, started_at, ended_at, affected, result)
    SELECT 'dead replay', 'ann', '{"type": "T"}', now() - n * interval '1 min', now(), n, 'done'
    FROM generate_series(1, %(rows)s / 10) n
    """,
    """
    INSERT INTO outboxkit_handler (handler, queue, types)
    SELECT 'shop.handlers.Handle' || n, 'queue-' || n % 5, '["shop.Event' || n || '"]' FROM generate_series(0, 19) n
    """,
)
SOME = {"waiting": "outbox", "dead": "dead_letter", "kept": "published"}
AFTER = ("SELECT setval(pg_get_serial_sequence('outboxkit_outbox', 'position'), 900000000)", "VACUUM ANALYZE")
PAGES: dict[str, str] = {
    "overview": "/",
    "messages": "/messages",
    "messages, type": "/messages?type=shop.Event7",
    "messages, type that is not there": "/messages?type=nothing",
    "messages, key": "/messages?key=order-77",
    "messages, ready": "/messages?state=ready",
    "messages, held": "/messages?state=held",
    "messages, delayed": "/messages?state=delayed",
    "messages, parked": "/messages?state=parked",
    "messages, parked, type that is not there": "/messages?state=parked&type=nothing",
    "messages, destination": "/messages?destination=mail",
    "messages, id prefix": "/messages?prefix=ffff",
    "messages, correlation id": "/messages?correlation_id=request-330000",
    "messages, older": "/messages?older=1m",
    "messages, newer": "/messages?newer=1m",
    "kept": "/messages?place=kept",
    "kept, type that is not there": "/messages?place=kept&type=nothing",
    "kept, key": "/messages?place=kept&key=order-77",
    "kept, older": "/messages?place=kept&older=3d",
    "search, key": "/search?q=order-77",
    "search, correlation id": "/search?q=request-330000",
    "search, nothing": "/search?q=nothing-at-all",
    "message": "/message?id={waiting}",
    "message, dead": "/message?id={dead}",
    "message, kept": "/message?id={kept}",
    "keys": "/keys",
    "dead": "/dead",
    "dead, with resolved": "/dead?resolved=yes",
    "dead, type": "/dead?type=shop.Event7",
    "dead, type that is not there": "/dead?type=nothing",
    "dead, key": "/dead?key=order-77",
    "dead, key that is not there": "/dead?key=nothing",
    "dead, reason": "/dead?reason=stale",
    "dead, reason that is not there": "/dead?reason=nothing",
    "dead, side": "/dead?side=outbox",
    "dead, destination": "/dead?destination=mail",
    "dead, destination that is not there": "/dead?destination=nothing",
    "dead, handler": "/dead?handler=shop.handlers.Handle13",
    "dead, handler that is not there": "/dead?handler=nothing",
    "dead, error": "/dead?error=service+77+",
    "dead, begin of an error": "/dead?error=TimeoutError%3A+service+77+",
    "dead, error that is not there": "/dead?error=nothing-at-all",
    "dead, type and key": "/dead?type=shop.Event7&key=order-77",
    "dead, older": "/dead?older=5d",
    "dead, older than all": "/dead?older=900d",
    "dead, newer": "/dead?newer=2d",
    "dead, newer and handler that is not there": "/dead?newer=9d&handler=nothing",
    "dead, far page": f"/dead?after={quote(json.dumps([utc_now().isoformat(), 1000]))}",
    "dead, same error": "/dead?same_error=77",
    "dead by error": "/dead?group=error",
    "dead by key": "/dead?group=key",
    "dead by handler": "/dead?group=handler",
    "dead by type": "/dead?group=type",
    "dead by error of a handler": "/dead?group=error&handler=shop.handlers.Handle13",
    "dead by key of a type that is not there": "/dead?group=key&type=nothing",
    "dry run, replay all": "/dead/plan?action=replay&all=yes",
    "dry run, discard all": "/dead/plan?action=discard&all=yes",
    "dry run, replay a handler": "/dead/plan?action=replay&all=yes&handler=shop.handlers.Handle13",
    "dry run, replay an error": "/dead/plan?action=replay&all=yes&error=service+77+",
    "dry run, replay what is not there": "/dead/plan?action=replay&all=yes&type=nothing",
    "workers": "/workers",
    "replay": "/replay",
    "replay, all kept": "/replay?to_queue=queue-1",
    "replay, type": "/replay?to_queue=queue-1&type=shop.Event7",
    "replay, type that is not there": "/replay?to_queue=queue-1&type=nothing",
    "replay, key": "/replay?to_queue=queue-1&key=order-77",
    "operations": "/operations",
    "requests": "/requests",
    "requests, scope that is not there": "/requests?scope=nothing",
    "requests, state": "/requests?state=processing",
    "requests, key": "/requests?key=c4ca4238a0b923820dcc509a6f75849b",
    "requests, key that is not there": "/requests?key=nothing",
    "retention": "/retention",
    "audit": "/audit",
}  # fmt: skip


@contextmanager
def filled(place: Place) -> Iterator[Mapping[str, Measure]]:
    """Every table full, and a console that is served."""
    with psycopg.connect(plain(place.database_url), autocommit=True) as connection:
        asyncio.run(make_days(place.database_url))
        fill(connection, QUICK if place.quick else ROWS)
        with served(place.database_url, place.broker_url) as (client, pid):
            ids = {name: an_id(connection, table) for name, table in SOME.items()}
            yield {"console": lambda: measure(client, pid, ids)}
        connection.execute(f"TRUNCATE {TABLES}")


def an_id(connection: psycopg.Connection, table: str) -> str:
    """The id of a message in a table."""
    (row,) = connection.execute(f"SELECT message_id FROM outboxkit_{table} OFFSET 5000 LIMIT 1".encode())
    return str(row[0])


async def make_days(url: str) -> None:
    """Make the partitions of these days, as retention has made them ahead."""
    engine = process.engine(url, name="benchmark")
    async with engine.connect() as connection:
        for table in (INBOX, PUBLISHED):
            await make_ahead(connection, table, utc_now() - timedelta(days=DAYS))
            await make_ahead(connection, table)
    await engine.dispose()


def fill(connection: psycopg.Connection, rows: int) -> None:
    """A table after the other."""
    for statement in (*FILL, *AFTER):
        started = time.perf_counter()
        connection.execute(statement.replace("%", "%%").replace("%%(rows)s", "%(rows)s").encode(), {"rows": rows})
        print(f"{time.perf_counter() - started:.0f} s: {' '.join(statement.split())[:60]}", file=sys.stderr)


@contextmanager
def served(database_url: str, broker_url: str) -> Iterator[tuple[httpx.Client, int]]:
    """The command, and a browser that has logged in."""
    command = [sys.executable, "-m", "outboxkit", "console", "--port", "0", "--operate", "--payload"]
    command += ["--database-url", database_url]
    environment = {"OUTBOXKIT_BROKER_URL": broker_url, "PATH": os.environ["PATH"]}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
        try:
            assert running.stdout is not None
            link = next(word for word in running.stdout.readline().split() if word.startswith("http"))
            with httpx.Client(base_url=link.rsplit("/login", 1)[0], timeout=120, follow_redirects=True) as client:
                client.get(link)
                yield client, running.pid
        finally:
            running.terminate()


def measure(client: httpx.Client, pid: int, ids: Mapping[str, str]) -> Figures:
    """Milliseconds of each page, and the largest memory of the process."""
    figures = {"memory": 0.0}
    for name, path in PAGES.items():
        took = list[float]()
        for _ in range(2):
            started = time.perf_counter()
            answer = client.get(path.format(**ids))
            took.append((time.perf_counter() - started) * 1000)
            answer.raise_for_status()
        figures |= {name: min(took), "memory": max(figures["memory"], peak(pid))}
        print(f"{min(took):8.0f} ms {peak(pid):6.1f} MiB {len(answer.content):7} bytes {name}", file=sys.stderr)
    return figures


def peak(pid: int) -> float:
    """The largest resident memory of a process since it was reset, in MiB."""
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(kilobytes) / 1024


CASES = (
    Case(
        "console",
        "each page of the console with a million rows of each table, and ten million of the inbox",
        filled,
        (
            *(Line(name, ("console", name), at_most=1000, unit="ms") for name in PAGES),
            Line("memory", ("console", "memory"), at_most=100, unit="MiB"),
        ),
        most_rounds=1,
    ),
)
