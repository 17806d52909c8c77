"""Numbers, times, names and progress as people read them."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec
import typer

from outboxkit.errors.wording import COUNTED, NOTHING, Count, in_utc, many, number, printable_name, span, total

__all__ = [
    "COUNTED",
    "NOTHING",
    "Count",
    "fold_width",
    "in_utc",
    "many",
    "now_and_then",
    "number",
    "print_json",
    "printable_name",
    "span",
    "total",
]

SAY_EVERY = 10_000
"""Messages between two lines."""
NARROWEST, UNFOLDED = 60, 1_000_000
"""The lowest width to which lines are folded, and one at which none is."""
_COMMAND = re.compile(r"`[^`]*`|^ *cure: .*")


def fold_width() -> int:
    """The width to which lines are folded: the terminal's, or COLUMNS. A file or a pipe gets each line whole."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else UNFOLDED


def folded(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most `width`, but a command stays in one, to be copied. Lines behind the first have the indent."""
    whole = _COMMAND.sub(lambda command: command[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        whole, max(width, NARROWEST), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in lines]


def print_json(document: object) -> None:
    """Print one indented JSON document."""
    typer.echo(msgspec.json.format(msgspec.json.encode(document)).decode())


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
