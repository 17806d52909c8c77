"""The report of `outboxkit reconcile` as lines for people. Pure."""

import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime

from outboxkit.cli.reconcile.report import ReconciliationReport
from outboxkit.cli.wording import many, number, printable_name, span

LABEL = 14
NARROWEST = 60
COUNTS = ("expected", "processed", "dead", "waiting", "in_flight", "missing")


def reconciliation_lines(report: ReconciliationReport, *, width: int) -> Iterator[str]:
    """The whole report. Commands are not folded: they are to be copied."""
    yield _line("producer", printable_name(report.producer))
    yield _line("consumer", printable_name(report.consumer))
    yield _line("period", f"{_written(report.since)} to {_written(report.until)}")
    between = f", from {_written(report.first)} to {_written(report.last)}" if report.published else ""
    yield _line("published", f"{many(report.published, 'kept message')}{between}")
    yield _line("margin", f"{span(report.margin_seconds)}: what was published later than that ago may be in flight")
    if report.handlers:
        yield ""
        yield from _table(report)
    yield ""
    yield _line("result", _result(report))
    for index, text in enumerate(report.advice):
        for line, part in enumerate(textwrap.wrap(printable_name(text), max(width, NARROWEST) - LABEL)):
            yield _line("advice" * (index == line == 0), part)
    for index, command in enumerate(command for each in report.handlers for command in each.replay):
        yield _line("replay" * (index == 0), printable_name(command))


def compared(report: ReconciliationReport) -> int:
    """The number of messages that were looked for, once for each handler."""
    return sum(each.expected for each in report.handlers)


def _result(report: ReconciliationReport) -> str:
    if report.missing:
        return f"{number(report.missing)} missing"
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


def _written(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
