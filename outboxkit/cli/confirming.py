"""The second half of a command that changes many rows: a question, then the work, with its progress shown."""

import asyncio
import sys
from collections.abc import Awaitable, Callable

import typer

from outboxkit.cli.progress import progress
from outboxkit.errors import ConfigurationError
from outboxkit.runtime import process
from outboxkit.runtime.settings import Settings


def ask_first(question: str, done: str, *, yes: bool) -> None:
    """Ask before something that cannot be taken back, unless `yes`. `done` is the participle of what is asked."""
    if yes:
        return
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
        raise typer.Exit(1)


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
