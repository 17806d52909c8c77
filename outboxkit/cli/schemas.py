"""`outboxkit schema export` and `outboxkit schema check`: the schemas of events as files, and what would break."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from outboxkit.cli.commands import group
from outboxkit.cli.options import AsJson
from outboxkit.cli.wording import print_json
from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import printable
from outboxkit.errors.figures import many
from outboxkit.events import declaration_of
from outboxkit.exit_codes import FAILED
from outboxkit.inbox.wiring import load_module
from outboxkit.operators import schemas

Modules = Annotated[
    list[str], typer.Argument(metavar="MODULE", help="Modules with events and handlers, e.g. shop.handlers.")
]
Dir = Annotated[Path, typer.Option("--dir", metavar="DIR", help="The folder of the committed schemas.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite schemas although a change breaks consumers.")]

FOLDER = Path("schemas")
LONGEST = 2_000
"""The longest line that is printed of a finding: a file that was edited may have anything in it."""


def export_schemas(modules: Modules, *, folder: Dir = FOLDER, force: Force = False) -> None:
    """Write the JSON Schema of each event, as DIR/TYPE/VERSION.json. Files of older versions stay as they are.

    Example: outboxkit schema export shop.events shop.handlers
    """
    events, committed = schemas.events_in(map(load_module, modules)), schemas.Folder(folder)
    breaking = [each for each in schemas.find_changes(events, committed) if each.breaking]
    if breaking and not force:
        _print(breaking)
        typer.echo("nothing was written. If no message of the exported version was ever sent: --force", err=True)
        sys.exit(FAILED)
    written = []
    for cls in events:
        declaration = declaration_of(cls)
        written += _write(committed.file(declaration.name, declaration.version), schemas.json_schema(cls))
    typer.echo("\n".join(written) or f"{folder} is up to date")


def check_schemas(modules: Modules, *, folder: Dir = FOLDER, as_json: AsJson = False) -> None:
    """Compare the events with the exported schemas; exit 1 if a change would break consumers, and say what to do.

    Example: outboxkit schema check shop.events shop.handlers
    """
    committed = schemas.Folder(folder)
    if not committed.types():
        raise ConfigurationError(f"{str(folder)!r} has no schemas: write them first, with `outboxkit schema export`")
    findings = list(schemas.find_changes(schemas.events_in(map(load_module, modules)), committed))
    breaking = [each for each in findings if each.breaking]
    if as_json:
        print_json({"breaking": len(breaking), "findings": [each._asdict() for each in findings]})
    else:
        _print(findings)
        if not breaking:
            again = "; export them again" if findings else ""
            typer.echo(f"no change breaks a consumer{again}")
        else:
            typer.echo(f"{many(len(breaking), 'change')} would break consumers")
    sys.exit(FAILED if breaking else 0)


def _print(findings: list[schemas.SchemaChange]) -> None:
    for event, text, cure, breaking in findings:
        line = f"{'BREAKING' if breaking else 'ok':<9}{printable(f'{event}: {text}', LONGEST)}"
        typer.echo(line + (f"\n{'':9}{printable(cure, LONGEST)}" if cure else ""))


def _write(path: Path, document: dict[str, Any]) -> list[str]:
    """Write a file, unless it has this content; returns a line about it."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    try:
        if path.exists() and path.read_text() == text:
            return []
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}") from error
    return [f"wrote {path}"]


app = group(
    "schema",
    "0 done, 1 a change breaks consumers, 2 wrong usage or settings.",
    export=export_schemas,
    check=check_schemas,
)
