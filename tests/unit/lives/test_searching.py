"""The bounded search, on SQLite; tests/integration/test_trace.py has PostgreSQL."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from sqlalchemy import Engine, insert

from outboxkit import ids, tables
from outboxkit.lives import searching
from outboxkit.lives.clue import Clue
from outboxkit.lives.entries import Archive
from outboxkit.lives.reading import find_messages
from outboxkit.lives.searching import search

START = datetime(2026, 3, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ROW = {"type": "T", "payload": b"", "headers": b"{}", "content_type": "x", "key": "k"}
LETTER = ROW | {"side": "outbox", "reason": "rejected", "attempts": 1}


@pytest.fixture(autouse=True)
def _short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "PAGE", 3)


def fill(engine: Engine, rows: int = 10) -> list[str]:
    """In each table messages m-0, m-1 … or ids of their time, a second apart; returns the ids of the kept ones."""
    names = [ids.new(at=START + n * SECOND) for n in range(rows)]
    with engine.begin() as connection:
        connection.execute(insert(tables.outbox), [ROW | {"message_id": f"m-{n}"} for n in range(rows)])
        connection.execute(insert(tables.dead_letter), [LETTER | {"message_id": f"m-{n}"} for n in range(rows)])
        kept = [
            ROW | {"message_id": id_, "position": n, "published_at": START + n * SECOND} for n, id_ in enumerate(names)
        ]
        connection.execute(insert(tables.published), kept)
    return names


def looked(engine: Engine, clue: Clue, *, seconds: float = 60, clock: Iterator[float] | None = None) -> Archive:
    archive = Archive("db", START)
    ticks = clock or iter([0.0] * 1000)
    with engine.connect() as connection:
        search(connection, clue, archive, patience=timedelta(seconds=seconds), monotonic=lambda: next(ticks))
    return archive


def test_every_page_is_read_if_there_is_time(engine: Engine):
    names = fill(engine)
    for id_ in ("m-0", "m-2", "m-3", "m-9"):
        archive = looked(engine, Clue(message_id=id_))
        assert [row.message.message_id for row in archive.waiting.values()] == [id_]
        assert [row.message.message_id for row in archive.letters.values()] == [id_]
        assert archive.cut == {}
    for id_ in (names[0], names[-1]):
        assert [row.message.message_id for row in looked(engine, Clue(message_id=id_)).kept.values()] == [id_]
    assert len(looked(engine, Clue(key="k")).kept) == 10


def test_what_was_not_looked_at_is_said(engine: Engine):
    fill(engine)
    archive = looked(engine, Clue(message_id="m-9"), seconds=0.5, clock=map(float, count()))
    assert [row.message.message_id for row in archive.waiting.values()] == ["m-9"], "from both ends"
    assert [*looked(engine, Clue(message_id="m-0"), seconds=0.5, clock=map(float, count())).waiting] == [1]
    assert [*looked(engine, Clue(message_id="m-4"), seconds=0.5, clock=map(float, count())).waiting] == []
    assert [row.message.message_id for row in archive.letters.values()] == ["m-9"], "the newest are read first"
    assert archive.cut == {
        "outbox": "messages of the outbox between the positions 3 and 8",
        "published": "messages that were published before 2026-03-01 00:00:07 UTC",
        "dead_letter": "dead letters before number 8",
    }


def test_a_letter_that_parks_a_key_is_found_however_old_it_is(engine: Engine):
    parking = LETTER | {"message_id": "first", "position": 1, "parked": True}
    with engine.begin() as connection:
        connection.execute(insert(tables.dead_letter), parking)
    fill(engine)
    archive = Archive("db", START)
    with engine.connect() as connection:
        find_messages(connection, Clue(key="k"), archive, patience=timedelta(seconds=-1))
    found = [row.message.message_id for row in archive.letters.values()]
    assert (found[0], len(found)) == ("first", 4), "the page of the search has the three newest"


def test_a_time_in_the_id_is_where_the_kept_messages_are_read_from(engine: Engine):
    names = fill(engine, rows=600)
    archive = looked(engine, Clue(message_id=names[400]), seconds=100, clock=map(float, count()))
    assert [row.message.message_id for row in archive.kept.values()] == [names[400]]
    archive = looked(engine, Clue(message_id=names[599]), seconds=0.5, clock=map(float, count()))
    assert archive.kept == {}
    assert archive.cut["published"] == "messages that were published after 2026-03-01 00:05:01 UTC"


def test_what_a_message_caused_is_found_on_the_way(engine: Engine):
    names = fill(engine)
    with engine.begin() as connection:
        for child, cause in ((5, 1), (8, 5)):
            row = tables.published.c.position == child
            values = {"causation_id": names[cause], "correlation_id": "story"}
            connection.execute(tables.published.update().where(row).values(values))
        connection.execute(
            tables.published.update().where(tables.published.c.position == 1).values(correlation_id="story")
        )
    clue = Clue(message_id=names[1])
    assert sorted(row.position for row in looked(engine, clue).kept.values()) == [1, 5, 8]
    assert clue.ids == {names[1], names[5], names[8]}


def test_two_ends_of_the_outbox_that_meet_leave_nothing_out(engine: Engine):
    fill(engine, rows=6)
    archive = looked(engine, Clue(key="k"), seconds=0.5, clock=map(float, count()))
    assert (len(archive.waiting), archive.cut.get("outbox")) == (6, None)
