"""The second half of a command that changes many rows: a question, then the work, with its progress shown."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import typer

from outboxkit.cli.options import By, DryRun, Yes
from outboxkit.cli.progress import progress
from outboxkit.errors import ConfigurationError
from outboxkit.exit_codes import FAILED
from outboxkit.runtime import process
from outboxkit.runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """The options of a command that changes many rows."""

    PANEL: ClassVar = "Options"
    dry_run: DryRun = False
    yes: Yes = False
    by: By = None

    def is_confirmed(self, question: str, done: str) -> bool:
        """Ask, unless --yes is given; False in a dry run. `done` is the participle of what is asked.

        Raises:
            ConfigurationError: nobody can be asked.
            typer.Exit: the answer is no.
        """
        if self.dry_run or self.yes:
            return not self.dry_run
        if not sys.stdin.isatty():
            raise ConfigurationError(
                f"standard input is not a terminal, and nothing was {done}: add --yes to go on without a question"
            )
        try:
            agreed = typer.confirm(question)
        except typer.Abort as abort:
            if isinstance(abort.__context__, KeyboardInterrupt):
                raise abort.__context__ from None
            agreed = False
        if not agreed:
            typer.echo(f"nothing was {done}", err=True)
            raise typer.Exit(FAILED)
        return True


def refuse_unclear(what: str, ids: Sequence[str], *, filters: bool, all_: bool) -> None:
    """Refuse a command to which not exactly one of ids, filters and --all was given. `what` is what it is to do."""
    if bool(ids) + filters + all_ != 1:
        raise ConfigurationError(f"{what}? Exactly one is accepted: ids, filters such as --type and --key, or --all")


def work_through(
    settings: Settings,
    verb: str,
    total: int,
    count: Callable[[], int],
    work: Callable[[asyncio.Event], Awaitable[None]],
    summary: Callable[[], None],
    *,
    upto: Callable[[], str] = lambda: "",
) -> None:
    """Run the work until its end, a signal or an error, and then print its summary.

    `work` gets an event that is set when it has to stop. `count`, `total` and `upto` are those of `progress`.
    """

    async def run(stop: asyncio.Event) -> int:
        with progress(verb, count, total, upto=upto):
            await work(stop)
        return 0

    try:
        process.run(run, shutdown_timeout=settings.shutdown_timeout)
    finally:
        summary()
