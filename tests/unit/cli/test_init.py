"""Every command: its help, its errors in one line, its exit codes."""

import re
from pathlib import Path

import pytest
import typer

from outboxkit.cli import app
from tests.unit.cli.conftest import Run

FOUND = typer.main.get_command(app).commands
LEAVES = sorted(
    f"{name} {inner}".strip() for name, command in FOUND.items() for inner in getattr(command, "commands", [""])
)
"""The same, with the commands of a group in its place."""
WITH_DATABASE = [("status",), ("prune",), ("migrate", "--check")]


@pytest.mark.parametrize("command", LEAVES)
def test_every_command_has_help_with_an_example(run: Run, command: str):
    ended = run(*command.split(), "--help")
    assert (ended.code, ended.err) == (0, "")
    assert "Example:" in ended.out
    assert f"outboxkit {command}" in ended.out.partition("Example:")[2]
    assert not re.search(r"\.\.\.\W*\.\.\.", ended.out), "an argument that may be repeated has its dots once"


@pytest.mark.parametrize("wrong", [("sing",), ("status", "--loud"), ("consume",), ("relay", "now")])
def test_wrong_usage_is_code_2(run: Run, wrong: tuple[str, ...]):
    ended = run(*wrong)
    assert (ended.code, ended.out) == (2, "")
    assert "Usage: " in ended.err


@pytest.mark.parametrize(
    "arguments", [("dead", "list", "--key"), ("dead", "replay", "--dry-run", "--type"), ("trace",)], ids=" ".join
)
def test_an_argument_that_is_not_utf_8_is_one_line_and_code_2(
    run: Run, postgresql_url: str, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
):
    monkeypatch.setenv("OUTBOXKIT_DATABASE_URL", postgresql_url)
    ended = run(*arguments, "a\udcff")
    assert (ended.code, ended.err) == (2, "outboxkit: 'a\\udcff' is not valid UTF-8; arguments are texts in UTF-8\n")


@pytest.mark.parametrize(
    "command", [each for each in (*WITH_DATABASE, ("migrate",)) if each != ("status",)], ids=" ".join
)
def test_a_database_that_refuses_is_one_line(run: Run, tmp_path: Path, command: tuple[str, ...]):
    ended = run(*command, "--database-url", f"sqlite:///{tmp_path}/no/such/folder.db")
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert "the database refuses the connection: OperationalError: unable to open database file; is the path" in line
