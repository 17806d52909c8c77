"""`outboxkit reconcile`: the proof that one service has handled what the other published."""

import asyncio
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, ClassVar

import typer

from outboxkit.cli.connections import connected
from outboxkit.cli.options import AsJson, Until, duration, point_in_time, url_of_option, with_options
from outboxkit.cli.wording import fold_width, folded, iso, print_json, progress
from outboxkit.errors import ConfigurationError
from outboxkit.errors.wording import in_utc, many, number, printable_name, shell_word, span
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.reconciliation import HandlerTally, Reconciled, Terms, reconcile_services
from outboxkit.runtime import compose, urls
from outboxkit.runtime.outage import utc_now
from outboxkit.runtime.settings import load

MISSING, NOTHING_PROVEN = 1, 3
"""Exit codes: a message is missing; no message is kept, so that nothing was proven."""
LABEL = 14
FEW = 5
"""Ids of a handler that a command has as options; if there are more, it names a file."""
LEFT_OUT = "handled messages that the producer does not know, as after a failover: docs/how-to/fail-over.md"
COUNTS = ("expected", "processed", "dead", "waiting", "missing")

Producer = Annotated[
    str | None,
    typer.Option(
        "--producer",
        metavar="URL|@FILE",
        help="The database of the service that published; else OUTBOXKIT_DATABASE_URL.",
    ),
]
Consumer = Annotated[
    str | None,
    typer.Option(
        "--consumer", metavar="URL|@FILE", help="The database of the service that handles; else OUTBOXKIT_DATABASE_URL."
    ),
]
Since = Annotated[
    str,
    typer.Option("--since", metavar="WHEN", help="Messages published since: 2026-03-01T12:00Z, or 1d for a day ago."),
]
Margin = Annotated[
    str, typer.Option("--margin", metavar="DURATION", help="Messages published so shortly ago may be in flight.")
]
Handlers = Annotated[
    list[str] | None, typer.Option("--handler", metavar="NAME", help="Only this handler; may be repeated.")
]
Types = Annotated[
    list[str] | None, typer.Option("--type", metavar="NAME", help="Only messages of this type; may be repeated.")
]
Destination = Annotated[
    str, typer.Option("--destination", metavar="NAME", help="Messages that went to this destination.")
]


@dataclass(frozen=True, slots=True)
class Period:
    """The options that select messages and handlers."""

    PANEL: ClassVar = "Messages"
    since: Since = "1d"
    until: Until = None
    margin: Margin = "1m"
    handlers: Handlers = None
    types: Types = None
    destination_: Destination = DEFAULT_DESTINATION

    def terms(self) -> Terms:
        """The terms.

        Raises:
            ConfigurationError: a time cannot be used.
        """
        now = utc_now()
        first, last = point_in_time("--since", self.since, now), point_in_time("--until", self.until, now)
        if first is not None and first >= min(last or now, now):
            raise ConfigurationError(
                f"--since is {self.since}: a past time before --until is accepted, such as 1d or 2026-03-01T12:00Z"
            )
        return Terms(
            since=first or now,
            until=last or now + timedelta(days=1),  # the database's clock may be ahead; it ends at its own present time
            margin=duration("--margin", self.margin),
            handlers=tuple(dict.fromkeys(self.handlers or ())),
            types=tuple(dict.fromkeys(self.types or ())),
            destination=self.destination_,
        )


def _file_of(tally: HandlerTally) -> str | None:
    """A new file with the ids that a handler lacks; None if they are few."""
    if tally.missing <= FEW:
        return None
    try:
        with tempfile.NamedTemporaryFile("w", prefix="outboxkit-missing-", suffix=".txt", delete=False) as file:
            file.writelines(f"{id_}\n" for id_ in tally.missing_ids)
    except OSError as error:
        raise ConfigurationError(
            f"the file of the missing ids cannot be written ({error.strerror}): name a folder in TMPDIR"
        ) from None
    return file.name


@with_options()
def reconcile(period: Period, *, producer: Producer = None, consumer: Consumer = None, as_json: AsJson = False) -> None:
    """Prove that what one service published the other has handled; exit 1 if a message is missing, or had another's id.

    Needs OUTBOXKIT_PUBLISHED_RETENTION at the producer's relay. It prints the commands that replay what is missing.

    Example: outboxkit reconcile --producer @shop.url --consumer @billing.url --since 1d
    """
    terms = period.terms()
    both = [
        compose.database_url(load()) if value is None else url_of_option(option, value)
        for option, value in (("--producer", producer), ("--consumer", consumer))
    ]
    result = asyncio.run(_reconciled(both, terms))
    files = {tally.handler: _file_of(tally) for tally in result.handlers}
    of = producer if producer is None or producer.startswith("@") else ""
    commands = {each.handler: _replay(each, result, terms, files[each.handler], of) for each in result.handlers}
    advice = list(_advice(result, of))
    addresses = {"producer": urls.shown(both[0]), "consumer": urls.shown(both[1])}
    if as_json:
        print_json(addresses | _document(result, terms, files, commands) | {"advice": advice})
    else:
        for label, line in _lines(result, terms, addresses, fold_width() - LABEL, advice, commands):
            typer.echo((label.ljust(LABEL) + line) if label or line else "")
    if result.missing or result.ambiguous_ids:
        sys.exit(MISSING)
    if not _compared(result):
        sys.exit(NOTHING_PROVEN)


