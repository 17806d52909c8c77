"""Burying at a consumer: once, however often the consumer is killed before its ack."""

from typing import Any

from sqlalchemy import Engine

from outboxkit import statements
from tests.integration.dead_rows import buried, fill, letters


def bury(engine: Engine, *rows: dict[str, Any]) -> None:
    with engine.begin() as connection:
        connection.execute(statements.dead.bury_once(), list(rows))


def test_a_burial_is_repeated_without_a_second_dead_letter(engine: Engine):
    for _ in range(2):
        bury(engine, buried(), buried(handler="BookIncome"), buried(handler=None))
    assert [row.handler for row in letters(engine).values()] == ["SendReceipt", "BookIncome", None]


def test_another_queue_or_message_has_its_own(engine: Engine):
    bury(engine, buried())
    bury(engine, buried(queue="shipping"), buried("m-2"), buried())
    assert [(row.queue, row.message_id) for row in letters(engine).values()] == [
        ("billing", "m-1"),
        ("shipping", "m-1"),
        ("billing", "m-2"),
    ]


def test_what_has_no_id_is_like_no_other(engine: Engine):
    bury(engine, buried(None), buried(None))
    bury(engine, buried(None))
    assert len(letters(engine)) == 3


def test_one_that_was_replayed_and_dies_again_is_a_new_dead_letter(engine: Engine):
    fill(engine, [buried() | {"resolution": "replayed", "resolved_by": "somebody"}])
    bury(engine, buried())
    assert [row.resolution for row in letters(engine).values()] == ["replayed", None]


def test_a_dead_letter_of_the_outbox_is_another_matter(engine: Engine):
    fill(engine, [buried() | {"side": "outbox"}])
    bury(engine, buried())
    assert [row.side for row in letters(engine).values()] == ["outbox", "inbox"]


def test_all_that_was_given_is_kept(engine: Engine):
    bury(engine, buried(payload=b"\xff\x00", error="a\nb", attempts=3))
    (row,) = letters(engine).values()
    assert {name: getattr(row, name) for name in statements.dead.BURIED} == buried(
        payload=b"\xff\x00",
        error="a\nb",
        attempts=3,
    )
    assert row.dead_at is not None
    assert not row.parked
