"""`make bench`: how fast outboxkit is here, beside what it is compared with, in one run.

Starts servers of its own. Prints a JSON line for each case, and at the end a table: every ratio is the median over
interleaved rounds, and rounds in which the host took more than 5 % of the machine's time are dropped.
"""

import argparse
import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager

from tests.benchmarks import adding, consuming, looking, processes, publishing, requesting, rounds, waking
from tests.benchmarks.place import Case, Place
from tests.benchmarks.table import table
from tests.servers import POSTGRESQL, RABBITMQ, create_database, provide_own
from tests.support.databases import migrate

CASES: dict[str, Case] = {
    case.name: case
    for module in (publishing, waking, adding, consuming, processes, requesting, looking)
    for case in module.CASES
}


def main() -> None:
    """Run the cases that are wanted."""
    listing = "\n".join(f"  {case.name:<18} {case.about}" for case in CASES.values())
    options = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=f"{__doc__}\ncases:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument(
        "--quick", action="store_true", help="one round and small counts: whether it runs, not how fast"
    )
    options.add_argument("--case", action="append", choices=CASES, help="only this one; may be repeated")
    options.add_argument("--rounds", type=int, help="quiet rounds of each case (5; 1 with --quick)")
    options.add_argument("--memory-rows", type=int, help="rows of the case memory (1 000 000; 40 000 with --quick)")
    options.add_argument(
        "--memory-messages", type=int, help="messages of the case consume-memory (100 000; 2 000 with --quick)"
    )
    options.add_argument("--key-rows", type=int, help="rows of a shape of the case keys (300 000; 20 000 with --quick)")
    args = options.parse_args()
    wanted = args.rounds or (1 if args.quick else 5)
    sizes = {
        "memory_rows": args.memory_rows or (40_000 if args.quick else 1_000_000),
        "memory_messages": args.memory_messages or (2_000 if args.quick else 100_000),
        "key_rows": args.key_rows or (20_000 if args.quick else 300_000),
    }
    with place(quick=args.quick, **sizes) as here:
        outcomes = [run(CASES[name], here, wanted) for name in args.case or CASES]
    print(f"\n{table(outcomes)}\n{platform.platform()}, Python {platform.python_version()}")


@contextmanager
def place(*, quick: bool, **sizes: int) -> Iterator[Place]:
    """Servers that nobody else uses."""
    postgresql, rabbitmq = provide_own(POSTGRESQL), provide_own(RABBITMQ)
    postgresql.start()
    try:
        rabbitmq.start()
        url = create_database(postgresql.url, "benchmarks")
        migrate(url)
        yield Place(url, rabbitmq.url, quick, **sizes)
    finally:
        rabbitmq.close()
        postgresql.close()


def run(case: Case, here: Place, wanted: int) -> rounds.Outcome:
    """One case, with its JSON line."""
    with case.prepare(here) as variants:
        outcome = rounds.run(case.name, variants, case.lines, wanted=min(wanted, case.most_rounds or wanted))
    print(json.dumps(outcome.record()), flush=True)
    return outcome


if __name__ == "__main__":
    main()
