"""`outboxkit doctor`: is this installation safe?"""

import asyncio
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated

import typer

from outboxkit.cli.connections import connected
from outboxkit.cli.options import AsJson, with_options
from outboxkit.cli.wording import fold_width, folded, print_json
from outboxkit.errors import ConfigurationError
from outboxkit.errors.figures import many
from outboxkit.exit_codes import DOUBTFUL, FAILED
from outboxkit.inbox import Handler
from outboxkit.operators.doctor.examine import SIDES, Examined, Side, examine
from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.findings import Diagnosis
from outboxkit.runtime import compose, logs
from outboxkit.runtime.settings import Settings

LABEL = 7
_PLACEHOLDER = re.compile(r"(?<=outboxkit consume )MODULE(\.\.\.)?(?= )")

Modules = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODULE", help="Modules with handlers, to compare queues, and this role's rights, with them."
    ),
]
Only = Annotated[str | None, typer.Option("--only", metavar="SIDE", help="database or broker: examine this alone.")]


@with_options("queue")
def doctor(settings: Settings, modules: Modules = None, *, only: Only = None, as_json: AsJson = False) -> None:
    """Say whether this installation is safe: what is wrong, why it matters, and the cure. It changes nothing.

    Exit 1 if there is a problem, 3 if there are only warnings. Give it the settings and modules of your consumers.

    Example: outboxkit doctor shop.handlers --queue billing
    """
    if only not in (*SIDES, None):
        raise ConfigurationError(f"--only is {only!r}: {' or '.join(SIDES)} is accepted")
    logs.silence()
    handlers = compose.load_handlers(modules) if modules else []
    report = asyncio.run(_examine(settings, handlers, [side for side in SIDES if only in (side, None)]))
    if modules:
        report = replace(report, findings=tuple(_naming(shlex.join(modules), each) for each in report.findings))
    if as_json:
        print_json(report)
    else:
        for line in _lines(report, width=fold_width()):
            typer.echo(line)
    sys.exit(FAILED if report.problems else DOUBTFUL if report.warnings else 0)


async def _examine(settings: Settings, handlers: Sequence[Handler], sides: Sequence[Side]) -> Examined:
    async with connected(settings.database_url.get_secret_value(), "doctor", only_reads=True) as engine:
        return await examine(Installation(settings, engine, tuple(handlers)), sides)


def _naming(modules: str, finding: Diagnosis) -> Diagnosis:
    """The finding with these modules in its commands, which name none of themselves."""
    commands = tuple(_PLACEHOLDER.sub(lambda _: modules, command) for command in finding.commands)
    return replace(finding, commands=commands)


def _lines(report: Examined, *, width: int) -> Iterator[str]:
    yield f"database  {report.database}"
    yield f"broker    {report.broker}"
    for finding in report.findings:
        yield ""
        yield from _of_finding(finding, width)
    yield ""
    for label, names in (("passed", report.passed), ("left out", report.left_out)):
        for side in SIDES:
            ours = [name.removeprefix(f"{side}: ") for name in names if name.startswith(f"{side}: ")]
            if ours:
                yield from folded(f"{label}, {side}: {', '.join(ours)}", width, "  ")
    notes = len(report.findings) - report.problems - report.warnings
    counts = (many(report.problems, "problem"), many(report.warnings, "warning"), many(notes, "note"))
    yield ", ".join(counts)


def _of_finding(finding: Diagnosis, width: int) -> Iterator[str]:
    yield f"{finding.severity.upper()} {finding.code} ({finding.side})"
    for label, text in (("found", finding.what), ("why", finding.why), ("cure", finding.cure)):
        if text:
            yield from folded(f"  {label.ljust(LABEL)}{text}", width, " " * (LABEL + 2))
    for command in finding.commands:  # to paste: never folded
        yield f"{' ' * (LABEL + 4)}{command}"
