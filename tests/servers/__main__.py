"""`python -m tests.servers --provide`: make sure, before the tests, that their servers can be had."""

import argparse
import sys

from tests.servers.provision import POSTGRESQL, RABBITMQ, Kind, P, choose, this_machine
from tests.servers.server import ServersUnavailable


def main() -> int:
    """Say where each server will come from, or everything that is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description=__doc__)
    parser.add_argument("--provide", action="store_true", required=True, help="install what is missing, start nothing")
    parser.parse_args()
    missing = [message for message in (_provide(POSTGRESQL), _provide(RABBITMQ)) if message]
    if missing:
        print("\n\n".join(missing), file=sys.stderr)
    return 1 if missing else 0


def _provide(kind: Kind[P]) -> str | None:
    try:
        origin = choose(kind, this_machine())
    except ServersUnavailable as unavailable:
        return str(unavailable)
    print(f"{kind.name}: {origin.where}")
    return None


sys.exit(main())
