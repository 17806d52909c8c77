"""Text, tables, JSON and progress as commands print them."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

import msgspec
import typer

from outboxkit.errors.wording import number, printable_name

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


def print_table(columns: Mapping[str, str], rows: Iterable[Iterable[str]]) -> None:
    """Print a table of foreign texts.

    Args:
        columns: their titles. Each is `whole`, to be copied, or `folded`, or a `number` at the right.
        rows: their texts.
    """
    from rich.console import Console  # noqa: PLC0415 - a list needs it, JSON does not
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, kind in columns.items():
        if kind == "number":
            table.add_column(title, justify="right", no_wrap=True)
        else:
            table.add_column(title, no_wrap=kind == "whole", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable_name(text)) for text in row))
    Console(highlight=False, width=None if sys.stdout.isatty() else UNFOLDED).print(table)


def iso(moment: datetime | None) -> str:
    """`2026-03-01T12:00:00Z`, as options take it; nothing for None."""
    return "" if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


@contextmanager
def progress(verb: str, total: int | None = None) -> Iterator[Callable[[int, str], None]]:
    """A callback with the number that is done so far, and words behind it.

    It moves a bar on a terminal, and elsewhere writes a line now and then.

    Args:
        verb: the participle, such as `replayed`.
        total: the number at the end; None if nobody knows it.
    """
    if not sys.stderr.isatty():
        last = 0

        def say(done: int, upto: str) -> None:
            nonlocal last
            if done >= last + SAY_EVERY:
                last = done
                of = "" if total is None else f" of {number(total)}"
                typer.echo(f"{verb} {number(done)}{of}{upto}", err=True)

        yield say
        return
    from rich.console import Console  # noqa: PLC0415 - a terminal alone shows a bar
    from rich.progress import Progress, TextColumn  # noqa: PLC0415

    text = TextColumn("{task.completed}" + ("" if total is None else " of {task.total}") + "{task.fields[upto]}")
    with Progress(*Progress.get_default_columns(), text, console=Console(stderr=True), transient=total is None) as bar:
        task = bar.add_task(verb, total=total, upto="")

        def move(done: int, upto: str) -> None:
            bar.update(task, completed=done, upto=upto)

        yield move
