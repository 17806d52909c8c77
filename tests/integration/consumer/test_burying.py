"""Burying at a consumer: once, however often the consumer is killed before its ack."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, update

from outboxkit import statements, tables
from tests.integration.operators.dead_rows import buried, fill, letters
from tests.support.ledger_requests import waiting
from tests.support.polling import eventually


def bury(engine: Engine, *rows: dict[str, Any]) -> None:
    with engine.begin() as connection:
        connection.execute(statements.dead.bury_once(engine.dialect.name), list(rows))


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


@pytest.mark.parametrize("handler", ["SendReceipt", None])
def test_two_consumers_that_bury_one_message_at_the_same_moment_write_one_dead_letter(
    pg_engine: Engine, handler: str | None
):
    statement = statements.dead.bury_once(pg_engine.dialect.name)
    rows = [buried(handler=each) for each in {handler, "A", "Z"}]
    with ThreadPoolExecutor() as pool, pg_engine.connect() as first:
        first.execute(statement, sorted(rows, key=lambda row: row["handler"] or ""))
        second = pool.submit(bury, pg_engine, *rows, buried("m-2"))
        eventually(lambda: waiting(pg_engine))
        first.commit()
        second.result()
    assert Counter((row.message_id, row.handler) for row in letters(pg_engine).values()) == {
        **dict.fromkeys([("m-1", handler), ("m-1", "A"), ("m-1", "Z")], 1),
        ("m-2", "SendReceipt"): 1,
    }


def test_a_burial_waits_for_the_replay_of_the_dead_letter_before_it(pg_engine: Engine):
    bury(pg_engine, buried())
    with ThreadPoolExecutor() as pool, pg_engine.connect() as operator:
        operator.execute(update(tables.dead_letter).values(resolution="replayed"))
        again = pool.submit(bury, pg_engine, buried())
        eventually(lambda: waiting(pg_engine))
        operator.commit()
        again.result()
    assert [row.resolution for row in letters(pg_engine).values()] == ["replayed", None]


def test_a_dead_letter_of_the_outbox_is_another_matter(engine: Engine):
    fill(engine, [buried() | {"side": "outbox"}])
    bury(engine, buried())
    assert [row.side for row in letters(engine).values()] == ["outbox", "inbox"]
