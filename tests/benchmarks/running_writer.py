"""A writer in a process of its own: transactions of one business row and one outbox row, for some seconds.

    python -m tests.benchmarks.running_writer URL SECONDS

It says "ready", waits for a line, and says at the end how many it has committed.
"""

import secrets
import sys
import time

import psycopg

ORDER = "INSERT INTO benchmark_order (state) VALUES ('placed')"
ADD = """
INSERT INTO outboxkit_outbox (message_id, type, payload, headers, content_type, created_at)
VALUES (%s, 'Benchmark', %s, '{}', 'application/json', now())
"""


def main() -> None:
    url, seconds = sys.argv[1], float(sys.argv[2])
    payload, done = b'{"pad":"' + b"x" * 90 + b'"}', 0
    with psycopg.connect(url, prepare_threshold=0) as connection:
        print("ready", flush=True)
        sys.stdin.readline()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            connection.execute(ORDER)
            connection.execute(ADD, (secrets.token_hex(16), payload))
            connection.commit()
            done += 1
    print(done, flush=True)


if __name__ == "__main__":
    main()
