"""The progress of a long work: a bar on a terminal, elsewhere a line every few seconds, and nothing if it is short."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from outboxkit.errors.figures import number, span
from outboxkit.runtime import logs

SHORT_SECONDS, LINE_SECONDS, REDRAW_SECONDS = 1.0, 5.0, 0.2
"""The time until a bar is shown, between two lines, and between two looks at the work."""


@contextmanager
def progress(
    verb: str,
    count: Callable[[], int] | None = None,
    total: int | None = None,
    *,
    upto: Callable[[], str] = lambda: "",
) -> Iterator[None]:
    """Show on standard error how far the block is, in a thread of its own.

    Args:
        verb: the participle, such as `replayed`.
        count: how many are done so far; None if the work has no parts.
        total: the number at the end; None if nobody knows it.
        upto: words behind the number.
    """
    begun, ended = time.monotonic(), threading.Event()

    def text() -> str:
        if count is None:
            return ""
        return f"{number(count())}{'' if total is None else f' of {number(total)}'}{upto()}"

    def write_lines() -> None:
        """Write a line now and then; into the log, if the command has one."""
        while not ended.wait(LINE_SECONDS):
            after, so_far = span(time.monotonic() - begun), text()
            if logs.is_configured():
                logs.logger().info(f"{verb} so far", count=so_far or None, after=after)
            else:
                typer.echo(f"outboxkit: {f'{verb} {so_far},' if so_far else f'still {verb}'} after {after}", err=True)

    def draw_bar() -> None:
        """Draw a bar that goes away at the end: the result of the command says the rest."""
        if ended.wait(SHORT_SECONDS):
            return
        from rich.console import Console  # noqa: PLC0415 - a terminal alone shows a bar
        from rich.progress import Progress, TextColumn  # noqa: PLC0415

        columns = (*Progress.get_default_columns(), TextColumn("{task.fields[text]}"))
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(verb, total=total, text=text())
            while not ended.wait(REDRAW_SECONDS):
                bar.update(task, completed=0 if count is None else count(), text=text())

    show = draw_bar if sys.stderr.isatty() else write_lines
    thread = threading.Thread(target=show, name="outboxkit progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
