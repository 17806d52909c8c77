"""The search for messages that no index leads to: pages of a table, until a time is over."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, RowMapping, Select

from outboxkit.lives.clue import Clue, take_kept, take_letter, take_waiting
from outboxkit.lives.entries import Archive
from outboxkit.statements import lives as statements
from outboxkit.tables import LAST_MOMENT
from outboxkit.wording import in_utc

PAGE = 20_000
"""Rows that one statement reads."""
BEYOND = 2**62
"""Higher than every position and number."""


@dataclass(frozen=True, slots=True)
class _Way:
    """The way through one table.

    Attributes:
        table: the name of its rows.
        statement: reads a page.
        cursor: the parameters of the first page.
        follow: the parameters of the page behind a row, and the words for what is there; None if that is known.
        take: puts a row into the archive.
        share: of the time for the table.
    """

    table: str
    statement: Select[Any]
    cursor: dict[str, Any]
    follow: Callable[[RowMapping], tuple[dict[str, Any], str] | None]
    take: Callable[[Archive, Clue, RowMapping], None]
    share: float = 1.0


def search(
    connection: Connection,
    clue: Clue,
    archive: Archive,
    *,
    patience: timedelta,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Look through the outbox, the kept messages and the dead letters, a page of each at least.

    Args:
        connection: of the archive's database.
        clue: what is looked for; it learns what is found.
        archive: takes what is found, and for each table what was not looked at.
        patience: the time for each table.
        monotonic: for tests.
    """
    for way in _ways(connection.dialect.name, clue, archive):
        end, cursor = monotonic() + patience.total_seconds() * way.share, way.cursor
        archive.cut.pop(way.table, None)
        while True:
            parameters = clue.parameters() | cursor | {"page": PAGE}
            last = None
            for row in connection.execute(way.statement, parameters).mappings():
                if row["is_match"]:
                    way.take(archive, clue, row)
                last = row if row["number"] == PAGE else None
            following = None if last is None else way.follow(last)
            if following is None:
                break
            cursor, rest = following
            if clue.is_full or monotonic() > end:
                archive.cut[way.table] = rest
                break


def _ways(dialect: str, clue: Clue, archive: Archive) -> Iterator[_Way]:
    """The ways through the tables. The outbox is read from both ends: the newest rows, and those that wait longest."""
    lowest = BEYOND

    def down(row: RowMapping) -> tuple[dict[str, Any], str]:
        nonlocal lowest
        lowest = row["position"]
        return {"after_position": lowest}, f"messages of the outbox before position {lowest}"

    def up(row: RowMapping) -> tuple[dict[str, Any], str] | None:
        highest = row["position"]
        rest = f"messages of the outbox between the positions {highest} and {lowest}"
        return ({"after_position": highest}, rest) if highest < lowest - 1 else None

    for newest_first, first, follow in ((True, BEYOND, down), (False, -BEYOND, up)):
        page = statements.outbox_page(dialect, newest_first=newest_first)
        if newest_first or "outbox" in archive.cut:
            yield _Way("outbox", page, {"after_position": first}, follow, take_waiting, share=0.5)
    newest_first = clue.begun is None
    yield _Way(
        "published",
        statements.published_page(dialect, newest_first=newest_first),
        {"after_at": clue.begun or LAST_MOMENT, "after_position": BEYOND if newest_first else -1},
        _before_moment if newest_first else _after_moment,
        take_kept,
    )
    yield _Way("dead_letter", statements.dead_page(dialect), {"after_id": BEYOND}, _below, take_letter)


def _below(row: RowMapping) -> tuple[dict[str, Any], str]:
    return {"after_id": row["id"]}, f"dead letters before number {row['id']}"


def _after_moment(row: RowMapping) -> tuple[dict[str, Any], str]:
    return _from(row), f"messages that were published after {in_utc(row['published_at'])}"


def _before_moment(row: RowMapping) -> tuple[dict[str, Any], str]:
    return _from(row), f"messages that were published before {in_utc(row['published_at'])}"


def _from(row: RowMapping) -> dict[str, Any]:
    return {"after_at": row["published_at"], "after_position": row["position"]}
