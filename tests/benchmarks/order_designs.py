"""Two ways to keep messages of one key in order with several relays, drained side by side (docs/decisions/0014).

`give-back`: rows are claimed by position, whoever's they are; one statement a batch then finds what stands before
each key, and blocked rows are given back. `buckets`: rows carry a hash of their key; a worker takes the advisory locks
of some buckets, then their rows in order. `free` claims by position and keeps no order: what the others are paid with.

Only the database is measured: there is no broker, and a row is published by noting the time. The order of what was
noted is checked after every drain. Prints a JSON line for each drain, and at the end a table of medians.

    python -m tests.benchmarks.order_designs --rounds 3 --keys 1 1000 --workers 1 4 --depth 5000
"""

import argparse
import itertools
import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from sqlalchemy.dialects.postgresql.psycopg import dialect as psycopg_dialect

from outboxkit import statements
from tests.benchmarks import backlog
from tests.benchmarks.machine import Ticks
from tests.servers import POSTGRESQL, create_database, provide_own
from tests.support.databases import migrate

BATCH, BUCKETS, BUCKETS_AT_ONCE = 500, 64, 8
LOCK_CLASS = 64
LOOK_BATCHES = 10

BUCKETS_TABLE = f"""
CREATE TABLE scratch (LIKE outboxkit_outbox INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
ALTER TABLE scratch ADD PRIMARY KEY (position);
ALTER TABLE scratch ADD COLUMN bucket smallint GENERATED ALWAYS AS (mod(abs(hashtext(key)::bigint), {BUCKETS})) STORED;
CREATE INDEX ON scratch (bucket, position) WHERE due_at IS NULL;
CREATE INDEX ON scratch (due_at, position) WHERE due_at IS NOT NULL;
CREATE INDEX ON scratch (message_id) WHERE due_at IS NOT NULL;
CREATE UNIQUE INDEX ON scratch (message_id) WHERE dedup;
"""
FILL = """
INSERT INTO {table} (position, message_id, type, key, payload, headers, content_type, created_at)
SELECT n, gen_random_uuid()::text, 'Drained', 'key-' || (hashint4(n)::bigint + 2147483648) % {keys},
       decode(repeat('ab', {size}), 'hex'), '{{}}', 'application/json', now()
FROM generate_series(1, {depth}) n
"""
LOCK_BUCKETS = f"SELECT b FROM unnest(%(wanted)s::int[]) b WHERE pg_try_advisory_xact_lock({LOCK_CLASS}, b)"
CLAIM_BUCKETS = f"""
SELECT rows.* FROM unnest(%(buckets)s::smallint[], %(floors)s::bigint[]) AS locked(bucket, floor)
CROSS JOIN LATERAL (
    SELECT position, attempts, message_id, type, payload, key, topic, headers, correlation_id, causation_id,
           created_at, content_type, content_encoding, expires_at, discard_unroutable, held, scratch.bucket
    FROM scratch WHERE scratch.bucket = locked.bucket AND due_at IS NULL AND position > locked.floor
    ORDER BY position LIMIT {BATCH} FOR UPDATE
) AS rows LIMIT {BATCH}
"""
FORGET_BUCKETS = "DELETE FROM scratch WHERE position = ANY(%(positions)s)"