async def _reconciled(both: list[str], terms: Terms) -> Reconciled:
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(connected(url, "reconcile", pool_size=1)) for url in dict.fromkeys(both)
        ]
        show = stack.enter_context(progress("compared"))
        return await reconcile_services(
            engines[0], engines[-1], terms, progress=lambda result: show(result.compared, "")
        )


def _compared(result: Reconciled) -> int:
    """The number of messages that were looked for, once for each handler."""
    return sum(tally.expected for tally in result.handlers)


def _document(
    result: Reconciled, terms: Terms, files: Mapping[str, str | None], commands: Mapping[str, list[str]]
) -> dict[str, Any]:
    """The result, for JSON."""
    handlers = [
        {name: getattr(tally, name) for name in ("handler", "queues", *COUNTS)}
        | {"missing_ids": [] if files[tally.handler] else tally.missing_ids, "missing_file": files[tally.handler]}
        | {"replay": commands[tally.handler]}
        for tally in result.handlers
    ]
    times = ("since", "until", "first", "last", "oldest_kept")
    counts = ("published", "missing", "ambiguous_ids", "ambiguous", "without_handler")
    return {name: getattr(result, name) for name in (*times, *counts)} | {
        "margin_seconds": terms.margin.total_seconds(),
        "handlers": handlers,
    }


def _lines(
    result: Reconciled,
    terms: Terms,
    addresses: Mapping[str, str],
    width: int,
    advice: list[str],
    commands: Mapping[str, list[str]],
) -> Iterator[tuple[str, str]]:
    """The whole report, each line with its label. Commands are not folded: they are to be copied."""
    for side, address in addresses.items():
        yield side, printable_name(address)
    yield "period", f"{in_utc(result.since)} to {in_utc(result.until)}"
    between = f", from {in_utc(result.first)} to {in_utc(result.last)}" if result.published else ""
    yield "published", f"{many(result.published, 'kept message')}{between}"
    margin = span(terms.margin.total_seconds())
    yield "margin", f"{margin}: what was published later than that ago may be in flight"
    yield "", ""
    if result.handlers:
        yield from _table(result)
        yield "", ""
    yield "result", _result(result)
    yield "left out", LEFT_OUT
    for label, texts in (
        ("advice", [line for text in advice for line in folded(printable_name(text), width)]),
        ("replay", [command for each in commands.values() for command in each]),
    ):
        for index, text in enumerate(texts):
            yield label * (index == 0), text


def _result(result: Reconciled) -> str:
    if result.missing or result.ambiguous_ids:
        ids = f"{many(result.ambiguous_ids, 'id')} published with different payloads"
        return f"{number(result.missing)} missing" + (f"; {ids}" if result.ambiguous_ids else "")
    if not _compared(result):
        return "nothing was compared"
    dead = sum(tally.dead for tally in result.handlers)
    return "nothing is missing" + (f"; {number(dead)} dead: see `outboxkit dead list` there" if dead else "")


def _table(result: Reconciled) -> Iterator[tuple[str, str]]:
    rows = [["handler", "queue", *COUNTS]]
    for tally in result.handlers:
        names = [printable_name(tally.handler), printable_name(", ".join(tally.queues) or None)]
        rows.append([*names, *(number(getattr(tally, name)) for name in COUNTS)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:2], widths, strict=False)]
        cells += [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        yield "  ".join(cells).rstrip(), ""


def _replay(tally: HandlerTally, result: Reconciled, terms: Terms, file: str | None, producer: str | None) -> list[str]:
    """The command that replays exactly the missing messages of a handler."""
    if not tally.missing:
        return []
    queue = tally.queues[0] if tally.queues else "QUEUE"
    parts = ["outboxkit", "replay", "--to-queue", queue, "--handler", tally.handler]
    parts += ["--since", iso(result.first), "--until", iso(result.until)]
    if terms.destination != DEFAULT_DESTINATION:
        parts += ["--destination", terms.destination]
    if file is not None:
        parts += ["--ids-file", file]
    else:
        parts += [part for id_ in tally.missing_ids for part in ("--id", id_)]
    if producer:
        parts += ["--database-url", producer]
    return [" ".join(map(shell_word, parts))]


def _advice(result: Reconciled, producer: str | None) -> Iterator[str]:
    if result.oldest_kept is None:
        yield ("nothing was proven: no published message is kept. Set OUTBOXKIT_PUBLISHED_RETENTION at the relay")
    elif not result.published:
        yield f"nothing was proven: no message of this period is kept; kept ones begin at {iso(result.oldest_kept)}"
    elif result.oldest_kept > result.since:
        yield f"kept messages begin at {iso(result.oldest_kept)}: what was published before was not compared"
    for type_, count in sorted(result.without_handler.items()):
        yield f"no handler is known to take {type_!r}: {count} not compared. Name one with --handler and --type"
    for id_, count in result.ambiguous.items():
        yield (
            f"{count} messages with different payloads were published under the id {id_!r}: every handler has had one "
            "of them alone. Give each an id of its own: leave message_id out, or derive it from what tells them apart"
        )
    if result.missing:
        yield (
            "a missing message may still be in its queue, or wait there for its next attempt: the tables cannot tell. "
            "A longer --margin leaves it time. To a handler that gets it twice it is a duplicate"
        )
        if producer == "":
            yield "replay publishes from the producer's database: OUTBOXKIT_DATABASE_URL has to name that one"
        if any(tally.missing and not tally.queues for tally in result.handlers):
            yield "QUEUE stands for the handler's queue, which its database does not know"
