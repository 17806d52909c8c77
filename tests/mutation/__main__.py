"""Change one thing at a time in a module, and run its unit tests: `make mutation ARGS="relay"`.

mutmut works in a copy of the repository, which is kept, so that `mutmut show NAME` and `mutmut browse` work there.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = {
    "relay": (["relay/decisions.py", "relay/settle.py"], ["relay"]),
    "failures": (["consumer/decisions.py"], ["consumer", "inbox"]),
    "inbox": (["inbox/run_once.py"], ["inbox", "consumer"]),
    "effects": (["effects/once.py", "effects/record.py"], ["effects"]),
    "ledger": (["http/ledger.py"], ["http"]),
    "deadletters": (["operators/deadletters/*.py"], ["operators/deadletters"]),
}
"""The modules of a part, and the folders of `tests/unit` that run for it."""


def copy_into(folder: Path, modules: list[str], tests: list[str]) -> None:
    """The repository as git knows it, with a configuration of mutmut."""
    for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
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
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all if none is given")
    for part in parser.parse_args().parts or PARTS:
        folder = Path(tempfile.mkdtemp(prefix=f"outboxkit-mutation-{part}-"))
        copy_into(folder, *PARTS[part])
        print(f"{part}: in {folder}", flush=True)
        for command in ("run", "results"):
            if code := subprocess.call([sys.executable, "-m", "mutmut", command], cwd=folder):
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
