"""Options of the commands: settings, and groups of options that several commands have."""

import inspect
import re
import sys
from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from outboxkit.errors import ConfigurationError, EncodeError
from outboxkit.message import check_moment
from outboxkit.runtime import compose, urls
from outboxkit.runtime.environment import read_secret, variable
from outboxkit.runtime.settings import SECRETS, Settings, load, parse_duration, unknown_variables
from outboxkit.runtime.settings import option as option_of

By = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Your name, if it is not that of the system's user.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of lines.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, only print the plan.")]
Rate = Annotated[float | None, typer.Option("--rate", metavar="NUMBER", min=0.01, help="Messages a second, at most.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Limit = Annotated[
    int, typer.Option("--limit", metavar="NUMBER", min=1, max=10_000, help="The newest N.", show_default=True)
]

Type = Annotated[str | None, typer.Option("--type", metavar="NAME", help="Only messages of this type.")]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only messages with this key.")]
Until = Annotated[
    str | None, typer.Option("--until", metavar="WHEN", help="Only messages published before. As --since.")
]
Ids = Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="Only this message id; may be repeated.")]

OPTIONS = {
    **dict.fromkeys(("database_url", "broker_url"), "URL|@FILE"),
    **dict.fromkeys(("exchange", "destination", "queue"), "NAME"),
    "bind": "EXCHANGE:KEY",
    "retry_delays": "DURATIONS",
    "readers": "NAMES",
    **dict.fromkeys(("declare", "ordered"), ""),
    **dict.fromkeys(("batch_size", "concurrency", "shards", "max_attempts"), "NUMBER"),
    **dict.fromkeys(("publish_timeout", "inbox_retention", "published_retention", "dead_retention"), "DURATION"),
    "admin_port": "PORT",
}
"""The settings that are options, with what the help calls their values. Others are variables alone: few change them."""
REPEATED = ("queue", "bind")
"""Options that may be options several times."""
VARIABLES = """Settings are variables, too: OUTBOXKIT_DATABASE_URL, or …_URL_FILE if a file
holds it. Keep passwords out of the command line."""
ALONE = " Other settings, such as OUTBOXKIT_LOG_LEVEL, are variables alone: docs/reference/settings.md has all."


def duration(option: str, text: str) -> timedelta:
    """A duration such as `2h` or `7d`.

    Raises:
        ConfigurationError: it reads otherwise; the text names the option.
    """
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigurationError(f"{option} is {text!r}: {error}") from None


def point_in_time(option: str, text: str | None, now: datetime) -> datetime | None:
    """A moment in ISO 8601, in UTC without a zone, or a duration before now.

    Raises:
        ConfigurationError: it reads otherwise, or it is near the end of the calendar.
    """
    if text is None:
        return None
    try:
        return now - parse_duration(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        check_moment(option, moment)
    except (ValueError, EncodeError):
        accepted = "a moment such as 2026-03-01T12:00Z, or a duration such as 2h or 7d"
        raise ConfigurationError(f"{option} is {text!r}: {accepted} is accepted") from None
    return moment


def url_of_option(option: str, value: str) -> str:
    """The URL of a database in an option's value, or in the file that it names: `@shop.url`.

    Raises:
        ConfigurationError: it cannot be used; the text has no part that may be secret.
    """
    url = _from_file(option, value)
    try:
        urls.check_database(url)
    except ValueError as error:
        raise ConfigurationError(f"{option} cannot be used: {error}") from None
    if (file := urls.file_of(url)) is not None and not Path(file).exists():
        raise ConfigurationError(f"{option} cannot be used: there is no file {file!r}")
    return url


def _from_file(option: str, value: str) -> str:
    return read_secret(value[1:], named=option) if value.startswith("@") else value


def with_options(*names: str, logs: bool = False, **texts: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a function into a typer command: each of its parameters becomes an option, an argument, or several options.

    The first parameter, if it is of `Settings`, becomes an option for each of these settings. If one was used, an error
    names it instead of the setting's variable. A parameter of a dataclass becomes an option for each of its fields,
    under the heading `PANEL`.

    Args:
        names: the settings.
        logs: whether the command logs; others print warnings on standard error.
        texts: the help of settings that mean something else to this command than to others.
    """
    added = [_of_setting(name, texts.get(name)) for name in names]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own, groups = dict(inspect.signature(command).parameters), dict[str, Any]()
        takes_settings = next(iter(own.values())).annotation is Settings
        if takes_settings:
            own.pop(next(iter(own)))
        for name, parameter in list(own.items()):
            if is_dataclass(parameter.annotation):
                groups[own.pop(name).name] = parameter.annotation
        parameters = [*own.values(), *(each for kind in groups.values() for each in _of_group(kind)), *added]

        def run(**arguments: Any) -> None:
            options = {name: _value(name, arguments.pop(name)) for name in names}
            settings = [load(options)] if takes_settings else []
            if logs:
                compose.set_up(settings[0])
            else:
                for line in unknown_variables():
                    typer.echo(f"outboxkit: {line}", err=True)
            built = {
                name: kind(**{field.name: arguments.pop(field.name) for field in fields(kind)})
                for name, kind in groups.items()
            }
            try:
                command(*settings, **built, **arguments)
            except ConfigurationError as error:
                raise ConfigurationError(_as_typed(str(error), options)) from error.__cause__

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        text = inspect.getdoc(command)
        notes = f"\n\n{VARIABLES}{ALONE if logs else ''}" if names else ""
        run.__name__, run.__doc__ = command.__name__, f"{text}{notes}"
        return run

    return decorate


def ask_first(question: str, done: str, *, yes: bool) -> None:
    """Ask before something that cannot be taken back, unless `yes`. `done` is the participle of what is asked.

    Raises:
        ConfigurationError: nobody can answer, for standard input is not a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"standard input is not a terminal, and nothing was {done}: add --yes to go on without a question"
        )
    typer.confirm(question, abort=True)


def _value(name: str, value: Any) -> Any:
    if name in SECRETS and isinstance(value, str):
        return _from_file(option_of(name), value)
    return None if value == [] else value


def _as_typed(text: str, options: dict[str, Any]) -> str:
    for name, value in options.items():
        if value is not None:
            written, typed = (rf"{variable(name)}=false", f"--no-{name}") if value is False else (variable(name), None)
            text = re.sub(rf"\b{written}\b", typed or option_of(name), text)
    return text


def _of_setting(name: str, text: str | None) -> inspect.Parameter:
    field, written = Settings.model_fields[name], option_of(name)
    is_switch = not OPTIONS[name]
    if is_switch and field.default:
        written = f"{written}/--no-{name}"
    option = typer.Option(
        written, help=text or field.description, show_default=False, metavar=OPTIONS[name], rich_help_panel="Settings"
    )
    annotation: Any = bool | None if is_switch else list[str] | None if name in REPEATED else str | None
    return _parameter(name, None, Annotated[annotation, option])


def _of_group(kind: Any) -> list[inspect.Parameter]:
    parameters = []
    for field in fields(kind):
        annotation: Any = field.type
        option = copy(annotation.__metadata__[0])
        option.rich_help_panel = kind.PANEL
        parameters.append(_parameter(field.name, field.default, Annotated[annotation.__origin__, option]))
    return parameters


def _parameter(name: str, default: object, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
