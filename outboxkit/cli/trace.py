"""`outboxkit trace`: what the tables know of a message, as one timeline."""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Annotated

import typer

from outboxkit import ids
from outboxkit.cli.connections import connected
from outboxkit.cli.options import Also, AsJson, Limit, moment_option, point_in_time, url_of_option, with_options
from outboxkit.cli.wording import fold_width, folded, print_json
from outboxkit.errors import ConfigurationError
from outboxkit.errors.figures import many, printable_name, shell_word
from outboxkit.exit_codes import FAILED
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.trace import MessageTrace, Trace, TraceQuery, trace_messages
from outboxkit.runtime import compose, urls
from outboxkit.runtime.outage import utc_now
from outboxkit.runtime.settings import Settings

LABEL = 14

Id = Annotated[str | None, typer.Argument(metavar="ID", help="The message's id.")]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="All messages of this key.")]
Correlation = Annotated[
    str | None, typer.Option("--correlation", metavar="ID", help="All messages with this correlation id.")
]
Since = Annotated[str | None, moment_option("--since", "Only messages added since")]


@with_options()
def trace(
    settings: Settings,
    id_: Id = None,
    *,
    key: Key = None,
    correlation: Correlation = None,
    also: Also = None,
    limit: Limit = 50,
    since: Since = None,
    as_json: AsJson = False,
) -> None:
    """Show a message's way: when it was added, why it waits, which handlers had it, and what it caused.

    Of a key those that wait or are dead come first, then the newest. It says what it cannot know, and which setting
    would have kept it. Exit 1 if no table knows the message.

    Example: outboxkit trace 019cbd26-8c00-7d3e-9c6c-2f7b1c3f4a55 --also @consumer.url
    """
    if (count := sum(each is not None for each in (id_, key, correlation))) != 1:
        reason = "none was given" if count == 0 else f"{count} were given"
        raise ConfigurationError(f"exactly one of a message's ID, --key and --correlation is accepted; {reason}")
    query = TraceQuery(id_, key, correlation, limit, point_in_time("--since", since, utc_now()))
    first = compose.database_url(settings)
    others = [(url, value) for value in also or [] if (url := url_of_option("--also", value)) != first]
    answer = asyncio.run(_trace(query, list(dict.fromkeys((first, *(url for url, _ in others))))))
    if as_json:
        print_json(answer)
    else:
        options = {
            urls.shown(url): f" --database-url {shell_word(value) if value.startswith('@') else 'URL'}"
            for url, value in others
        }
        for line in trace_lines(answer, options, width=fold_width()):
            typer.echo(line)
    if not answer.messages:
        sys.exit(FAILED)


async def _trace(query: TraceQuery, databases: Sequence[str]) -> Trace:
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(connected(url, "trace", pool_size=1, only_reads=True)) for url in databases
        ]
        return await trace_messages(engines, query)


def trace_lines(answer: Trace, options: Mapping[str, str], *, width: int) -> Iterator[str]:
    """The whole answer, folded to the width. `options` name the databases of `--also` to a command."""
    for label, text in _parts(answer, options):
        inner = len(text) - len(text.lstrip())
        yield from folded(label.ljust(LABEL) + text, width, " " * (LABEL + inner + 2)) or [""]


def _parts(answer: Trace, options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    several = len(answer.databases) > 1
    places = {name: f" [{number}]" if several else "" for number, name in enumerate(answer.databases, 1)}
    for name, place in places.items():
        yield f"database{place}", printable_name(name)
    if not answer.messages:
        (what, value), *_ = answer.asked.items()
        name = f"{what.replace('_', ' ')} {printable_name(value)}"
        yield "found", f"{name} is not in what was read" if answer.not_read else f"nothing is known of {name}"
        if what == "message_id" and ids.time_before(value) is None:
            yield "", f"if it is a key: outboxkit trace --key {shell_word(value)}"
    for message in answer.messages:
        yield "", ""
        yield from _message(message, places, options)
    if answer.more:
        yield "", ""
        yield "more", f"{many(answer.more, 'message')} not shown: --limit shows more of them"
    yield from _list("not known", answer.unknown)
    yield from _list("not read", answer.not_read)


def _message(message: MessageTrace, places: Mapping[str, str], options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
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
            option = options.get(why.database, "") if cure.startswith("outboxkit ") else ""
            yield "", f"  cure{places.get(why.database, '')}: {printable_name(cure)}{option}"
    events = [
        f"{_written(each.at)}  {printable_name(each.text)}{places.get(each.database or '', '')}"
        for each in message.timeline
    ]
    yield from _list("timeline", events)
    caused = [f"{printable_name(each.type)} {printable_name(each.message_id)}: {each.state}" for each in message.caused]
    yield from _list("caused", caused)
    yield from _list("not known", message.unknown)


def _list(label: str, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, text in enumerate(texts):
        yield label * (number == 0), text


def _written(at: datetime | None) -> str:
    return "at some time" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"
