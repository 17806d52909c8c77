"""Numbers, times, names and progress as people read them."""

import os
import shutil
import sys
from collections.abc import Callable
from typing import Protocol, TypeVar

import typer

from outboxkit.wording import COUNTED, NOTHING, Count, in_utc, many, number, printable_name, span, total

__all__ = [
    "COUNTED",
    "NOTHING",
    "Count",
    "fold_width",
    "in_utc",
    "many",
    "now_and_then",
    "number",
    "printable_name",
    "span",
    "total",
]

SAY_EVERY = 10_000
"""Messages between two lines."""
UNFOLDED = 1_000_000
"""A width at which no line is folded."""


def fold_width() -> int:
    """The width to which lines are folded: the terminal's, or COLUMNS. A file or a pipe gets each line whole."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else UNFOLDED


class _Counted(Protocol):
    @property
    def count(self) -> int: ...


_Done = TypeVar("_Done", bound=_Counted)


def now_and_then(line: Callable[[_Done], str]) -> Callable[[_Done], None]:
    """A callback that prints its line each time that `SAY_EVERY` more are done."""
    last = 0

    def show(done: _Done) -> None:
        nonlocal last
        if done.count >= last + SAY_EVERY:
            last = done.count
            typer.echo(line(done), err=True)

    return show
