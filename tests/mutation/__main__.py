"""Change one thing at a time in a module, and run its unit tests: `make mutation ARGS="relay"`.

mutmut works in a copy of the repository, which is kept, so that `mutmut show NAME` and `mutmut browse` work there. The
part `variants` is a list of changes by hand, one for each promise, which the tests on real servers must notice, too.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutation.variants import run_variants

ROOT = Path(__file__).parents[2]
VARIANTS = "variants"
PARTS = {
    "relay": (["relay/decisions.py", "relay/settle.py"], ["relay"]),
    "failures": (["consumer/decisions.py"], ["consumer", "inbox"]),
    "inbox": (["inbox/run_once.py"], ["inbox", "consumer"]),
    "effects": (["effects/once.py", "effects/record.py"], ["effects"]),
    "ledger": (["http/ledger.py"], ["http"]),
    "deadletters": (["operators/deadletters/*.py"], ["operators/deadletters"]),
}
"""The modules of a part, and the folders of `tests/unit` that run for it."""


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
            'pytest_add_cli_args = ["-p", "no:cacheprovider", "-q"]\n'
            f"pytest_add_cli_args_test_selection = {[f'tests/unit/{name}' for name in tests]}\n"
            "track_dependencies = false\n"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutation", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, VARIANTS, []], help="all if none is given")
    for part in parser.parse_args().parts or (VARIANTS, *PARTS):
        folder = Path(tempfile.mkdtemp(prefix=f"outboxkit-mutation-{part}-"))
        copy_into(folder)
        print(f"{part}: in {folder}", flush=True)
        if part == VARIANTS:
            if unnoticed := run_variants(folder):
                return unnoticed
            continue
        configure(folder, *PARTS[part])
        for command in ("run", "results"):
            if code := subprocess.call([sys.executable, "-m", "mutmut", command], cwd=folder):
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
