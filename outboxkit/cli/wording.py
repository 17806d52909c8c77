"""Text, tables and JSON as commands print them."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec
import typer

from outboxkit.errors.figures import printable_name

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
    """Print a table of foreign texts; on a terminal that is too narrow for it, each row as lines of title and text.

    Args:
        columns: their titles. Each is `whole`, to be copied, or `folded`, or a `number` at the right.
        rows: their texts.
    """
    from rich.console import Console  # noqa: PLC0415 - a list needs it, JSON does not
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(highlight=False, width=None if sys.stdout.isatty() else UNFOLDED)
    texts = [[Text(printable_name(text)) for text in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, kind in columns.items():
        if kind == "number":
            table.add_column(title, justify="right", no_wrap=True)
        else:
            table.add_column(title, no_wrap=kind == "whole", overflow="fold")
    for row in texts:
        table.add_row(*row)
    if console.measure(table, options=console.options.update(max_width=UNFOLDED)).minimum <= console.width:
        console.print(table)
        return
    for index, row in enumerate(texts):
        lines = Table.grid(padding=(0, 2))
        lines.add_column(style="bold", no_wrap=True)
        lines.add_column(overflow="fold")
        for title, text in zip(columns, row, strict=True):
            lines.add_row(title, text)
        if index:
            console.print()
        console.print(lines)


def iso(moment: datetime | None) -> str:
    """`2026-03-01T12:00:00Z`, as options take it; nothing for None."""
    return "" if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
