"""Differences between what a delivery has changed and what it was to change. Pure.

A change is counted in rows that went and rows that came. Values that differ between two single deliveries, such as ids
and times that the database gives, are not compared: they vary.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

Row = Mapping[str, Any]
TableRows = Mapping[str, Collection[Row]]
"""The rows of each table by its name."""
Rows = Counter[str]
"""Rows as JSON, which is the same for equal ones."""
ROWS_SHOWN = 4
_SECONDS = re.compile(r"\d\d:\d\d:\d\d|20\d{12}|\b1\d{9}\b")
VARIES = "…"


class Change(NamedTuple):
    """The rows of one table that went and that came."""

    gone: Rows
    come: Rows


Changes = dict[str, Change]
_NO_CHANGE = Change(Counter(), Counter())


def changes(before: TableRows, after: TableRows, ignore: Collection[str] = ()) -> Changes:
    """The rows that went and came, table by table; `ignore` has patterns of tables and of `table.column`."""
    result: Changes = {}
    for table in sorted({*before, *after}):
        if fits_any(table, ignore):
            continue
        columns = {name for state in (before, after) for row in state.get(table, ()) for name in row}
        left_out = {name for name in columns if fits_any(f"{table}.{name}", ignore)}
        old, new = (
            Counter(_text({name: row[name] for name in row if name not in left_out}) for row in state.get(table, ()))
            for state in (before, after)
        )
        if old != new:
            result[table] = Change(old - new, new - old)
    return result


def fits_any(name: str, patterns: Collection[str]) -> bool:
    """Whether a name matches one of these patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def may_tell_time(changed: Changes) -> bool:
    """Whether a new value may hold the clock's seconds, in a form that `difference` does not know as a moment."""
    rows = (row for change in changed.values() for row in _loaded(change.come))
    return any(not _is_now(value) and _SECONDS.search(_text(value)) for row in rows for value in row.values())


def varying(first: Changes, second: Changes) -> dict[str, set[str]] | None:
    """The columns whose new values differ between two deliveries of the same; None if more than values differs."""
    result: dict[str, set[str]] = {}
    for table in {*first, *second}:
        one, two = first.get(table, _NO_CHANGE), second.get(table, _NO_CHANGE)
        if one.come.total() != two.come.total() or one.gone != two.gone:
            return None
        columns: list[dict[str, Rows]] = [{}, {}]
        for change, values in zip((one, two), columns, strict=True):
            for name, value in (pair for row in _loaded(change.come) for pair in row.items()):
                values.setdefault(name, Counter()).update([_text(value)])
        names = {name for name in (*columns[0], *columns[1]) if columns[0].get(name) != columns[1].get(name)}
        if names:
            result[table] = names
    return result


def difference(expected: Changes, actual: Changes, varied: Mapping[str, Collection[str]]) -> list[str]:
    """Lines that name the tables and rows in which two changes differ; none if they are the same."""
    lines: list[str] = []
    for table in sorted({*expected, *actual}):
        one, two = expected.get(table, _NO_CHANGE), actual.get(table, _NO_CHANGE)
        wanted, came = (_masked(each.come, varied.get(table, ())) for each in (one, two))
        parts = {
            "-": wanted - came,
            "+": came - wanted,
            "still there": one.gone - two.gone,
            "gone": two.gone - one.gone,
        }
        rows = [(sign, row) for sign, part in parts.items() for row in _loaded(part)]
        # A row that was to be changed and was not is shown by the values that it has and that it was to have.
        if rows:
            lines += [f"  {table}", *_shown([each for each in rows if each[0] in "-+"] or rows)]
    return lines


def _shown(rows: list[tuple[str, Row]]) -> Iterator[str]:
    for sign, row in rows[:ROWS_SHOWN]:
        yield f"    {sign} {', '.join(f'{name}={_short(value)}' for name, value in row.items() if value is not None)}"
    if len(rows) > ROWS_SHOWN:
        yield f"    … and {len(rows) - ROWS_SHOWN} more"


def _short(value: Any) -> str:
    text = value if value == VARIES else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _masked(rows: Rows, names: Collection[str]) -> Rows:
    """The rows without values that vary, or that are a moment of today."""
    return Counter(
        _text({name: VARIES if value is not None and (name in names or _is_now(value)) else value
               for name, value in row.items()})
        for row in _loaded(rows)
    )  # fmt: skip


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


def _text(value: Any) -> str:
    return json.dumps(value, default=repr)


def _loaded(rows: Rows) -> Iterable[Row]:
    return map(json.loads, rows.elements())
