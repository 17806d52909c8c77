"""Numbers, times, names and progress as people read them."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import typer

from outboxkit.wording import COUNTED, NOTHING, Count, in_utc, many, number, printable_name, span, total

__all__ = ["COUNTED", "NOTHING", "Count", "in_utc", "many", "now_and_then", "number", "printable_name", "span", "total"]

SAY_EVERY = 10_000
"""Messages between two lines."""


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
