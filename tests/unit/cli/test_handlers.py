"""`outboxkit handlers`: what consumers have registered, and what an operator forgets."""

import json

import pytest
from sqlalchemy import Engine, insert

from outboxkit import tables
from tests.unit.cli.conftest import Run
from tests.unit.shop import rows


@pytest.fixture(autouse=True)
def _known(at: str, engine: Engine) -> None:
    known = [
        {"handler": "SendReceipt", "queue": queue, "function": "shop.send", "types": '["Paid"]'}
        for queue in ("biling", "billing")
    ]
    with engine.begin() as connection:
        connection.execute(insert(tables.handler), known)


def test_the_handlers_are_listed(run: Run):
    lines = [line.split() for line in run("handlers", "list").out.splitlines()]
    assert lines[0] == ["queue", "handler", "last", "seen", "types", "function"]
    assert [line[:2] + line[-2:] for line in lines[1:]] == [
        [queue, "SendReceipt", "Paid", "shop.send"] for queue in ("biling", "billing")
    ]
    (first, _) = json.loads(run("handlers", "list", "--json").out)
    assert (first["queue"], first["types"]) == ("biling", ["Paid"])
    assert set(first) == {
        *("queue", "handler", "function", "types", "first_seen", "last_seen", "retention", "is_connected")
    }


def test_a_queue_is_forgotten_and_the_trail_knows_it(run: Run, at: str):
    ended = run("handlers", "forget", "biling", "--by", "ada")
    assert (ended.code, ended.out) == (0, "forgot 1 handler of queue biling: SendReceipt\n")
    assert [row["queue"] for row in rows(at, tables.handler)] == ["billing"]
    (action,) = rows(at, tables.audit)
    assert (action["action"], action["affected"], action["result"]) == ("handlers forget", 1, "done")
    ended = run("handlers", "forget", "biling")
    assert (ended.code, ended.err) == (
        2,
        "outboxkit: no consumer of queue 'biling' is known here; known are billing\n",
    )
    run("handlers", "forget", "billing")
    assert run("handlers", "list").out == "no handler\n"
