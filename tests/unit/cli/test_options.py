"""Settings as options."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from outboxkit import ConfigurationError
from outboxkit.cli import app
from outboxkit.cli.options import OPTIONS, with_options
from outboxkit.runtime.settings import Settings
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


@with_options("queue", "publish_timeout", "max_attempts", "database_url", "broker_url")
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


def test_every_setting_that_is_an_option_is_one_of_a_command():
    used = {parameter.name for command in COMMANDS.values() for parameter in command.params}
    assert set(OPTIONS) <= used
    assert not set(Settings.model_fields) & used - set(OPTIONS)


def test_the_options_of_settings_have_a_heading_of_their_own():
    shown = CliRunner().invoke(app, ["replay", "--help"], env={"COLUMNS": "80"}).output
    own, _, rest = shown.partition("\nMessages:\n")
    messages, _, of_settings = rest.partition("\nSettings:\n")
    assert "--to-queue" in own
    assert "--ids-file" in messages
    assert "--database-url" in of_settings


@pytest.mark.parametrize("option", ["--database-url", "--broker-url"])
def test_a_url_may_stand_in_a_file_that_the_option_names(option: str, tmp_path: Path):
    (tmp_path / "url").write_text("sqlite:///elsewhere.db\n" if option == "--database-url" else "amqp://mq/\n")
    chosen = invoke("x", option, f"@{tmp_path / 'url'}")[0]
    url = chosen.database_url if option == "--database-url" else chosen.broker_url
    assert url.get_secret_value() == (tmp_path / "url").read_text().strip()
    with pytest.raises(ConfigurationError, match=f"{option} is '/none': it cannot be read"):
        invoke("x", option, "@/none")
    (tmp_path / "url").write_text("mysql://u:hunter2@db/x\n")
    with pytest.raises(ConfigurationError, match=f"{option} cannot be used") as raised:
        invoke("x", option, f"@{tmp_path / 'url'}")
    assert "hunter2" not in str(raised.value)


def test_what_reads_the_database_can_be_told_where_it_is():
    for name in set(COMMANDS) - {"demo", "schema export", "schema check", "reconcile"}:  # which has two databases
        assert "database_url" in {parameter.name for parameter in COMMANDS[name].params}, name
