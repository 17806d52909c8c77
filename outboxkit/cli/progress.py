"""The progress of a long work: a bar on a terminal, elsewhere a line every few seconds, and nothing if it is short."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
    work, ended = _Work(verb, count, total, upto), threading.Event()
    show = work.draw if sys.stderr.isatty() else work.say
    thread = threading.Thread(target=show, args=(ended,), name="outboxkit progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@dataclass(frozen=True, slots=True)
class _Work:
    verb: str
    count: Callable[[], int] | None
    total: int | None
    upto: Callable[[], str]

    @property
    def text(self) -> str:
        """How far it is."""
        if self.count is None:
            return ""
        return f"{number(self.count())}{'' if self.total is None else f' of {number(self.total)}'}{self.upto()}"

    def say(self, ended: threading.Event) -> None:
        """Write a line now and then; into the log, if the command has one."""
        begun = time.monotonic()
        while not ended.wait(LINE_SECONDS):
            after, text = span(time.monotonic() - begun), self.text
            if logs.is_configured():
                logs.logger().info(f"{self.verb} so far", count=text or None, after=after)
            else:
                typer.echo(f"outboxkit: {self.verb} {text}{', ' * bool(text)}after {after}", err=True)

    def draw(self, ended: threading.Event) -> None:
        """Draw a bar that goes away at the end: the result of the command says the rest."""
        if ended.wait(SHORT_SECONDS):
            return
        from rich.console import Console  # noqa: PLC0415 - a terminal alone shows a bar
        from rich.progress import Progress, TextColumn  # noqa: PLC0415

        columns = (*Progress.get_default_columns(), TextColumn("{task.fields[text]}"))
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(self.verb, total=self.total, text=self.text)
            while not ended.wait(REDRAW_SECONDS):
                bar.update(task, completed=0 if self.count is None else self.count(), text=self.text)
