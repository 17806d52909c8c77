"""What a start costs, as the libraries that it imports: each command imports what it uses, no worker Alembic."""

import subprocess
import sys

import pytest

import outboxkit
from outboxkit.cli.commands import LISTED, Listing
from tests.support.pages import ROOT

LIBRARIES = {
    *("aio_pika", "aiosqlite", "alembic", "attrs", "fastapi", "flask", "httpx", "msgspec", "psycopg", "pydantic"),
    *("sqlalchemy", "structlog", "tenacity", "typer", "uuid_utils"),
}
SETTINGS = {"msgspec", "pydantic", "sqlalchemy"}
COMMAND = {*SETTINGS, "typer"}
SERVICE = {*SETTINGS, "structlog", "tenacity"}

RUN = """
import sys
from outboxkit.cli import main
sys.argv = ["outboxkit", *sys.argv[1:]]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
"""
PROGRAM = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("program", sys.argv[1])
spec.loader.exec_module(importlib.util.module_from_spec(spec))
"""
STARTS = {
    "import outboxkit": ("import outboxkit", set()),
    "every public name": ("from outboxkit import *", {"msgspec", "sqlalchemy", "uuid_utils"}),
    "--help": (RUN, {"typer"}),
    "relay --help": (RUN, {*SERVICE, "psycopg", "typer", "uuid_utils"}),
    "status": (RUN, {*SERVICE, "aiosqlite", "typer", "uuid_utils"}),
    "workers/relay.py": (PROGRAM, {"msgspec", "sqlalchemy", "uuid_utils"}),
}
STARTS_BY_NIGHT = {
    "consume --help": (RUN, {*SERVICE, "psycopg", "typer", "uuid_utils"}),
    "trace --help": (RUN, {*SERVICE, "typer", "uuid_utils"}),
    "workers/consumer.py": (PROGRAM, {"msgspec", "sqlalchemy", "uuid_utils"}),
    "workers/retention.py": (PROGRAM, {"msgspec", "sqlalchemy", "uuid_utils"}),
    "migrate --help": (RUN, {*COMMAND, "alembic", "uuid_utils"}),
    "prune": (RUN, {*SERVICE, "aiosqlite", "typer", "uuid_utils"}),
    "republish --help": (RUN, {*SERVICE, "typer", "uuid_utils"}),
    "dead replay --help": (RUN, {*SERVICE, "typer", "uuid_utils"}),
    "demo --help": (RUN, {*COMMAND, "alembic", "uuid_utils"}),
}


@pytest.mark.parametrize(
    "start", [*STARTS, *(pytest.param(start, marks=pytest.mark.night) for start in STARTS_BY_NIGHT)]
)
def test_a_start_imports_what_it_uses(start: str, database_url: str):
    program, libraries = (STARTS | STARTS_BY_NIGHT)[start]
    told = program + "\nprint(); print('imported', *{name.partition('.')[0] for name in sys.modules})"
    ended = subprocess.run(
        [sys.executable, "-c", f"import sys\n{told}", *start.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"OUTBOXKIT_DATABASE_URL": database_url, "PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 0, ended.stderr
    imported = LIBRARIES & set(ended.stdout.splitlines()[-1].split())
    assert sorted(imported) == sorted(libraries)


def test_the_list_of_commands_says_what_each_says_of_itself():
    for name, (_, text) in LISTED.items():
        assert " ".join(Listing()[name].help.split()).startswith(text.removesuffix(".")), name


def test_what_is_public_is_listed_before_it_is_used():
    assert set(outboxkit.__all__) <= set(dir(outboxkit))
