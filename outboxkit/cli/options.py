"""Options of the commands: every setting that a command uses is an option of the same name."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import SecretStr

from outboxkit import settings
from outboxkit.settings import Settings, variable

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]

DATABASE = ("database_url",)
BROKER = ("broker_url", "exchange")
PROCESS = ("shutdown_timeout", "log_level", "log_format")


def with_settings(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn `command(chosen: Settings, ...)` into a typer command that has these settings as options, behind its own."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[1:]

        def with_options(**given: Any) -> None:
            options = {name: given.pop(name) for name in names}
            command(settings.load(options), **given)

        added = [_option(name) for name in names]
        with_options.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
        with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
        return with_options

    return decorate


def _option(name: str) -> inspect.Parameter:
    field = Settings.model_fields[name]
    flag = f"--{name.replace('_', '-')}"
    option = typer.Option(
        flag,
        help=f"{field.description} (env {variable(name)})",
        show_default=False,
        metavar=None if field.annotation is bool else _accepted(field.annotation),
    )
    kind = inspect.Parameter.KEYWORD_ONLY
    given: Any = bool | None if field.annotation is bool else str | None
    return inspect.Parameter(name, kind, default=None, annotation=Annotated[given, option])


def _accepted(kind: Any) -> str:
    """What stands for an option's value in the help."""
    if type(None) in get_args(kind):
        inner = next(one for one in get_args(kind) if one is not type(None))
        return "SECRET" if inner is SecretStr else _accepted(inner)
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    named = {int: "N", timedelta: "DURATION", SecretStr: "URL"}
    return named.get(kind, "DURATIONS" if get_origin(kind) is tuple else "NAME")
