"""`outboxkit reconcile`: the proof that one service has handled what the other published, and its lines for people."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress, TextColumn

from outboxkit.cli.options import AsJson
from outboxkit.cli.reconcile.options import Databases, Save, with_databases, with_terms
from outboxkit.cli.reconcile.report import MissingIds, ReconciliationReport, reconciliation_report
from outboxkit.cli.wording import fold_width, folded, in_utc, many, number, printable_name, span
from outboxkit.operators.reconciliation import Reconciled, Reconciliation, Terms
from outboxkit.runtime import process, urls

MISSING, NOTHING_PROVEN = 1, 3
"""Exit codes: a message is missing; no message is kept, so that nothing was proven."""
LABEL = 14
LEFT_OUT = "handled messages that the producer does not know, as after a failover: docs/how-to/fail-over.md"
COUNTS = ("expected", "processed", "dead", "waiting", "in_flight", "missing")


@with_databases
@with_terms
def reconcile(databases: Databases, terms: Terms, *, save: Save = None, as_json: AsJson = False) -> None:
    """Prove that what one service published the other has handled; exit 1 if a message is missing, or had another's id.

    Needs OUTBOXKIT_PUBLISHED_RETENTION at the producer's relay. It prints the commands that replay what is missing.

    Example: outboxkit reconcile --producer-file shop.url --consumer-file billing.url --since 1d
    """
    with MissingIds(save) as missing:
        result = asyncio.run(_reconciled(databases, terms, missing))
    report = reconciliation_report(
        result,
        terms,
        missing,
        producer=urls.shown(databases.producer),
        consumer=urls.shown(databases.consumer),
        producer_file=databases.producer_file,
    )
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        for line in reconciliation_lines(report, width=fold_width()):
            typer.echo(line)
    if report.missing or report.ambiguous_ids:
        sys.exit(MISSING)
    if not compared(report):
        sys.exit(NOTHING_PROVEN)


async def _reconciled(databases: Databases, terms: Terms, missing: MissingIds) -> Reconciled:
    async with AsyncExitStack() as stack:
        engines = [
            process.engine(url, name="outboxkit reconcile", pool_size=1)
            for url in dict.fromkeys((databases.producer, databases.consumer))
        ]
        for engine in engines:
            stack.push_async_callback(engine.dispose)
        begin, progress = stack.enter_context(_bar())
        both = engines[0], engines[-1]
        return await Reconciliation(*both, terms, take_missing=missing.add, begin=begin, progress=progress).run()


@contextmanager
def _bar() -> Iterator[tuple[Callable[[Reconciled], None], Callable[[int], None]]]:
    """A progress bar on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None, lambda _: None
        return
    columns = (*Progress.get_default_columns(), TextColumn("{task.completed} of {task.total}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("compared", total=None)

        def begin(result: Reconciled) -> None:
            bar.update(task, total=result.published)

        def progress(count: int) -> None:
            bar.advance(task, count)

        yield begin, progress


def reconciliation_lines(report: ReconciliationReport, *, width: int) -> Iterator[str]:
    """The whole report. Commands are not folded: they are to be copied."""
    yield _line("producer", printable_name(report.producer))
    yield _line("consumer", printable_name(report.consumer))
    yield _line("period", f"{in_utc(report.since)} to {in_utc(report.until)}")
    between = f", from {in_utc(report.first)} to {in_utc(report.last)}" if report.published else ""
    yield _line("published", f"{many(report.published, 'kept message')}{between}")
    yield _line("margin", f"{span(report.margin_seconds)}: what was published later than that ago may be in flight")
    if report.handlers:
        yield ""
        yield from _table(report)
    yield ""
    yield _line("result", _result(report))
    yield _line("left out", LEFT_OUT)
    for index, text in enumerate(report.advice):
        for line, part in enumerate(folded(printable_name(text), width - LABEL)):
            yield _line("advice" * (index == line == 0), part)
    for index, command in enumerate(command for each in report.handlers for command in each.replay):
        yield _line("replay" * (index == 0), command)


def compared(report: ReconciliationReport) -> int:
    """The number of messages that were looked for, once for each handler."""
    return sum(each.expected for each in report.handlers)


def _result(report: ReconciliationReport) -> str:
    if report.missing or report.ambiguous_ids:
        ids = f"{many(report.ambiguous_ids, 'id')} published with different payloads"
        return f"{number(report.missing)} missing" + (f"; {ids}" if report.ambiguous_ids else "")
    if not compared(report):
        return "nothing was compared"
    dead = sum(each.dead for each in report.handlers)
    return "nothing is missing" + (f"; {number(dead)} dead: see `outboxkit dead list` there" if dead else "")


def _table(report: ReconciliationReport) -> Iterator[str]:
    rows = [["handler", "queue", *(name.replace("_", " ") for name in COUNTS)]]
    for each in report.handlers:
        names = [printable_name(each.handler), printable_name(", ".join(each.queues) or None)]
        rows.append([*names, *(number(getattr(each, name)) for name in COUNTS)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _line(label: str, text: str) -> str:
    return label.ljust(LABEL) + text
