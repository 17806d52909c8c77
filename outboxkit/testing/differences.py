"""Differences between what a delivery has changed and what it was to change. Pure.

What a delivery has changed is compared as rows that went and rows that came. Values that differ between two single
deliveries, such as ids and times that the database gives, are not compared: they vary.
"""

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

Values = Mapping[str, Any]
State = Mapping[str, Collection[Values]]
"""The rows of each table by its name, and the sequences."""
ROWS_SHOWN = 4
VARIES = "…"


@dataclass(frozen=True, slots=True)
class Change:
    """The rows of one table that went and that came."""

    gone: list[Values] = field(default_factory=list)
    come: list[Values] = field(default_factory=list)


Changes = dict[str, Change]


def changes(before: State, after: State, ignore: Collection[str] = ()) -> Changes:
    """The rows that went and came, table by table; `ignore` has patterns of tables and of `table.column`."""
    result: Changes = {}
    for table in sorted({*before, *after}):
        if any(fnmatchcase(table, pattern) for pattern in ignore):
            continue
        old, new = (_keyed(_without(table, rows.get(table, ()), ignore)) for rows in (before, after))
        gone, come = _minus(old, new), _minus(new, old)
        if gone or come:
            result[table] = Change(gone, come)
    return result


def varying(first: Changes, second: Changes) -> dict[str, set[str]] | None:
    """The columns whose new values differ between two deliveries of the same; None if more than values differs."""
    result: dict[str, set[str]] = {}
    for table in {*first, *second}:
        one, two = first.get(table, Change()), second.get(table, Change())
        if len(one.come) != len(two.come) or _counted(one.gone) != _counted(two.gone):
            return None
        names = {name for row in (*one.come, *two.come) for name in row}
        differing = {
            name
            for name in names
            if _counted({name: row.get(name)} for row in one.come)
            != _counted({name: row.get(name)} for row in two.come)
        }
        if differing:
            result[table] = differing
    return result


def difference(expected: Changes, actual: Changes, varied: Mapping[str, Collection[str]]) -> list[str]:
    """Lines that name the tables and rows in which two changes differ; none if they are the same."""
    lines: list[str] = []
    for table in sorted({*expected, *actual}):
        one, two = expected.get(table, Change()), actual.get(table, Change())
        masked = varied.get(table, ())
        expectation, came = _keyed(_masked(one.come, masked)), _keyed(_masked(two.come, masked))
        old, went = _keyed(one.gone), _keyed(two.gone)
        rows = [("-", row) for row in _minus(expectation, came)] + [("+", row) for row in _minus(came, expectation)]
        rows += [("still there", row) for row in _minus(old, went)] + [("gone", row) for row in _minus(went, old)]
        # A row that was to be changed and was not is shown by the values that it has and that it was to have.
        if rows:
            lines += [f"  {table}", *_shown(rows)]
    return lines


def _shown(rows: list[tuple[str, Values]]) -> Iterator[str]:
    plain = [(sign, row) for sign, row in rows if sign in "-+"] or rows
    for sign, row in plain[:ROWS_SHOWN]:
        yield f"    {sign} {', '.join(f'{name}={_text(value)}' for name, value in row.items() if value is not None)}"
    if len(plain) > ROWS_SHOWN:
        yield f"    … and {len(plain) - ROWS_SHOWN} more"


def _text(value: Any) -> str:
    text = value if value == VARIES else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _without(table: str, rows: Iterable[Values], ignore: Collection[str]) -> Iterator[Values]:
    for row in rows:
        yield {
            name: value
            for name, value in row.items()
            if not any(fnmatchcase(f"{table}.{name}", pattern) for pattern in ignore)
        }


def _masked(rows: Iterable[Values], masked: Collection[str]) -> Iterator[Values]:
    for row in rows:
        yield {
            name: VARIES if value is not None and (name in masked or _is_now(value)) else value
            for name, value in row.items()
        }


def _is_now(value: object) -> bool:
    """Whether a value is a moment of today: it may be the clock's, which goes on between two deliveries."""
    if isinstance(value, str) and value[:2] == "20" and len(value) <= 40:
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return False
        return abs(moment.replace(tzinfo=UTC) - datetime.now(UTC)) < timedelta(days=1.1)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return any(abs(value - time.time() * unit) < 3600 * unit for unit in (1, 1e3, 1e6, 1e9))
    return False


def _key(row: Values) -> str:
    return json.dumps(row, sort_keys=True, default=repr)


def _keyed(rows: Iterable[Values]) -> dict[str, list[Values]]:
    result: dict[str, list[Values]] = {}
    for row in rows:
        result.setdefault(_key(row), []).append(row)
    return result


def _counted(rows: Iterable[Values]) -> Counter[str]:
    return Counter(map(_key, rows))


def _minus(one: dict[str, list[Values]], two: dict[str, list[Values]]) -> list[Values]:
    return [row for key, rows in one.items() for row in rows[len(two.get(key, ())) :]]
