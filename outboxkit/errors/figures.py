"""Numbers, times and foreign names as people read them. Pure."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

COUNTED = 10_000
"""Rows of a kind that are counted, and no more."""


@dataclass(frozen=True)
class Count:
    """The number of rows that were counted, and whether the counting ended before the rows did."""

    value: int = 0
    at_least: bool = False

    def __add__(self, other: "Count") -> "Count":
        return Count(self.value + other.value, self.at_least or other.at_least)


NOTHING = Count()


def counted(rows: int) -> Count:
    """The count of rows of which at most `COUNTED + 1` were read."""
    return Count(rows, at_least=rows > COUNTED)


def total(counts: Iterable[Count]) -> Count:
    """The sum, which is no more exact than each of them."""
    return sum(counts, Count())


def number(count: Count | int) -> str:
    """`12 345`; or `more than 10 000`, and for a part of so many `700 or more`, if not all rows were counted."""
    if isinstance(count, int):
        return f"{count:,}".replace(",", " ")
    if not count.at_least:
        return number(count.value)
    return f"more than {number(COUNTED)}" if count.value > COUNTED else f"{number(count.value)} or more"


def many(count: Count | int, one: str, several: str | None = None) -> str:
    """`1 key`, `2 keys`, `more than 10 000 keys`."""
    value = count if isinstance(count, int) else count.value
    return f"{number(count)} {one if value == 1 else several or one + 's'}"


def span(seconds: float) -> str:
    """`1 ms`, `0.4 s`, `12 s`, `3 min 10 s`, `2 h 3 min` or `5 d 2 h`."""
    if 0 < seconds < 0.05:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for name, unit, smaller, part in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // part} {smaller}"
    return f"{whole} s"


def rate(messages: float) -> str:
    """Messages a second: `0`, `0.4` or `1 250`."""
    return f"{messages:.1f}" if 0 < messages < 9.95 else number(round(messages))


def in_utc(moment: datetime | None) -> str:
    """`2026-01-02 03:04:05 UTC`; `-` for None."""
    return "-" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def shell_word(name: str) -> str:
    r"""A foreign name as one word of a command to paste: `'my queue'`, or `$'a\x0ab'` if it is not printable."""
    if name.isprintable():
        return shlex.quote(name)
    plain = (sign if sign.isprintable() and sign not in "\\'" else _bytes(sign) for sign in name)
    return f"$'{''.join(plain)}'"


def _bytes(sign: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in sign.encode(errors="replace"))


def printable_name(name: str | None) -> str:
    """A foreign name without characters that would move the cursor or colour the screen."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in name or "-")
