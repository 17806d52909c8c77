"""Options that several commands share: each is a setting of the same name."""

from typing import Annotated, Any

import typer

from outboxkit.settings import Settings, variable


def setting(name: str, **more: Any) -> Any:
    """The typer option of a setting, with the setting's own description."""
    field = Settings.model_fields[name]
    flag = f"--{name.replace('_', '-')}"
    return typer.Option(flag, help=f"{field.description} [env: {variable(name)}]", show_default=False, **more)


DatabaseUrl = Annotated[str | None, setting("database_url", metavar="URL")]
BrokerUrl = Annotated[str | None, setting("broker_url", metavar="URL")]
Exchange = Annotated[str | None, setting("exchange")]
LogLevel = Annotated[str | None, setting("log_level")]
LogFormat = Annotated[str | None, setting("log_format")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
