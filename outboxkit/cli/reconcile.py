"""`outboxkit reconcile`: the proof that one service has handled what the other published."""

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from outboxkit.cli.connections import connected
from outboxkit.cli.options import AsJson, duration, moment_option, point_in_time, url_of_option, with_options
from outboxkit.cli.progress import progress
from outboxkit.cli.wording import fold_width, folded, iso, print_json, print_table
from outboxkit.errors import ConfigurationError
from outboxkit.errors.figures import in_utc, many, number, printable_name, shell_word, span
from outboxkit.exit_codes import FAILED, INCOMPLETE
from outboxkit.operators.reconciliation import HandlerTally, Reconciled, Terms, reconcile_services
from outboxkit.operators.reconciliation import textfile as metrics_of
from outboxkit.runtime import compose, urls
from outboxkit.runtime.outage import utc_now
from outboxkit.runtime.settings import load

LABEL = 14
LEFT_OUT = "handled messages that the producer does not know, as after a failover: docs/how-to/fail-over.md"
COUNTS = ("expected", "processed", "dead", "waiting", "missing")
COLUMNS = {"handler": "whole", "queue": "whole", **dict.fromkeys(COUNTS, "number")}

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
Textfile = Annotated[
    str | None,
    typer.Option("--textfile", metavar="FILE", help="Also write metrics there, for node_exporter: NAME.prom."),
]
Since = Annotated[str, moment_option("--since", "Messages published since")]
Margin = Annotated[
    str,
    typer.Option(
        "--margin",
        metavar="DURATION",
        help="Leave out what was published within this time: it may be in flight.",
    ),
]
Handlers = Annotated[
    list[str] | None, typer.Option("--handler", metavar="NAME", help="Only this handler; may be repeated.")
]
Types = Annotated[
    list[str] | None, typer.Option("--type", metavar="NAME", help="Only messages of this type; may be repeated.")
]


@dataclass(frozen=True, slots=True)
class Period:
    """The options that select messages and handlers."""

    PANEL: ClassVar = "Messages"
    since: Since = "1d"
    margin: Margin = "1m"
    handlers: Handlers = None
    types: Types = None

    def terms(self) -> Terms:
        """The period as moments."""
        now = utc_now()
        since = point_in_time("--since", self.since, now) or now
        if since >= now:
            raise ConfigurationError(
                f"--since is {self.since}: a past time is accepted, such as 1d or 2026-03-01T12:00Z"
            )
        handlers, types = (tuple(dict.fromkeys(names or ())) for names in (self.handlers, self.types))
        return Terms(since, duration("--margin", self.margin), handlers, types)


@with_options()
def reconcile(
    period: Period,
    *,
    producer: Producer = None,
    consumer: Consumer = None,
    textfile: Textfile = None,
    as_json: AsJson = False,
) -> None:
    """Prove that what one service published the other has handled; exit 1 if a message is missing, or had another's id.

    Needs OUTBOXKIT_PUBLISHED_RETENTION at the producer's relay. It prints the commands that replay what is missing.

    Example: outboxkit reconcile --producer @shop.url --consumer @billing.url --since 1d
    """
    terms = period.terms()
    both = [
        compose.database_url(load()) if value is None else url_of_option(option, value)
        for option, value in (("--producer", producer), ("--consumer", consumer))
    ]
    files = dict[str, str]()
    result = asyncio.run(_reconciled(both, terms, partial(_write_missing, files)))
    if textfile is not None:
        _write(Path(textfile), metrics_of(result))
    of = producer if producer is None or producer.startswith("@") else ""
    commands = {each.handler: _replay(each, result, files.get(each.handler), of) for each in result.handlers}
    advice = list(_advice(result, of))
    addresses = {"producer": urls.shown(both[0]), "consumer": urls.shown(both[1])}
    if as_json:
        times = ("since", "until", "first", "last", "oldest_kept")
        counts = ("published", "missing", "ambiguous_ids", "ambiguous", "without_handler")
        handlers = [
            {name: getattr(each, name) for name in ("handler", "queues", *COUNTS)}
            | {"missing_file": files.get(each.handler), "replay": commands[each.handler]}
            for each in result.handlers
        ]
        figures = {name: getattr(result, name) for name in (*times, *counts)}
        margin = {"margin_seconds": terms.margin.total_seconds()}
        print_json(addresses | figures | margin | {"handlers": handlers, "advice": advice})
    else:
        _print(result, terms, addresses, advice, commands)
    if result.missing or result.ambiguous_ids:
        sys.exit(FAILED)
    if not _compared(result):
        sys.exit(INCOMPLETE)


