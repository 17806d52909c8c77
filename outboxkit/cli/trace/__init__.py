"""`outboxkit trace`: the life of a message, as one timeline from all that the tables know."""

import asyncio
import shutil
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from outboxkit import compose, process, urls
from outboxkit.cli.options import DATABASE, AsJson, with_settings
from outboxkit.cli.trace import show
from outboxkit.cli.trace.report import Report, report_of
from outboxkit.environment import read_secret
from outboxkit.errors import ConfigurationError
from outboxkit.lives import Clue, follow
from outboxkit.settings import Settings, parse_duration

NOTHING_KNOWN = 1
"""The exit code if no table knows a message."""

Id = Annotated[str | None, typer.Argument(metavar="ID", help="The message's id.")]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="All messages of this key.")]
Correlation = Annotated[
    str | None, typer.Option("--correlation", metavar="ID", help="All messages with this correlation id.")
]
Also = Annotated[
    list[str] | None,
    typer.Option("--also", metavar="URL", help="A further database, such as the consumer's; may be repeated."),
]
AlsoFile = Annotated[
    list[str] | None, typer.Option("--also-file", metavar="FILE", help="A file that holds such a URL; may be repeated.")
]
Search = Annotated[
    str,
    typer.Option("--search", metavar="DURATION", help="How long to look through each table without an index for it."),
]


@with_settings(*DATABASE)
def trace(
    settings: Settings,
    id_: Id = None,
    *,
    key: Key = None,
    correlation: Correlation = None,
    also: Also = None,
    also_file: AlsoFile = None,
    search: Search = "100ms",
    as_json: AsJson = False,
) -> None:
    """Show the life of a message: when it was added, why it waits, which handlers had it, and what it caused.

    It says what it cannot know, and which setting would have kept it. Exit 1 if no table knows the message.

    Example: outboxkit trace 019cbd26-8c00-7d3e-9c6c-2f7b1c3f4a55 --also-file consumer.url
    """
    if (count := sum(each is not None for each in (id_, key, correlation))) != 1:
        reason = "none was given" if count == 0 else f"{count} were given"
        raise ConfigurationError(f"exactly one of a message's ID, --key and --correlation is accepted; {reason}")
    clue = Clue(message_id=id_, key=key, correlation_id=correlation)
    databases = dict.fromkeys([compose.database_url(settings), *further(also or [], also_file or [])])
    report = asyncio.run(_report(clue, list(databases), _duration(search)))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        for line in show.story_lines(report, width=shutil.get_terminal_size().columns):
            typer.echo(line)
    if not report.messages:
        sys.exit(NOTHING_KNOWN)


def further(values: Sequence[str], files: Sequence[str], *, option: str = "--also") -> list[str]:
    """The URLs of further databases.

    Raises:
        ConfigurationError: one cannot be used; the text has no part that may be secret.
    """
    named = [(option, value) for value in values]
    named += [(f"{option}-file", read_secret(path, named=f"{option}-file")) for path in files]
    for name, value in named:
        try:
            urls.check_database(value)
        except ValueError as error:
            raise ConfigurationError(f"{name} cannot be used: {error}") from None
        if (file := urls.file_of(value)) is not None and not Path(file).exists():
            raise ConfigurationError(f"{name} cannot be used: there is no file {file!r}")
    return [value for _, value in named]


def _duration(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigurationError(f"--search is {text!r}: {error}") from None


async def _report(clue: Clue, databases: Sequence[str], patience: timedelta) -> Report:
    async with AsyncExitStack() as stack:
        engines = [process.engine(url, name="outboxkit trace", pool_size=1) for url in databases]
        for engine in engines:
            stack.push_async_callback(engine.dispose)
        return report_of(clue, await follow(engines, clue, patience=patience))
