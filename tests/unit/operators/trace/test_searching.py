"""The bounded search, on SQLite; tests/integration/test_trace.py has PostgreSQL."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from sqlalchemy import Engine, insert

from outboxkit import ids, tables
from outboxkit.operators.trace import searching
from outboxkit.operators.trace.clue import Clue
from outboxkit.operators.trace.entries import Archive
from outboxkit.operators.trace.reading import find_messages
from outboxkit.operators.trace.searching import search

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


def looked(
    engine: Engine,
    clue: Clue,
    *,
    seconds: float = 60,
    clock: Iterator[float] | None = None,
    now: datetime | None = None,
) -> Archive:
    archive = Archive("db", now or START + timedelta(hours=1))
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
        "published before": "messages that were published before 2026-03-01 00:00:07 UTC",
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
    archive = looked(engine, Clue(message_id=names[300]), seconds=0.5, clock=map(float, count()))
    assert [row.message.message_id for row in archive.kept.values()] == [names[300]]
    assert [archive.cut[name] for name in ("published after", "published before")] == [
        "messages that were published after 2026-03-01 00:05:02 UTC",
        "messages that were published before 2026-03-01 00:04:57 UTC",
    ]


@pytest.mark.parametrize("ahead", [timedelta(minutes=20), timedelta(days=2)], ids=["was ahead", "is ahead"])
def test_a_message_whose_producers_clock_is_ahead_is_found(engine: Engine, ahead: timedelta):
    id_ = ids.new(at=START + ahead)
    with engine.begin() as connection:
        row = ROW | {"message_id": id_, "position": 1, "published_at": START}
        connection.execute(insert(tables.published), row)
    archive = looked(engine, Clue(message_id=id_), seconds=-1, now=START + timedelta(minutes=30))
    assert [row.message.message_id for row in archive.kept.values()] == [id_]


def test_a_time_in_the_id_is_where_the_outbox_is_read_from(engine: Engine):
    """Whatever waits for its time in between, and although some producers' clocks differ by a second."""
    names = [ids.new(at=START + n * SECOND) for n in range(1000)]
    later = {"created_at": START + timedelta(days=9), "due_at": START + timedelta(days=9)}
    with engine.begin() as connection:
        rows = [{"message_id": id_, "created_at": START + n * SECOND + n % 2 * SECOND} for n, id_ in enumerate(names)]
        connection.execute(insert(tables.outbox), [ROW | {"due_at": None} | row for row in rows[:400]])
        connection.execute(insert(tables.outbox), [ROW | later | {"message_id": f"d-{n}"} for n in range(50)])
        connection.execute(insert(tables.outbox), [ROW | {"due_at": None} | row for row in rows[400:]])
    for number in (0, 1, 250, 399, 401, 777, 999):
        archive = looked(engine, Clue(message_id=names[number]), seconds=-1)
        assert [row.message.message_id for row in archive.waiting.values()] == [names[number]], number
    assert archive.cut == {"outbox before": "messages of the outbox before position 1047"}
    nothing = looked(engine, Clue(message_id=ids.new(at=START + timedelta(days=5))), seconds=-1)
    assert nothing.waiting == {}


def test_a_large_story_is_cut_off_and_said(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(searching, "MOST", 4)
    names = fill(engine)
    archive = looked(engine, Clue(key="k"))
    assert [len(entries) for entries in (archive.waiting, archive.kept, archive.letters)] == [4, 4, 4]
    assert archive.cut == {
        "outbox": "messages of the outbox between the positions 1 and 6, as 4 had been found",
        "published before": "messages that were published before 2026-03-01 00:00:05 UTC, as 4 had been found",
        "dead_letter": "dead letters before number 6, as 4 had been found",
    }
    monkeypatch.setattr(searching, "MOST", 10)
    assert looked(engine, Clue(key="k")).cut == {}
    assert len(names) == 10


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
