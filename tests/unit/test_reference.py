"""The reference is complete, and says nothing of what does not exist."""

import inspect
import re
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Unpack

import pytest
import typer
from pydantic_core import PydanticUndefined

import outboxkit
from outboxkit import consumer, effects, errors, ids, inbox, outbox, relay, schema, tables, testing
from outboxkit.cli import app
from outboxkit.codec import upcasts
from outboxkit.consumer import decisions
from outboxkit.consumer.direct import DirectPublisher
from outboxkit.http import asgi, fastapi, flask, ledger, preconditions, problems, request, steps
from outboxkit.runtime import admin, compose, process, retention, settings
from outboxkit.runtime.settings import SECRETS, Settings, variable
from outboxkit.schema import migrations
from outboxkit.telemetry.catalogue import DEAD_REASONS

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
COMMANDS = typer.main.get_command(app).commands
WITH_SUBCOMMANDS = dict(COMMANDS) | {
    f"{group} {name}": command
    for group, found in COMMANDS.items()
    for name, command in getattr(found, "commands", {}).items()
}
_OF_FUNCTIONS = (
    *(asgi, effects, fastapi, flask, ids, inbox, ledger),
    *(migrations, outbox, preconditions, testing, upcasts),
)
MODULES = {module.__name__.rpartition(".")[2]: module for module in _OF_FUNCTIONS}
PARTS = {
    part.__name__.rpartition(".")[2]: part
    for part in (admin, compose, consumer, process, relay, retention, schema, settings)
}
PARTS |= {"problems": problems, "request": request, "steps": steps}
"""Modules of which the reference has what a program of one's own needs, and no more."""


def read(name: str) -> str:
    """A page, together with those that it is the cover of."""
    return "\n".join(path.read_text() for path in (REFERENCE / f"{name}.md", *sorted((REFERENCE / name).glob("*.md"))))


