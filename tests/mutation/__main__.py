"""Change one thing at a time in a module, and run its tests: `make mutation ARGS="relay"`.

mutmut works in a copy of the repository, which is kept, so that `mutmut show NAME` and `mutmut browse` work there. The
part `variants` is a list of changes by hand, each of which breaks a promise. A test that is listed beside it must fail.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutation.variants import run_variants
from tests.servers import POSTGRESQL, RABBITMQ, provide_postgresql, provide_rabbitmq

ROOT = Path(__file__).parents[2]
VARIANTS = "variants"
PARTS = {
    "relay": (["relay/decisions.py", "relay/settle.py"], ["unit/relay"]),
    "failures": (["consumer/decisions.py"], ["unit/consumer/test_decisions.py"]),
    "inbox": (
        ["inbox/run_once.py"],
        ["unit/inbox", "integration/inbox", "integration/consumer/test_handlers_transaction.py"],
    ),
    "effects": (["effects/once.py", "effects/record.py"], ["unit/effects", "integration/effects"]),
    "ledger": (["http/ledger.py"], ["unit/http"]),
    "deadletters": (["operators/deadletters/*.py"], ["unit/operators/deadletters"]),
}
"""The modules of a part, and what of `tests/` runs for it."""

TEXTS = r"^ *raise [A-Z]\w+\("
"""Lines that begin a statement which stays as it is: an error and its text. The condition before it is changed."""
OF_FRAMES = [
    "--deselect=tests/unit/inbox/test_middleware.py::test_the_traceback_begins_in_the_handler",
    "--deselect=tests/unit/consumer/test_reports.py::test_a_failure_reaches_the_log_the_standard_logging_and_the_hook",
]
"""Tests of tracebacks, in which mutmut has frames of its own."""


@contextmanager
def running_servers(tests: list[str]) -> Iterator[dict[str, str]]:
    """The environment that names the servers of these tests. They run for all mutants, and none run for unit tests."""
    if all(name.startswith("unit/") for name in tests):
        yield {}
        return
    kinds = {POSTGRESQL.variable: provide_postgresql(), RABBITMQ.variable: provide_rabbitmq()}
    try:
        for server in kinds.values():
            server.start()
        yield {variable: server.url for variable, server in kinds.items()}
    finally:
        for server in kinds.values():
            server.close()


def copy_into(folder: Path) -> None:
    """Copy the repository as git knows it."""
    for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def configure(folder: Path, modules: list[str], tests: list[str]) -> None:
    """Configure mutmut in a copy of the repository."""
    with (folder / "pyproject.toml").open("a") as written:
        written.write(
            "\n[tool.mutmut]\n"
            'source_paths = ["outboxkit"]\n'
            f"only_mutate = {[f'outboxkit/{name}' for name in modules]}\n"
            'also_copy = ["README.md", "docs", "migrations", "examples", "workers"]\n'
            f"do_not_mutate_patterns = ['{TEXTS}']\n"
            f"pytest_add_cli_args = {['-p', 'no:cacheprovider', '-q', '-m', 'not night', *OF_FRAMES]}\n"
            f"pytest_add_cli_args_test_selection = {[f'tests/{name}' for name in tests]}\n"
            "track_dependencies = false\n"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutation", description=__doc__)
    known = (VARIANTS, *PARTS)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(known)}; all if none is given")
    parts = parser.parse_args().parts
    if unknown := set(parts) - set(known):
        parser.error(f"{', '.join(sorted(unknown))}: accepted are {', '.join(known)}")
    for part in parts or known:
        folder = Path(tempfile.mkdtemp(prefix=f"outboxkit-mutation-{part}-"))
        copy_into(folder)
        print(f"{part}: in {folder}", flush=True)
        if part == VARIANTS:
            if unnoticed := run_variants(folder):
                return unnoticed
            continue
        configure(folder, *PARTS[part])
        with running_servers(PARTS[part][1]) as servers:
            for command in ("run", "results"):
                if code := subprocess.call(
                    [sys.executable, "-m", "mutmut", command], cwd=folder, env=os.environ | servers
                ):
                    return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
