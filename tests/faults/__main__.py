"""`python -m tests.faults`: the soak, on servers of its own; exits with 1 if a promise was broken."""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.faults.faults import ALL, CLUSTERED
from tests.faults.soak import soak
from tests.servers import POSTGRESQL, provide_own, provide_own_rabbitmq
from tests.servers.cluster import NODES, provide_cluster


def main() -> int:
    """Run, and print what was done and found."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(100_000))
    parser.add_argument("--longest", type=float, default=6, help="seconds of a fault, at most")
    parser.add_argument("--only", help=f"faults, with commas between them: {', '.join(CLUSTERED)}")
    parser.add_argument("--nodes", type=int, choices=(1, NODES), default=1, help="of RabbitMQ")
    parser.add_argument("--pooler", action="store_true", help="the workers' sessions are PgBouncer's")
    arguments = parser.parse_args()
    known = CLUSTERED if arguments.nodes == NODES else ALL
    names = arguments.only.split(",") if arguments.only else list(known)
    if unknown := set(names) - known.keys():
        parser.error(f"{', '.join(sorted(unknown))}: accepted are {', '.join(known)}")
    logs = Path(tempfile.mkdtemp(prefix="okit-soak-"))
    again = f"make soak MINUTES={arguments.minutes:g} SEED={arguments.seed}"
    if others := [f"--nodes {NODES}"] * (arguments.nodes > 1) + [f"--pooler {arguments.pooler}"] * bool(
        arguments.pooler
    ):
        again += f' ARGS="{" ".join(others)}"'
    print(f"{again}, logs in {logs}", flush=True)
    database = provide_own(POSTGRESQL)
    broker = provide_cluster() if arguments.nodes > 1 else provide_own_rabbitmq()
    try:
        database.start()
        broker.start()
        report = soak(
            database, broker, logs,
            seed=arguments.seed, seconds=arguments.minutes * 60, names=names, longest=arguments.longest,
            pooler=arguments.pooler,
        )  # fmt: skip
    finally:
        broker.close()
        database.close()
    print(report)
    if report.verdicts:
        print(f"again: {again}; logs in {logs}")
    return bool(report.verdicts)


if __name__ == "__main__":
    sys.exit(main())
