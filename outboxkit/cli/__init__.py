"""The command line: `outboxkit relay`, `outboxkit consume`, and the commands for operators."""

import sys
from typing import Annotated

import typer

import outboxkit
from outboxkit.cli.commands import Commands
from outboxkit.database import silence
from outboxkit.errors import ConfigurationError, OutboxkitError

app = typer.Typer(
    name="outboxkit",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 120},
    pretty_exceptions_enable=False,
    help="Transactional outbox and inbox: committed messages are sent, and their effects happen once.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 part of the work could not be done.",
)


def _show_version(is_given: bool) -> None:  # noqa: FBT001 - typer's signature
    if is_given:
        typer.echo(f"outboxkit {outboxkit.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    *,
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _explained(error: Exception) -> Exception:
    """The error itself, unless an argument is not text: databases and libraries fail on it in many ways."""
    not_text = next((each for each in sys.argv if any("\ud800" <= sign <= "\udfff" for sign in each)), None)
    if not_text is None or isinstance(error, OutboxkitError):
        return error
    return ConfigurationError(f"{not_text!r} is not valid UTF-8; arguments are texts in UTF-8")


def main() -> None:
    """Run the command line. Every error is one line and an exit code."""
    silence.announce(lambda text: typer.echo(f"outboxkit: {text}", err=True))
    try:
        app()
    except Exception as error:  # noqa: BLE001 - whatever it is becomes one line
        from outboxkit.runtime import compose  # noqa: PLC0415 - `outboxkit --help` does without

        text, code = compose.explain(_explained(error))
        if not compose.is_told(text):
            typer.secho(f"outboxkit: {text}", err=True, fg=typer.colors.RED if sys.stderr.isatty() else None)
        sys.exit(code)
