"""`outboxkit dead`: its commands, and their page."""

import typer

from outboxkit.cli import dead
from tests.unit.cli.conftest import Run

COMMANDS = typer.main.get_command(dead.app).commands


def test_it_has_four_commands(run: Run):
    assert list(COMMANDS) == ["list", "show", "replay", "discard"]
    assert all(name in run("dead", "--help").out for name in COMMANDS)


def test_every_help_has_an_example(run: Run):
    for name in COMMANDS:
        assert f"Example: outboxkit dead {name}" in run("dead", name, "--help").out
