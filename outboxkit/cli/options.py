"""Options of the commands: every setting that a command uses is an option of the same name."""

import inspect
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import SecretStr

from outboxkit.errors import ConfigurationError, EncodeError
from outboxkit.message import check_moment
from outboxkit.runtime import compose, urls
from outboxkit.runtime.environment import FILE, read_secret, variable
from outboxkit.runtime.settings import SECRETS, Settings, load, parse_duration, unknown_variables
from outboxkit.runtime.settings import option as option_of
from outboxkit.runtime.urls import ListenAddress

By = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Your name, if it is not that of the system's user.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]

DATABASE = ("database_url",)
BROKER = ("broker_url", "exchange")
ADMIN = ("admin_port",)
PROCESS = ("shutdown_timeout", "log_level", "log_format")
REPEATED = ("queue", "bind")
"""Options that may be given several times."""
LONGEST_CHOICES = 20
FOR_FEW = (
    "http_authorization",
    "http_secret",
    "bind",
    "readers",
    "cloudevents",
    "cloudevents_source",
    "max_message_bytes",
    *(name + FILE.lower() for name in SECRETS),
)
"""Options that the help does not list: those that few need, and secrets, since other users can see a command line."""
VARIABLES = """Settings are variables, too: OUTBOXKIT_DATABASE_URL, or …_URL_FILE if a file
holds it. Keep passwords out of the command line."""


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
    url = read_secret(value[1:], named=option) if value.startswith("@") else value
    try:
        urls.check_database(url)
    except ValueError as error:
        raise ConfigurationError(f"{option} cannot be used: {error}") from None
    if (file := urls.file_of(url)) is not None and not Path(file).exists():
        raise ConfigurationError(f"{option} cannot be used: there is no file {file!r}")
    return url


def with_settings(*names: str, **texts: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn `command(settings: Settings, ...)` into a typer command with these settings as options, behind its own.

    If an option was used, an error names it instead of the setting's variable. The help fits one screen: it lists no
    option of `FOR_FEW`, and says once that each option is a variable, too. `texts` are the help of settings that mean
    something else to this command than to others.
    """
    added = [option for name in names for option in _options(name, texts.get(name))]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[1:]

        def with_options(**arguments: Any) -> None:
            options = {option.name: _unless_empty(arguments.pop(option.name)) for option in added}
            try:
                settings = load(options)
                _begin(settings, logs="log_format" in names)
                command(settings, **arguments)
            except ConfigurationError as error:
                raise ConfigurationError(_as_typed(str(error), options)) from error.__cause__

        with_options.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
        with_options.__name__, with_options.__doc__ = command.__name__, f"{inspect.getdoc(command)}\n\n{VARIABLES}"
        return with_options

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


def _unless_empty(value: Any) -> Any:
    return None if value == [] else value


def _begin(settings: Settings, *, logs: bool) -> None:
    """Begin to log, if the command does. Others print warnings on standard error."""
    if logs:
        compose.set_up(settings)
        return
    for line in unknown_variables():
        typer.echo(f"outboxkit: {line}", err=True)


def _as_typed(text: str, options: dict[str, Any]) -> str:
    for name, value in options.items():
        if value is not None:
            written, typed = (rf"{variable(name)}=false", f"--no-{name}") if value is False else (variable(name), None)
            text = re.sub(rf"\b{written}\b", typed or option_of(name), text)
    return text


def _options(name: str, text: str | None = None) -> list[inspect.Parameter]:
    field = Settings.model_fields[name]
    options = [_option(name, field.annotation, text or str(field.description))]
    if name in SECRETS:
        options.append(_option(name + FILE.lower(), "FILE", f"a file that holds the value of {option_of(name)}"))
    return options


def _option(name: str, kind: Any, text: str) -> inspect.Parameter:
    hidden, metavar = name in FOR_FEW, "NAME" if name in REPEATED else _accepted(kind)
    written = (
        f"{option_of(name)}/--no-{name}" if kind is bool and Settings.model_fields[name].default else option_of(name)
    )
    option = typer.Option(written, help=text, show_default=False, metavar=metavar, hidden=hidden)
    annotation: Any = bool | None if kind is bool else list[str] | None if name in REPEATED else str | None
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=None, annotation=Annotated[annotation, option])


def _accepted(kind: Any) -> str:
    """The name of an option's value in the help; empty for a switch."""
    if isinstance(kind, str):
        return kind
    if get_origin(kind) is Annotated:
        return _accepted(get_args(kind)[0])
    if type(None) in get_args(kind):
        inner = next(one for one in get_args(kind) if one is not type(None))
        return "SECRET" if inner is SecretStr else _accepted(inner)
    if get_origin(kind) is Literal:
        return choices if len(choices := "|".join(get_args(kind))) < LONGEST_CHOICES else "NAME"
    named = {bool: "", ListenAddress: "PORT", int: "NUMBER", timedelta: "DURATION", SecretStr: "URL"}
    if get_origin(kind) is tuple:
        return "NAMES" if str in get_args(kind) else "DURATIONS"
    return named.get(kind, "NAME")
