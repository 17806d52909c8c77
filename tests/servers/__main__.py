"""`python -m tests.servers --provide`: make sure, before the tests, that their servers can be had."""

import argparse
import shutil
import sys

from tests.servers import apt
from tests.servers.provision import POSTGRESQL, RABBITMQ, Kind, P, choose, this_machine
from tests.servers.server import ServersUnavailable


def main() -> int:
    """Say where each server will come from, or everything that is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description=__doc__)
    parser.add_argument("--provide", action="store_true", required=True, help="install what is missing, start nothing")
    parser.add_argument("--night", action="store_true", help="also what the tests of the night alone need")
    arguments = parser.parse_args()
    messages = [_provide(POSTGRESQL), _provide(RABBITMQ), _prometheus() if arguments.night else None]
    missing = [message for message in messages if message]
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


def _prometheus() -> str | None:
    """What is wrong if there are no programs of Prometheus; they are used as they are, so no container will do."""
    if shutil.which("promtool") is None and apt.may_install():
        try:
            apt.install("prometheus")
        except ServersUnavailable as unavailable:
            return str(unavailable)
    if (program := shutil.which("promtool")) is None:
        return (
            "The tests of the night need `prometheus` and `promtool` in PATH\n"
            "  (Debian, Ubuntu: sudo apt-get install prometheus)"
        )
    print(f"Prometheus: {program}")
    return None


sys.exit(main())
