"""`outboxkit dead`: its commands, and their page."""

import re

import typer

from outboxkit.cli import dead
from tests.pages import ROOT
from tests.unit.cli.conftest import Run

COMMANDS = typer.main.get_command(dead.app).commands
PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text()


def test_it_has_four_commands(run: Run):
    assert list(COMMANDS) == ["list", "show", "replay", "discard"]
    assert all(name in run("dead", "--help").out for name in COMMANDS)


def test_every_command_is_in_the_reference_with_all_its_options():
    for name, command in COMMANDS.items():
        found = re.search(rf"^### outboxkit dead {name}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
        assert found is not None, name
        options = {one for parameter in command.params for one in parameter.opts if one.startswith("--")} - {"--help"}
        assert set(re.findall(r"^\| `(--[a-z-]+)` ", found[1], re.MULTILINE)) == options, name


def test_every_help_has_an_example(run: Run):
    for name in COMMANDS:
        assert f"Example: outboxkit dead {name}" in run("dead", name, "--help").out