@dataclass
class Drain:
    """What one worker does and has done, in a process of its own."""

    url: str
    left: Any
    hold: float = 0.0
    done: list[tuple[int, int, str]] = field(default_factory=list)
    batches: int = 0
    given_back: int = 0

    def publish(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Note when these rows, sorted by position, would have left."""
        now = time.monotonic_ns()
        self.done += [(now, row[0], row[5]) for row in rows]
        self.batches += 1
        time.sleep(self.hold * len(rows) / BATCH)

    def settle(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Count rows down, once their deletion is committed."""
        with self.left.get_lock():
            self.left.value -= len(rows)


OURS = {"destination": "default"}


def text(statement: Any) -> str:
    return str(statement.compile(dialect=psycopg_dialect()))  # type: ignore[no-untyped-call]


def by_position(drain: Drain, connection: psycopg.Connection[Any], *, ordered: bool) -> None:
    """Claim by position above a floor; with `ordered`, give back what has an earlier one of its key elsewhere."""
    claim, forget = text(statements.claim.claim_ready()), text(statements.settle.forget_rows("postgresql"))
    before = text(statements.claim.predecessors("postgresql"))
    oldest = text(statements.claim.oldest_ready())
    cursor = connection.cursor(binary=True)
    floor = everybodys = 0
    while drain.left.value:
        if ordered and drain.batches % LOOK_BATCHES == 0:
            (found,) = cursor.execute(oldest, {**OURS, "floor": everybodys}).fetchone() or (None,)
            everybodys = everybodys if found is None else found - 1
        rows = cursor.execute(claim, {**OURS, "floor": floor, "limit": BATCH}).fetchall()
        send = rows
        if ordered and rows:
            last = {row[5]: row[0] for row in rows}
            given: dict[str, Any] = {
                "keys": list(last),
                "last_positions": list(last.values()),
                "own_positions": [row[0] for row in rows],
            }
            given |= {**OURS, "floor": everybodys}  # this worker's own is past rows that others hold
            blocked = {row[0]: row[1] for row in cursor.execute(before, given) if row[1] is not None}
            send = [row for row in rows if row[0] < blocked.get(row[5], row[0] + 1)]
        drain.given_back += len(rows) - len(send)
        if not send:
            connection.rollback()
            floor = 0 if not rows else floor
            time.sleep(random.uniform(0.001, 0.004))
            continue
        drain.publish(send)
        cursor.execute(forget, {"positions": [row[0] for row in send]})
        connection.commit()
        drain.settle(send)
        # Everything that this worker has skipped is in another's hands, whose floor it then is that stays below it.
        kept = {row[0] for row in send}
        floor = next((row[0] - 1 for row in rows if row[0] not in kept), rows[-1][0])


def by_bucket(drain: Drain, connection: psycopg.Connection[Any]) -> None:
    """Lock some buckets, then take whole buckets in order until the batch is full."""
    cursor = connection.cursor(binary=True)
    floors = dict.fromkeys(range(BUCKETS), 0)
    ring = itertools.cycle(random.sample(range(BUCKETS), BUCKETS))
    favourite: list[int] = []
    while drain.left.value:
        wanted = favourite or [next(ring) for _ in range(BUCKETS_AT_ONCE)]
        buckets = [row[0] for row in cursor.execute(LOCK_BUCKETS, {"wanted": wanted})]
        given = {"buckets": buckets, "floors": [floors[bucket] for bucket in buckets]}
        rows = cursor.execute(CLAIM_BUCKETS, given).fetchall() if buckets else []
        if not rows:
            connection.rollback()
            if not favourite and not buckets:
                time.sleep(random.uniform(0.001, 0.004))
            favourite = []
            continue
        drain.publish(rows)
        cursor.execute(FORGET_BUCKETS, {"positions": [row[0] for row in rows]})
        connection.commit()
        drain.settle(rows)
        for row in rows:
            floors[row[16]] = max(floors[row[16]], row[0])
        favourite = [rows[-1][16]] if len(rows) == BATCH else []


DESIGNS: dict[str, tuple[str, Callable[[Drain, psycopg.Connection[Any]], None]]] = {
    "free": ("outboxkit_outbox", lambda drain, connection: by_position(drain, connection, ordered=False)),
    "give-back": ("outboxkit_outbox", lambda drain, connection: by_position(drain, connection, ordered=True)),
    "buckets": ("scratch", by_bucket),
}


def work(design: str, drain: Drain, ready: Any, results: Any) -> None:
    with psycopg.connect(drain.url, prepare_threshold=2) as connection:
        connection.execute("SELECT 1")
        connection.rollback()
        ready.wait()
        started = time.monotonic_ns()
        DESIGNS[design][1](drain, connection)
    results.put((started, drain.done, drain.batches, drain.given_back))


def fill(url: str, table: str, *, keys: int, depth: int, size: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("TRUNCATE outboxkit_outbox, scratch")
        connection.execute(FILL.format(table=table, keys=keys, depth=depth, size=size))
        connection.execute(f"VACUUM ANALYZE {table}")


def inversions(done: Sequence[tuple[int, int, str]]) -> int:
    """How many messages left after a later one of their key."""
    last: dict[str, int] = {}
    wrong = 0
    for _, position, key in sorted(done, key=lambda row: row[0]):
        wrong += position < last.get(key, 0)
        last[key] = max(last.get(key, 0), position)
    return wrong


def drain(url: str, design: str, workers: int, hold: float) -> dict[str, Any]:
    """Drain the table, and say how fast and in which order."""
    with psycopg.connect(url) as connection:
        (depth,) = connection.execute(f"SELECT count(*) FROM {DESIGNS[design][0]}").fetchone() or (0,)
    context = multiprocessing.get_context("fork")
    left, ready, results = context.Value("q", depth), context.Barrier(workers), context.SimpleQueue()
    started = [
        context.Process(target=work, args=(design, Drain(url, left, hold), ready, results), daemon=True)
        for _ in range(workers)
    ]
    ticks = Ticks.now()
    for process in started:
        process.start()
    found = [results.get() for _ in started]
    for process in started:
        process.join()
    spent = Ticks.now().since(ticks)
    done = [row for _, rows, _, _ in found for row in rows]
    if sorted(row[1] for row in done) != list(range(1, depth + 1)):
        raise SystemExit(f"{design}: {len(done)} messages of {depth} were drained, or some of them twice")
    seconds = (max(row[0] for row in done) - min(start for start, *_ in found)) / 1e9
    return {
        "rows_per_second": round(depth / seconds),
        "inversions": inversions(done),
        "rows_a_batch": round(depth / sum(batches for _, _, batches, _ in found)),
        "given_back": round(sum(given for *_, given in found) / depth, 3),
        "steal": round(spent.steal, 3),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=3, help="interleaved rounds")
    options.add_argument("--designs", nargs="+", choices=DESIGNS, default=list(DESIGNS))
    options.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4])
    options.add_argument("--keys", nargs="+", type=int, default=[1, 50, 1_000, 100_000])
    options.add_argument("--depth", nargs="+", type=int, default=[5_000, 200_000], help="rows of the backlog")
    options.add_argument("--blocked", nargs="+", type=int, choices=(0, 1), default=[0], help="1: vacuum is held back")
    options.add_argument("--size", type=int, default=256, help="bytes of a payload")
    options.add_argument(
        "--hold", type=float, default=0, help="milliseconds for which 500 rows are kept, as if published"
    )
    options.add_argument("--seconds", type=float, default=1e9, help="begin no further round after this time")
    args = options.parse_args()

    server = provide_own(POSTGRESQL)
    server.start()
    try:
        url = create_database(server.url, "order_designs")
        migrate(url)
        plain = backlog.plain(url)
        with psycopg.connect(plain, autocommit=True) as connection:
            connection.execute(BUCKETS_TABLE)
        measure(plain, args)
    finally:
        server.close()


