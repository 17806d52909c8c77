"""`outboxkit reconcile`: the proof that what one service published the other has handled."""

import asyncio
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress, TextColumn

from outboxkit import process, urls
from outboxkit.cli.options import AsJson
from outboxkit.cli.reconcile import show
from outboxkit.cli.reconcile.missing import MissingIds
from outboxkit.cli.reconcile.options import Databases, Save, with_databases, with_terms
from outboxkit.cli.reconcile.report import reconciliation_report
from outboxkit.reconciliation import Reconciled, Reconciliation, Terms

MISSING, NOTHING_PROVEN = 1, 3
"""Exit codes: a message is missing; no message is kept, so that nothing was proven."""


@with_databases
@with_terms
def reconcile(databases: Databases, terms: Terms, *, save: Save = None, as_json: AsJson = False) -> None:
    """Prove that what one service published the other has handled; exit 1 if a message is missing.

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
        for line in show.reconciliation_lines(report, width=shutil.get_terminal_size().columns):
            typer.echo(line)
    if report.missing:
        sys.exit(MISSING)
    if not show.compared(report):
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