def section(page: str, title: str) -> str:
    """What stands under a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no heading {title!r}"
    return found[1]


def first_cells(text: str) -> list[str]:
    return re.findall(r"^\| `([^`]+)` ", text, re.MULTILINE)


def headings() -> dict[str, str]:
    """The names that the pages of the API have a heading for, with the signature that is written there."""
    found = re.findall(r"^#+ `([\w.]+)(\([^`]*\))?`$", read("api"), re.MULTILINE)
    return dict(found)


def functions_of(module: ModuleType) -> list[str]:
    """What a module defines, and what a package says is its own."""
    own = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__
    ]
    return [name for name in own if inspect.isfunction(getattr(module, name)) and not name.startswith("_")]


def resolve(name: str) -> object:
    module, _, rest = name.rpartition(".")
    return getattr((MODULES | PARTS)[module], rest) if module else getattr(outboxkit, rest)


@pytest.mark.parametrize("name", outboxkit.__all__)
def test_every_public_name_has_a_place(name: str) -> None:
    modules = re.findall(r"^# [\w ]+: `(\w+)`", read("api"), re.MULTILINE)
    assert name in {*headings(), *modules, *first_cells(section(read("api"), "Errors"))}


@pytest.mark.parametrize("module", MODULES)
def test_every_public_function_has_a_heading(module: str) -> None:
    documented = set(headings())
    for name in functions_of(MODULES[module]):
        assert f"{module}.{name}" in documented or name in documented, f"{module}.{name}"


@pytest.mark.parametrize("name", [name for name, signature in headings().items() if signature])
def test_signatures_are_the_ones_of_the_code(name: str) -> None:
    written = headings()[name]
    real = inspect.signature(resolve(name))
    plain = [
        parameter.replace(annotation=parameter.empty)
        for parameter in real.parameters.values()
        if parameter.name != "self"
    ]
    bare = real.replace(parameters=plain, return_annotation=real.empty)
    assert written.replace('"', "'") == str(bare)


@pytest.mark.parametrize("name", headings())
def test_nothing_is_documented_that_does_not_exist(name: str) -> None:
    resolve(name)


@pytest.mark.parametrize(
    ("found", "title"),
    [
        (outboxkit.Message, "`Message`"),
        (outboxkit.Retries, "`Retries(max_attempts=None, delays=(), never=())`"),
        (inbox.Wiring, "`inbox.Wiring`"),
        (inbox.Context, "`inbox.Context`"),
        (effects.Effect, "`effects.Effect`"),
        (relay.RelayPolicy, "`relay.RelayPolicy`"),
        (consumer.Concurrency, "`consumer.Concurrency`"),
        (consumer.ConsumerPolicy, "`consumer.ConsumerPolicy`"),
        (retention.Periods, "`retention.Periods`"),
    ],
)
def test_every_attribute_is_in_its_table(found: type, title: str) -> None:
    assert first_cells(section(read("api"), title)) == list(found.__dataclass_fields__)


@pytest.mark.parametrize(
    ("class_", "title"),
    [
        (DirectPublisher, "Without a broker: `direct.DirectPublisher`"),
    ],
)
def test_every_argument_is_in_its_table(class_: type, title: str) -> None:
    assert first_cells(section(read("api"), title)) == list(inspect.signature(class_).parameters)


@pytest.mark.parametrize("title", [title for title in headings() if headings()[title].endswith(", **options)")])
def test_every_option_of_a_message_is_in_its_table(title: str) -> None:
    assert inspect.signature(resolve(title)).parameters["options"].annotation == Unpack[outbox.Options]
    documented = first_cells(section(read("api"), "`outbox.add(session, event, **options)`"))
    assert documented == ["session", "event", *outbox.Options.__annotations__]


def test_every_option_of_the_http_door_is_in_its_table() -> None:
    """FastAPI has all of them; the others say what differs."""
    documented = first_cells(section(read("api"), "`fastapi.Idempotent`"))
    assert documented == ["session", "principal", *request.IdempotencyOptions.__annotations__]


def test_every_outcome_is_in_its_table() -> None:
    assert first_cells(section(read("api"), "`Outcome`")) == [str(outcome) for outcome in inbox.Outcome]


def test_every_error_is_in_its_table() -> None:
    defined = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.OutboxkitError)
    ]
    assert first_cells(section(read("api"), "Errors")) == defined


def test_every_command_has_a_heading() -> None:
    assert re.findall(r"^## outboxkit (\w+)$", read("cli"), re.MULTILINE) == list(COMMANDS)
    assert sorted(re.findall(r"^##+ outboxkit (.+)$", read("cli"), re.MULTILINE)) == sorted(WITH_SUBCOMMANDS)


def test_no_page_of_the_commands_names_an_option_that_does_not_exist() -> None:
    """The options are in the help of each command; the page has what the help does not say."""
    exist = {"--help", "--version"} | {
        option
        for command in WITH_SUBCOMMANDS.values()
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", read("cli"))) <= exist


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_runs(name: str) -> None:
    assert re.search(rf"^```sh\n(?:.*\n)*?outboxkit {name}\b", section(read("cli"), f"outboxkit {name}"), re.MULTILINE)


def test_every_setting_is_in_the_table_with_its_default() -> None:
    settings, in_files = read("settings").split("## Secrets in files")
    rows = dict(re.findall(r"^\| `(OUTBOXKIT_\w+)` \| (\S+) \|", settings, re.MULTILINE))
    assert sorted(first_cells(in_files)) == sorted(f"{variable(name)}_FILE" for name in SECRETS)
    assert rows == {variable(name): shown(field.default) for name, field in Settings.model_fields.items()}


def shown(default: object) -> str:
    if default is None or default is PydanticUndefined:
        return "none"
    if hasattr(default, "get_secret_value"):
        default = default.get_secret_value()
    if isinstance(default, bool):
        default = str(default).lower()
    if isinstance(default, tuple):
        return f"`{','.join(as_typed(step) for step in default)}`"
    return f"`{as_typed(default) if isinstance(default, timedelta) else default}`"


def as_typed(duration: timedelta) -> str:
    """A duration as it is written in a setting, in the largest unit that leaves a whole number."""
    milliseconds = round(duration / timedelta(milliseconds=1))
    units = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
    unit = next(unit for unit, size in units.items() if milliseconds % size == 0)
    return f"{milliseconds // units[unit]}{unit}"


def files_that_name_settings() -> list[Path]:
    """The pages, the package, and the files that people copy."""
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    copied = [path for name in ("workers", "examples") for path in (ROOT / name).rglob("*") if path.is_file()]
    readable = [path for path in copied if path.suffix in ("", ".md", ".py", ".yaml", ".env", ".service")]
    return [*pages, *(ROOT / "outboxkit").rglob("*.py"), *readable]


def test_no_page_and_no_file_names_a_setting_that_does_not_exist() -> None:
    known = {variable(name) for name in Settings.model_fields} | {f"{variable(name)}_FILE" for name in SECRETS}
    known |= {"OUTBOXKIT_TEST_DATABASE_URL", "OUTBOXKIT_TEST_BROKER_URL", "OUTBOXKIT_TEST_POSTGRESQL_BIN"}
    for path in files_that_name_settings():
        unknown = set(re.findall(r"\bOUTBOXKIT_[A-Z_]+[A-Z]\b", path.read_text())) - known
        assert not unknown, f"{path.relative_to(ROOT)}: {unknown}"


def test_every_table_is_named():
    named = set(re.findall(r"^(?:## |\| `)(outboxkit_\w+)|, `(outboxkit_\w+)` \|", read("tables"), re.MULTILINE))
    assert set(tables.metadata.tables) <= {name for pair in named for name in pair}


@pytest.mark.parametrize(
    "table", [tables.outbox, tables.inbox, tables.dead_letter, tables.published], ids=lambda table: table.name
)
def test_every_column_and_index_is_in_the_section_of_its_table(table: tables.Table) -> None:
    text = section(read("tables"), table.name)
    written = first_cells(text.split("| column | type | meaning |")[1].split("\n\n")[0])
    own = [
        column.name for column in table.columns if table is tables.outbox or column.name not in tables.outbox.columns
    ]
    assert [name for name in written if name in own] == own
    assert set(written) <= set(table.columns.keys())
    assert ("Its further columns are those of the outbox" in text) == (set(written) != set(table.columns.keys()))
    nullable = re.findall(r"^\| `(\w+)` \| [^|]*\bnull\b", text, re.MULTILINE)
    assert nullable == [name for name in written if table.columns[name].nullable]
    for index in table.indexes:
        assert f"`{index.name}`" in text


def test_every_reason_of_a_consumer_is_in_the_catalogue() -> None:
    """A page has a row for each reason of the catalogue: `tests/unit/telemetry/test_catalogue.py`."""
    named = re.search(r"reason: (.*?)\.\n", decisions.Decision.__doc__ or "", re.DOTALL)
    assert named is not None
    assert set(re.findall(r"`([^`]+)`", named[1])) == set(DEAD_REASONS["inbox"])


def test_the_tables_page_is_of_this_version() -> None:
    assert f"This is version {tables.SCHEMA_VERSION}." in read("tables")


def test_every_page_is_reached_from_the_index() -> None:
    """Or from the table of the API, which is. Decisions are a folder by number, and in the menu of the site."""
    linked = set(re.findall(r"\]\(([^)#]+)", (ROOT / "docs" / "index.md").read_text()))
    linked |= {
        f"reference/{name}" for name in re.findall(r"\]\(([^)#]+)", (ROOT / "docs/reference/api.md").read_text())
    }
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} - {"index.md"}
    assert {page for page in pages if not page.startswith("decisions/0")} <= linked


def test_the_changelog_has_this_version() -> None:
    assert f"## {outboxkit.__version__} " in (ROOT / "CHANGELOG.md").read_text()
