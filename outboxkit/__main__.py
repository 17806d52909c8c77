"""The command `outboxkit`, also as `python -m outboxkit`. Without its libraries it says how to install them."""

import os
import signal
import sys
from typing import NoReturn

from outboxkit.exit_codes import INCOMPLETE, INTERRUPTED

WORKERS = ("relay", "consume", "run")


def main() -> None:
    """Run the command line. A signal while it is imported ends it as cleanly as one that comes later.

    A worker's own handlers of signals take over once it runs. Its handlers' modules are imported before that.
    """
    is_worker = sys.argv[1:2] and sys.argv[1] in WORKERS
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    if is_worker:
        signal.signal(signal.SIGTERM, lambda *_: _stop(is_drain="--drain" in sys.argv))
    try:
        from outboxkit import cli  # noqa: PLC0415 - typer, which an extra brings
    except ModuleNotFoundError as error:
        from outboxkit.runtime import compose  # noqa: PLC0415

        text, code = compose.explain(error)
        sys.stderr.write(f"outboxkit: {text}\n")
        sys.exit(code)
    if not is_worker:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


def _stop(*, is_drain: bool) -> NoReturn:
    if is_drain:
        os.write(2, b"outboxkit: stopped before the drain began\n")
    os._exit(INCOMPLETE if is_drain else 0)


if __name__ == "__main__":
    main()