def _write(file: Path, text: str) -> None:
    """Write the file at once, so that nobody reads half of it."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        part.write_text(text)
        part.replace(file)
    except OSError as error:
        raise ConfigurationError(f"--textfile is {str(file)!r}: it cannot be written ({error.strerror})") from None


def _write_missing(files: dict[str, str], tally: HandlerTally, ids: Sequence[str]) -> None:
    """Add ids to the file of the handler that lacks them, one a line, in the temporary folder. It is kept."""
    try:
        if tally.handler not in files:
            with tempfile.NamedTemporaryFile(prefix="outboxkit-missing-", suffix=".txt", delete=False) as made:
                files[tally.handler] = made.name
        with Path(files[tally.handler]).open("a") as file:
            file.writelines(f"{id_}\n" for id_ in ids)
    except OSError as error:
        raise ConfigurationError(
            f"the file of the missing ids cannot be written ({error.strerror}): name a folder in TMPDIR"
        ) from None


async def _reconciled(
    both: list[str], terms: Terms, missing: Callable[[HandlerTally, Sequence[str]], None]
) -> Reconciled:
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(connected(url, "reconcile", pool_size=1, only_reads=True))
            for url in dict.fromkeys(both)
        ]
        so_far = list[Reconciled]()
        stack.enter_context(progress("compared", lambda: so_far[-1].compared if so_far else 0))
        return await reconcile_services(engines[0], engines[-1], terms, missing=missing, progress=so_far.append)


def _compared(result: Reconciled) -> int:
    """The number of messages that were looked for, once for each handler."""
    return sum(tally.expected for tally in result.handlers)


def _print(
    result: Reconciled,
    terms: Terms,
    addresses: Mapping[str, str],
    advice: list[str],
    commands: Mapping[str, str | None],
) -> None:
    """Print the whole report, each line with its label. Commands are not folded: they are to be copied."""

    def line(label: str, text: str) -> None:
        typer.echo(label.ljust(LABEL) + text)

    for side, address in addresses.items():
        line(side, printable_name(address))
    line("period", f"{in_utc(result.since)} to {in_utc(result.until)}")
    between = f", from {in_utc(result.first)} to {in_utc(result.last)}" if result.published else ""
    line("published", f"{many(result.published, 'kept message')}{between}")
    line("margin", f"{span(terms.margin.total_seconds())}: what was published later than that ago may be in flight")
    typer.echo()
    if result.handlers:
        print_table(COLUMNS, (_cells(tally) for tally in result.handlers))
        typer.echo()
    line("result", _result(result))
    line("left out", LEFT_OUT)
    folded_advice = [part for text in advice for part in folded(printable_name(text), fold_width() - LABEL)]
    for label, texts in (("advice", folded_advice), ("replay", [each for each in commands.values() if each])):
        for index, text in enumerate(texts):
            line(label * (index == 0), text)


def _cells(tally: HandlerTally) -> tuple[str, ...]:
    counts = (number(getattr(tally, name)) for name in COUNTS)
    return tally.handler, printable_name(", ".join(tally.queues) or None), *counts


def _result(result: Reconciled) -> str:
    if result.missing or result.ambiguous_ids:
        ids = f"{many(result.ambiguous_ids, 'id')} published with different payloads"
        return f"{number(result.missing)} missing" + (f"; {ids}" if result.ambiguous_ids else "")
    if not _compared(result):
        return "nothing was compared"
    dead = sum(tally.dead for tally in result.handlers)
    return "nothing is missing" + (f"; {number(dead)} dead: see `outboxkit dead list` there" if dead else "")


def _replay(tally: HandlerTally, result: Reconciled, file: str | None, producer: str | None) -> str | None:
    """The command that replays exactly the missing messages of a handler; None if there are none."""
    if file is None:
        return None
    queue = tally.queues[0] if tally.queues else "QUEUE"
    parts = ["outboxkit", "republish", "--to-queue", queue, "--handler", tally.handler]
    parts += ["--since", iso(result.first), "--until", iso(result.until)]
    parts += ["--ids-file", file]
    if producer:
        parts += ["--database-url", producer]
    return " ".join(map(shell_word, parts))


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
    for tally in result.handlers:
        since, seen = iso(tally.forgets_before), iso(tally.first_seen)
        if tally.forgotten:
            older = f"{many(tally.forgotten, 'message')} for {tally.handler}"
            yield f"{older} not compared: its inbox does not remember what was added before {since}"
        if tally.older:
            yield (
                f"{number(tally.older)} of those that {tally.handler} lacks were added before it was first seen, at "
                f"{seen}: they may not be meant for it. --since {seen} leaves them out"
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
