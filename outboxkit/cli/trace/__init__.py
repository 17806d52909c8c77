"""`outboxkit trace`: the life of a message, as one timeline from all that the tables know."""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from outboxkit import ids
from outboxkit.cli.options import DATABASE, AsJson, duration, with_settings
from outboxkit.cli.trace.report import Caused, Happened, Report, Traced, report_of
from outboxkit.cli.wording import fold_width, folded, many, printable_name
from outboxkit.errors import ConfigurationError
from outboxkit.errors.wording import shell_word
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.trace import ENOUGH, Clue, follow
from outboxkit.runtime import compose, process, urls
from outboxkit.runtime.environment import read_secret
from outboxkit.runtime.settings import Settings

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
    report = asyncio.run(_report(clue, list(databases), duration("--search", search)))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        for line in story_lines(report, width=fold_width()):
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


async def _report(clue: Clue, databases: Sequence[str], patience: timedelta) -> Report:
    async with AsyncExitStack() as stack:
        engines = [process.engine(url, name="outboxkit trace", pool_size=1) for url in databases]
        for engine in engines:
            stack.push_async_callback(engine.dispose)
        return report_of(clue, await follow(engines, clue, patience=patience))


LABEL = 14


def story_lines(report: Report, *, width: int) -> Iterator[str]:
    """The whole report, folded to the width."""
    for label, text in _parts(report):
        start = label.ljust(LABEL)
        inner = len(text) - len(text.lstrip())
        yield from folded(start + text, width, " " * (LABEL + inner + 2)) or [""]


def _parts(report: Report) -> Iterator[tuple[str, str]]:
    places = _places(report)
    for name, place in places.items():
        yield f"database{place}", printable_name(name)
    if not report.messages:
        (what, value), *_ = report.asked.items()
        name = f"{what.replace('_', ' ')} {printable_name(value)}"
        yield "found", f"{name} is not in what was read" if report.not_searched else f"nothing is known of {name}"
        if what == "message_id" and ids.time_before(value) is None:
            yield "", f"if it is a key: outboxkit trace --key {shell_word(value)}"
    for message in report.messages:
        yield "", ""
        yield from _message(message, places)
    if report.more:
        yield "", ""
        yield (
            "more",
            f"{many(report.more, 'message')} not shown: --json has no more of them either; trace one by its id",
        )
    yield from _list("not known", report.unknown)
    yield from _list("not searched", report.not_searched)
    if any(ENOUGH not in each for each in report.not_searched):
        yield "", "--search 10s looks longer"


def _message(message: Traced, places: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    yield "message", printable_name(message.message_id)
    key = f", key {printable_name(message.key)}" if message.key is not None else ""
    elsewhere = message.destination not in (None, DEFAULT_DESTINATION)
    to = f", to {printable_name(message.destination)}" if elsewhere else ""
    queue = f", for queue {printable_name(message.queue)} alone" if message.queue else ""
    yield "type", f"{printable_name(message.type)}{key}{to}{queue}"
    for label, value in (
        ("correlation", message.correlation_id),
        ("caused by", message.causation_id),
        ("trace", message.trace_id),
    ):
        if value is not None:
            yield label, printable_name(value)
    some = message.handled_by and message.state == "not handled"
    yield "state", f"handled by {message.handled_by} of {message.handlers} handlers" if some else message.state
    for number, why in enumerate(message.why):
        yield "why" * (number == 0), printable_name(why.text) + places.get(why.database, "")
        for cure in why.cure:
            yield "", f"  cure: {printable_name(cure)}"
    yield from _list("timeline", [_moment(each, places) for each in message.timeline])
    yield from _list("caused", list(_tree(message.caused, "")))
    yield from _list("not known", message.unknown)


def _list(label: str, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, text in enumerate(texts):
        yield label * (number == 0), text


def _places(report: Report) -> dict[str, str]:
    """A number for each database behind what it says, if there are several."""
    several = len(report.databases) > 1
    return {name: f" [{number}]" if several else "" for number, name in enumerate(report.databases, 1)}


def _moment(each: Happened, places: Mapping[str, str]) -> str:
    return f"{_written(each.at)}  {printable_name(each.text)}{places.get(each.database or '', '')}"


def _written(at: datetime | None) -> str:
    return "at some time" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"


def _tree(messages: Sequence[Caused], before: str) -> Iterator[str]:
    for number, each in enumerate(messages, 1):
        is_last = number == len(messages)
        branch, below = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        yield f"{before}{branch}{printable_name(each.type)} {printable_name(each.message_id)}: {each.state}"
        yield from _tree(each.caused, before + below)
