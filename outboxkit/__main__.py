"""The command `outboxkit`, also as `python -m outboxkit`. Without its libraries it says how to install them."""

import os
import signal
import sys

WORKERS = ("relay", "consume")
INTERRUPTED = 130
"""Exit code after SIGINT, as of shells."""


def main() -> None:
    """Run the command line. A signal while it is imported ends it as cleanly as one that comes later.

    A worker's own handlers of signals take over once it runs. Its handlers' modules are imported before that.
    """
    is_worker = sys.argv[1:2] and sys.argv[1] in WORKERS
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    if is_worker:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
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


if __name__ == "__main__":
    main()
