"""Settings as options."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from outboxkit import ConfigurationError
from outboxkit.cli import app
from outboxkit.cli.options import FOR_FEW, with_settings
from outboxkit.runtime.settings import Settings, load
from outboxkit.runtime.sources import ConsumedQueue

FOUND = typer.main.get_command(app).commands
COMMANDS = {
    f"{name} {inner}".strip(): leaf
    for name, command in FOUND.items()
    for inner, leaf in getattr(command, "commands", {"": command}).items()
}
"""Every command, those of a group by both names."""


@pytest.fixture(autouse=True)
def _database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOXKIT_DATABASE_URL", "sqlite:///shop.db")


SEEN: list[tuple[Settings, str, bool]] = []


@with_settings("queue", "publish_timeout", "max_attempts")
def command(chosen: Settings, name: str, *, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
    """Do something.

    Example: outboxkit command x
    """
    SEEN.append((chosen, name, loud))


def invoke(*arguments: str) -> tuple[Settings, str, bool]:
    single = typer.Typer()
    single.command()(command)
    result = CliRunner().invoke(single, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return SEEN.pop()


def test_a_setting_is_an_option_of_the_same_name():
    chosen, name, loud = invoke(
        "x", "--queue", "billing", "--publish-timeout", "500ms", "--max-attempts", "3", "--loud"
    )
    assert (chosen.queue, chosen.publish_timeout, chosen.max_attempts) == (
        (ConsumedQueue("billing"),),
        timedelta(milliseconds=500),
        3,
    )
    assert (name, loud) == ("x", True)


def test_the_option_wins_over_the_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OUTBOXKIT_QUEUE", "from-the-environment")
    assert invoke("x")[0].queue == (ConsumedQueue("from-the-environment"),)
    assert invoke("x", "--queue", "option")[0].queue == (ConsumedQueue("option"),)


def test_a_bad_option_is_named_as_it_was_typed():
    with pytest.raises(ConfigurationError, match="--max-attempts is 'many': "):
        invoke("x", "--max-attempts", "many")


def test_options_that_the_help_does_not_list_are_taken(tmp_path: Path):
    secrets = [each for command in COMMANDS.values() for each in command.params if each.name in FOR_FEW]
    assert {each.name for each in secrets} == set(FOR_FEW)
    assert all(each.hidden for each in secrets)
    (tmp_path / "url").write_text("sqlite:///elsewhere.db")
    assert (
        load({"database_url_file": str(tmp_path / "url")}).database_url.get_secret_value() == "sqlite:///elsewhere.db"
    )


def test_what_reads_the_database_can_be_told_where_it_is():
    for name in set(COMMANDS) - {"demo", "schema export", "schema check", "reconcile"}:  # which has two databases
        assert "database_url" in {parameter.name for parameter in COMMANDS[name].params}, name
