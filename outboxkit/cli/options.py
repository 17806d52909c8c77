"""Options of the commands: settings, and groups of options that several commands have."""

import inspect
import re
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from outboxkit.errors import ConfigurationError, EncodeError
from outboxkit.message import check_moment
from outboxkit.runtime import compose, environment, urls
from outboxkit.runtime.environment import FILE, read_secret, variable
from outboxkit.runtime.settings import SECRETS, Settings, load, parse_duration, unknown_variables
from outboxkit.runtime.settings import option as option_of

By = Annotated[str | None, typer.Option("--by", metavar="NAME", hidden=True)]
"""The name for the audit trail, if it is not that of the system's user."""
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of lines.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, only print the plan.")]
Rate = Annotated[float | None, typer.Option("--rate", metavar="NUMBER", min=0.01, help="Messages a second, at most.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Limit = Annotated[
    int,
    typer.Option("--limit", metavar="NUMBER", min=1, max=10_000, help="At most so many.", show_default=True),
]

Also = Annotated[
    list[str] | None,
    typer.Option("--also", metavar="URL|@FILE", help="A further database, such as the consumer's; may be repeated."),
]
Type = Annotated[str | None, typer.Option("--type", metavar="NAME", help="Only messages of this type.")]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only messages with this key.")]

OPTIONS = {
    **dict.fromkeys(("database_url", "broker_url"), "URL|@FILE"),
    **dict.fromkeys(("destination", "queue"), "NAME"),
    "bind": "EXCHANGE:KEY",
    "readers": "NAMES",
    "ignore": "TYPES",
    **dict.fromkeys(("declare", "ordered"), ""),
    **dict.fromkeys(("concurrency", "shards"), "NUMBER"),
    "admin_port": "PORT",
}
"""The settings that a command's help may list, with what it calls their values. It accepts the others, too."""
FOREIGN = ("bind", "declare", "readers", "ignore")
"""The settings for queues that other publishers fill, under a heading of their own."""
REPEATED = ("queue", "bind")
"""Options that may be options several times."""
VARIABLES = """Each setting is a variable or an option, also one that is not listed here:
OUTBOXKIT_DATABASE_URL, or --database-url. Keep passwords out of the command
line: a variable, or a file, --database-url @FILE."""
BY = "--by NAME puts a name into the audit trail instead of the system's user."


def duration(option: str, text: str) -> timedelta:
    """A duration such as `2h` or `7d`."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigurationError(f"{option} is {text!r}: {error}") from None


def point_in_time(option: str, text: str | None, now: datetime) -> datetime | None:
    """A moment in ISO 8601, in UTC without a zone, or a duration before now."""
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


def period(since: str | None, until: str | None, now: datetime) -> tuple[datetime | None, datetime | None]:
    """The moments of --since and --until. Raises ConfigurationError if they are exchanged, so that nothing matches."""
    begin, end = point_in_time("--since", since, now), point_in_time("--until", until, now)
    if begin is not None and end is not None and begin > end:
        raise ConfigurationError(f"--since {since} is later than --until {until}: exchange them")
    return begin, end


def moment_option(name: str, text: str) -> Any:
    """An option whose value `point_in_time` reads."""
    return typer.Option(name, metavar="WHEN", help=f"{text}: 2026-03-01T12:00Z, or 2h (ago).")


def url_of_option(option: str, value: str) -> str:
    """The URL of a database in an option's value, or in the file that it names: `@shop.url`."""
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


def with_options(
    *names: str, logs: bool = False, otherwise: Mapping[str, str] | None = None, unlisted: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a function into a typer command: each of its parameters becomes an option, an argument, or several options.

    The first parameter, if it is of `Settings`, becomes an option for each setting. If one was used, an error names it
    instead of the setting's variable. A parameter of a dataclass becomes an option for each of its fields,
    under the heading `PANEL`.

    Args:
        names: the settings that the help lists.
        logs: whether the command logs; others print warnings on standard error.
        otherwise: the values of settings that are set nowhere, in place of their defaults.
        unlisted: the parameter of a dataclass whose options the help does not list.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = dict(inspect.signature(command).parameters)
        takes_settings = next(iter(own.values())).annotation is Settings
        if takes_settings:
            own.pop(next(iter(own)))
        groups: dict[str, Any] = {name: each.annotation for name, each in own.items() if is_dataclass(each.annotation)}
        parameters = [each for name, each in own.items() if name not in groups]
        for name, kind in groups.items():
            parameters += _of_group(kind, hidden=name == unlisted)
        others = set(Settings.model_fields) - {each.name for each in parameters} if takes_settings else set()
        settable = [*names, *sorted(others.difference(names))]
        parameters += [_of_setting(name, hidden=name not in names) for name in settable]

        def run(**arguments: Any) -> None:
            options = {name: _value(name, arguments.pop(name)) for name in settable}
            options |= {name: value for name, value in (otherwise or {}).items() if not _is_set(name, options)}
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
        text = (inspect.getdoc(command) or "").replace("\n\nExample:", "\n\n\b\nExample:")  # its lines stay as they are
        notes = [text, *([VARIABLES] if takes_settings else [])]
        notes += [BY for each in parameters if each.name == "by"]
        run.__name__, run.__doc__ = command.__name__, "\n\n".join(notes)
        return run

    return decorate


def _is_set(name: str, options: dict[str, Any]) -> bool:
    variables = environment.variables()
    return options.get(name) is not None or variable(name) in variables or variable(name) + FILE in variables


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


def _of_setting(name: str, *, hidden: bool) -> inspect.Parameter:
    field, written, value = Settings.model_fields[name], option_of(name), OPTIONS.get(name, "VALUE")
    is_switch = not value
    if is_switch and field.default:
        written = f"{written}/--no-{name}"
    option = typer.Option(
        written,
        help=f"{field.description}{_default_of(field.default)}",
        show_default=False,
        metavar=value,
        rich_help_panel="Queues of other publishers" if name in FOREIGN else "Settings",
        hidden=hidden,
    )
    annotation: Any = bool | None if is_switch else list[str] | None if name in REPEATED else str | None
    return _parameter(name, None, Annotated[annotation, option])


def _default_of(value: object) -> str:
    is_plain = isinstance(value, int | str) and not isinstance(value, bool)
    return f" [default: {value}]" if is_plain else ""


def _of_group(kind: Any, *, hidden: bool) -> list[inspect.Parameter]:
    parameters = []
    for field in fields(kind):
        annotation: Any = field.type
        option = copy(annotation.__metadata__[0])
        option.rich_help_panel, option.hidden = kind.PANEL, option.hidden or hidden
        parameters.append(_parameter(field.name, field.default, Annotated[annotation.__origin__, option]))
    return parameters


def _parameter(name: str, default: object, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
