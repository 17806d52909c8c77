"""`python -m tests.faults`: the soak, on servers of its own; exits with 1 if a promise was broken."""

import argparse
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.faults.replicated import Replicated
from tests.faults.shrink import shrunk
from tests.faults.small_disk import SmallDisk
from tests.faults.soak import Report, Run, soak
from tests.servers import POSTGRESQL, Server, provide_own, provide_own_rabbitmq
from tests.servers.cluster import NODES, provide_cluster
from tests.servers.postgresql import find_programs


def main() -> int:
    """Run, and print what was done and found."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2, help="of faults, before the drain (2)")
    seed = random.SystemRandom().randrange(100_000)
    parser.add_argument("--seed", type=int, default=seed, help="of the faults, and of what is sent (a random one)")
    parser.add_argument("--longest", type=float, default=6, help="seconds of a fault, at most")
    parser.add_argument("--only", help="faults, with commas between them; a wrong one prints all")
    parser.add_argument("--nodes", type=int, choices=(1, NODES), default=1, help="of RabbitMQ")
    parser.add_argument("--pooler", action="store_true", help="the workers' sessions are PgBouncer's")
    parser.add_argument("--standby", action="store_true", help="PostgreSQL has a synchronous standby")
    parser.add_argument("--small-disk", action="store_true", help="PostgreSQL's disk can be filled; root alone may")
    parser.add_argument("--clocks", action="store_true", help="the workers' clocks can be set; it needs gcc")
    parser.add_argument(
        "--notes", type=int, default=0, metavar="N", help="messages more in each transaction of a producer"
    )
    parser.add_argument("--faults", help="only these numbers of the plan, with commas between them")
    parser.add_argument("--shrink", type=int, default=0, metavar="N", help="after a failure, N tries with fewer faults")
    arguments = parser.parse_args()
    run = Run(
        seed=arguments.seed, seconds=arguments.minutes * 60, longest=arguments.longest,
        names=tuple(arguments.only.split(",")) if arguments.only else (),
        nodes=arguments.nodes, pooler=arguments.pooler, standby=arguments.standby, small_disk=arguments.small_disk,
        clocks=arguments.clocks, notes=arguments.notes,
        chosen=tuple(map(int, arguments.faults.split(","))) if arguments.faults else None,
    )  # fmt: skip
    if unknown := set(run.names) - set(run.known):
        parser.error(f"{', '.join(sorted(unknown))}: accepted are {', '.join(run.known)}")
    database: Server = provide_own(POSTGRESQL)
    if run.standby or run.small_disk:
        if run.standby and run.small_disk:
            parser.error("--standby and --small-disk are of different servers")
        if (programs := find_programs()) is None:
            parser.error("--standby and --small-disk need PostgreSQL's programs on this machine")
        database = (Replicated if run.standby else SmallDisk)(programs)
    broker = provide_cluster() if run.nodes > 1 else provide_own_rabbitmq()

    def report_of(run: Run) -> Report:
        logs = Path(tempfile.mkdtemp(prefix="okit-soak-"))
        print(f"{run}, logs in {logs}", flush=True)
        report = soak(database, broker, logs, run)
        print(report, flush=True)
        return report

    try:
        database.start()
        broker.start()
        report = report_of(run)
        if report.verdicts and arguments.shrink:
            left = shrunk(
                report.happened,
                lambda faults: bool(report_of(replace(run, chosen=faults)).verdicts),
                tries=arguments.shrink,
            )
            print(f"the fewest faults that broke a promise: {replace(run, chosen=left)}")
    finally:
        broker.close()
        database.close()
    return bool(report.verdicts)


if __name__ == "__main__":
    sys.exit(main())
