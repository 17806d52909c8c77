"""Settings as options."""

import re
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


def test_an_option_may_be_given_several_times():
    queues = invoke("x", "--queue", "billing", "--queue", "mails:2,news")[0].queue
    assert queues == (ConsumedQueue("billing"), ConsumedQueue("mails", 2), ConsumedQueue("news"))
    with pytest.raises(ConfigurationError, match="--queue is 'billing,billing:2': 'billing' is there twice"):
        invoke("x", "--queue", "billing", "--queue", "billing:2")


def test_what_is_not_given_is_the_default():
    assert invoke("x")[0] == Settings()


def test_a_bad_option_is_named_as_it_was_typed():
    with pytest.raises(ConfigurationError, match="--max-attempts is 'many': "):
        invoke("x", "--max-attempts", "many")


def test_the_function_keeps_its_name_and_its_text():
    assert command.__name__ == "command"
    assert command.__doc__ is not None
    assert "Example" in command.__doc__


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_an_option_of_a_setting_is_named_as_its_variable_which_the_help_says_once(name: str):
    named = [parameter for parameter in COMMANDS[name].params if parameter.name in Settings.model_fields]
    for parameter in named:
        assert parameter.opts == [f"--{parameter.name.replace('_', '-')}"]
    assert ("OUTBOXKIT_DATABASE_URL" in COMMANDS[name].help) == bool(named)


@pytest.mark.parametrize("name", ["relay", "consume"])
def test_the_help_of_a_worker_fits_one_screen(name: str):
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "80"}).output
    assert 20 < len(shown.splitlines()) <= 33
    assert max(map(len, shown.splitlines())) <= 80


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


def test_the_help_says_what_an_option_takes_in_plain_words():
    taken = {parameter.name: parameter.metavar for command in COMMANDS.values() for parameter in command.params}
    assert {taken[name] for name in ("published_retention", "dead_retention", "publish_timeout")} == {"DURATION"}
    assert (taken["batch_size"], taken["orders"], taken["limit"]) == ("NUMBER", "NUMBER", "NUMBER")
    assert (taken["database_url"], taken["http_secret"], taken["http_secret_file"]) == ("URL", "SECRET", "FILE")
    for arguments in (["demo", "--help"], ["relay", "--help"], ["consume", "--help"], ["--help"]):
        shown = CliRunner().invoke(app, arguments).output
        assert not re.search(r"<(bool|int|str|list|float)", shown)
