"""The templates, and how they write numbers, durations, moments and names that strangers have chosen."""

from datetime import UTC, datetime
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from outboxkit.errors.figures import in_utc, many, number, printable_name, rate, shell_word, span
from outboxkit.runtime.workers import relay_command


def written_time(at: datetime | None) -> Markup:
    """A moment in UTC, which a script writes in the reader's zone; the exact one is shown on hover."""
    if at is None:
        return Markup("–")  # noqa: RUF001 - a dash for nothing
    exact = at.astimezone(UTC)
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        exact.isoformat(), exact.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00"), in_utc(at)
    )


def json_text(value: Any) -> str:
    """A small document in one line."""
    return printable_name(msgspec.json.encode(value).decode())


def foreign_lines(text: str) -> Markup:
    """Foreign text, each line without signs that change how others are read."""
    return Markup("\n").join(escape(printable_name(line) if line else "") for line in text.split("\n"))


TEMPLATES = Environment(
    loader=PackageLoader("outboxkit.console"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
"""All templates escape every value, and fail at a name that is not given."""
TEMPLATES.filters |= {
    "moment": written_time, "number": number, "many": many, "span": span, "rate": rate, "name": printable_name,
    "shell": shell_word,
    "relay_command": relay_command,
    "json": json_text, "lines": foreign_lines,
}  # fmt: skip
