"""Settings as options."""

from pathlib import Path
from typing import Annotated, Any

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


@with_options("queue", "concurrency", "shards", "database_url", "broker_url")
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
    chosen, name, loud = invoke("x", "--queue", "billing", "--concurrency", "3", "--batch-size", "7", "--loud")
    assert (chosen.queue, chosen.concurrency) == ((ConsumedQueue("billing"),), 3)
    assert (name, loud, chosen.batch_size) == ("x", True, 7), "the help lists no option for a batch"


def test_a_command_takes_every_setting_as_an_option_and_lists_some():
    listed = {parameter.name for command in COMMANDS.values() for parameter in command.params if not hidden(parameter)}
    assert set(Settings.model_fields) & listed == set(OPTIONS)
    for name in ("relay", "consume", "run", "prune", "status"):
        assert {parameter.name for parameter in COMMANDS[name].params} >= set(Settings.model_fields)


def test_no_command_has_an_option_twice():
    for name, command in COMMANDS.items():
        options = [option for parameter in command.params for option in parameter.opts]
        assert len(options) == len(set(options)), name


def hidden(parameter: Any) -> bool:
    return bool(getattr(parameter, "hidden", False))


def test_the_options_of_settings_have_a_heading_of_their_own():
    shown = CliRunner().invoke(app, ["republish", "--help"], env={"COLUMNS": "80"}).output
    own, _, rest = shown.partition("\nMessages:\n")
    messages, _, of_settings = rest.partition("\nSettings:\n")
    assert "--to-queue" in own
    assert "--ids-file" in messages
    assert "--destination" in of_settings


@pytest.mark.parametrize("name", ["replay", "discard"])
def test_filters_are_listed_once_and_taken_by_all_commands_of_dead_letters(name: str):
    shown, elsewhere = (CliRunner().invoke(app, ["dead", each, "--help"]).output for each in (name, "list"))
    assert "--since WHEN" in elsewhere
    assert "--since WHEN" not in shown
    assert {"since", "by"} <= {parameter.name for parameter in COMMANDS[f"dead {name}"].params}
    assert "--by NAME puts a name into the audit trail" in shown


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
