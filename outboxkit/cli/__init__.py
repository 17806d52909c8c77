"""The command line: `outboxkit relay`, `outboxkit consume`, and what an operator needs around them."""

import sys
from typing import Annotated

import typer

import outboxkit
from outboxkit.cli.listing import Commands
from outboxkit.errors import BrokerUnavailable, ConfigurationError, OutboxkitError

app = typer.Typer(
    name="outboxkit",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 120},
    pretty_exceptions_enable=False,
    help="Transactional outbox and inbox: what is committed is sent, and its effects happen once.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 part of the work could not be done.",
)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer's signature
    if wanted:
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


def main() -> None:
    """Run the command line; every error of outboxkit and of the database is one line and an exit code."""
    try:
        app()
    except ConfigurationError as error:
        _fail(str(error), 2)
    except BrokerUnavailable as error:
        _fail(f"the broker is away: {error}", 1)
    except OutboxkitError as error:
        _fail(str(error), 1)
    except Exception as error:
        text = _trouble_of_database(error)
        if text is None:
            raise
        _fail(text, 1)


def _trouble_of_database(error: Exception) -> str | None:
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415 - `outboxkit --help` does without

    from outboxkit.outage import first_line, what_is_away  # noqa: PLC0415

    if not isinstance(error, DBAPIError):
        return None
    return f"the database {'is away' if what_is_away(error) else 'refused'}: {first_line(error)}"


def _fail(text: str, code: int) -> None:
    typer.secho(f"outboxkit: {text}", err=True, fg=typer.colors.RED if sys.stderr.isatty() else None)
    sys.exit(code)