def measure(url: str, args: argparse.Namespace) -> None:
    rates: dict[tuple[Any, ...], dict[str, list[int]]] = {}
    wrong: dict[str, int] = {}
    began = time.monotonic()
    for number in range(args.rounds):
        if time.monotonic() - began > args.seconds:
            break
        for depth, keys, blocked, workers in itertools.product(args.depth, args.keys, args.blocked, args.workers):
            for design in random.sample(args.designs, len(args.designs)):
                fill(url, DESIGNS[design][0], keys=keys, depth=depth, size=args.size)
                with backlog.blocking_vacuum(url, wanted=bool(blocked)):
                    found = drain(url, design, workers, args.hold / 1000)
                case = {"depth": depth, "keys": keys, "blocked": bool(blocked), "workers": workers, "design": design}
                print(json.dumps({"round": number, **case, **found}), flush=True)
                wrong[design] = wrong.get(design, 0) + found["inversions"]
                rates.setdefault((depth, keys, bool(blocked), workers), {}).setdefault(design, []).append(
                    found["rows_per_second"]
                )
    show(args.designs, rates, wrong)


def show(designs: Sequence[str], rates: dict[tuple[Any, ...], Any], wrong: dict[str, int]) -> None:
    print(f"\n{'depth':>7} {'keys':>7} {'vacuum':>8} {'workers':>7}" + "".join(f" {name:>10}" for name in designs))
    for (depth, keys, blocked, workers), found in rates.items():
        medians = "".join(f" {round(statistics.median(found[name])):>10}" for name in designs)
        print(f"{depth:>7} {keys:>7} {'held' if blocked else 'free':>8} {workers:>7}{medians}")
    print("\nmessages that left after a later one of their key:", json.dumps(wrong))


if __name__ == "__main__":
    main()
