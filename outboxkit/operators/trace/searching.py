"""The search for messages that no index leads to: pages of a table, until a time is over."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, RowMapping, Select

from outboxkit.errors.wording import in_utc
from outboxkit.operators.trace.clue import MOST, Clue, take_kept, take_letter, take_waiting
from outboxkit.operators.trace.entries import Archive
from outboxkit.statements import lives as statements
from outboxkit.tables import LAST_MOMENT

PAGE = 20_000
"""Rows that one statement reads."""
ENOUGH = "had been found"
"""The end of what is said of a table that has more messages than a search takes."""
BEYOND = 2**62
"""Higher than every position and number."""


@dataclass(frozen=True, slots=True)
class _Way:
    """A way through a table, or through a half of it.

    Attributes:
        name: of the way: the table, and the direction if there are two.
        statement: reads a page.
        cursor: the parameters of the first page.
        follow: the parameters of the page behind a row, and the words for what is there; None if that is known.
        take: puts a row into the archive.
        entries: the archive's rows of the table.
        share: of the time for the table.
    """

    name: str
    statement: Select[Any]
    cursor: dict[str, Any]
    follow: Callable[[RowMapping], tuple[dict[str, Any], str] | None]
    take: Callable[[Archive, Clue, RowMapping], None]
    entries: dict[Any, Any]
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

    If the clue tells when a message was added, it begins there, and goes in both directions: clocks differ. In each
    table it ends after `MOST` messages.

    Args:
        connection: of the archive's database.
        clue: what is looked for; it learns what is found.
        archive: takes what is found, and for each table what was not looked at.
        patience: the time for each table.
        monotonic: for tests.
    """
    archive.cut.clear()
    for way in _ways(connection, clue, archive):
        end, cursor = monotonic() + patience.total_seconds() * way.share, way.cursor
        while True:
            parameters = clue.parameters() | cursor | {"page": PAGE, "most": MOST + 1}
            last, is_full = None, False
            for row in connection.execute(way.statement, parameters).mappings():
                last = row
                if is_full := row["is_match"] and len(way.entries) >= MOST:
                    break
                if row["is_match"]:
                    way.take(archive, clue, row)
            if last is None or not (is_full or last["number"] == PAGE) or (following := way.follow(last)) is None:
                break
            cursor, rest = following
            if is_full:
                archive.cut[way.name] = f"{rest}, as {MOST} {ENOUGH}"
            if is_full or monotonic() > end:
                archive.cut.setdefault(way.name, rest)
                break


def _ways(connection: Connection, clue: Clue, archive: Archive) -> Iterator[_Way]:
    dialect = connection.dialect.name
    begun = clue.begun if clue.begun is not None and clue.begun < archive.now else None
    middle = None if begun is None else _position_at(connection, begun)
    yield from _ends_of_outbox(dialect, archive) if middle is None else _from_middle(dialect, archive, middle)
    begun = clue.begun if clue.begun is not None and clue.begun < archive.now else None  # what waits may have told it
    for newest_first in (False, True) if begun is not None else (True,):
        yield _Way(
            "published before" if newest_first else "published after",
            statements.published_page(dialect, newest_first=newest_first),
            {"after_at": begun or LAST_MOMENT, "after_position": -1 if begun is not None else BEYOND},
            _before_moment if newest_first else _after_moment,
            take_kept,
            archive.kept,
            share=0.5 if begun is not None else 1.0,
        )
    page = statements.dead_page(dialect)
    yield _Way("dead_letter", page, {"after_id": BEYOND}, _below, take_letter, archive.letters)


def _from_middle(dialect: str, archive: Archive, middle: int) -> Iterator[_Way]:
    """The outbox from a position on, to its end and then to its beginning."""
    for newest_first in (False, True):
        yield _Way(
            "outbox before" if newest_first else "outbox after",
            statements.outbox_page(dialect, newest_first=newest_first),
            {"after_position": middle if newest_first else middle - 1},
            _before_position if newest_first else _after_position,
            take_waiting,
            archive.waiting,
            share=0.5,
        )


def _ends_of_outbox(dialect: str, archive: Archive) -> Iterator[_Way]:
    """The outbox from both ends: the newest rows, and those that wait longest."""
    lowest = BEYOND

    def down(row: RowMapping) -> tuple[dict[str, Any], str]:
        nonlocal lowest
        lowest = row["position"]
        return _before_position(row)

    def up(row: RowMapping) -> tuple[dict[str, Any], str] | None:
        highest = row["position"]
        rest = f"messages of the outbox between the positions {highest} and {lowest}"
        return ({"after_position": highest}, rest) if highest < lowest - 1 else None

    for newest_first, first, follow in ((True, BEYOND, down), (False, -BEYOND, up)):
        if newest_first or archive.cut.pop("outbox", None) is not None:
            page = statements.outbox_page(dialect, newest_first=newest_first)
            first_page = {"after_position": first}
            yield _Way("outbox", page, first_page, follow, take_waiting, archive.waiting, share=0.5)


def _position_at(connection: Connection, moment: datetime) -> int | None:
    """A position near to which rows were added at this moment: positions follow the time, if only roughly."""
    lowest, highest = connection.execute(statements.ends()).one()
    place: int | None = highest
    while lowest is not None and lowest < highest:
        middle = (lowest + highest) // 2
        rows = connection.execute(statements.first_added(), {"position": middle}).mappings()
        # The time of a row that was delayed is that for which it is due.
        times = [(row["position"], row["created_at"]) for row in rows if row["held"] or row["due_at"] is None]
        position, added = next(((position, at) for position, at in times if at is not None), (middle, moment))
        if added < moment:
            lowest = position + 1
        else:
            highest, place = middle, position
    return place


def _before_position(row: RowMapping) -> tuple[dict[str, Any], str]:
    return {"after_position": row["position"]}, f"messages of the outbox before position {row['position']}"


def _after_position(row: RowMapping) -> tuple[dict[str, Any], str]:
    return {"after_position": row["position"]}, f"messages of the outbox after position {row['position']}"


def _below(row: RowMapping) -> tuple[dict[str, Any], str]:
    return {"after_id": row["id"]}, f"dead letters before number {row['id']}"


def _after_moment(row: RowMapping) -> tuple[dict[str, Any], str]:
    return _from(row), f"messages that were published after {in_utc(row['published_at'])}"


def _before_moment(row: RowMapping) -> tuple[dict[str, Any], str]:
    return _from(row), f"messages that were published before {in_utc(row['published_at'])}"


def _from(row: RowMapping) -> dict[str, Any]:
    return {"after_at": row["published_at"], "after_position": row["position"]}
