"""`outboxkit pause` and `outboxkit resume`, and how `outboxkit status` shows pauses."""

import json

import pytest
from sqlalchemy import Engine, insert

from outboxkit import tables
from tests.unit.cli.conftest import Run
from tests.unit.shop import rows

MOVE = ("--why", "the bank is being moved")


def see(engine: Engine, queue: str) -> None:
    """A consumer of this queue has been there."""
    with engine.begin() as connection:
        connection.execute(insert(tables.handler).values(handler="H", queue=queue))


def test_a_relay_is_paused_and_resumed(run: Run, at: str):
    ended = run("pause", "relay", *MOVE)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("the relay of destination default is paused since 2")
    assert ended.out.endswith("UTC by ada: the bank is being moved\n")
    (row,) = rows(at, tables.pause)
    assert (row["process"], row["name"], row["until"]) == ("relay", "default", None)
    ended = run("resume", "relay", "--by", "bob")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("the relay of destination default goes on; it was paused since 2")
    assert rows(at, tables.pause) == []
    ended = run("resume", "relay")
    assert (ended.code, ended.out) == (0, "the relay of destination default was not paused\n")
    assert [row["operator"] for row in rows(at, tables.audit)] == ["ada", "bob", "ada"]


def test_a_queue_is_paused_for_a_time(run: Run, at: str, engine: Engine):
    see(engine, "billing")
    ended = run("pause", "billing", "--for", "10m", *MOVE)
    assert (ended.code, ended.err) == (0, "")
    (row,) = rows(at, tables.pause)
    assert (row["process"], row["name"]) == ("consumer", "billing")
    assert (row["until"] - row["since"]).total_seconds() == 600


@pytest.mark.parametrize(
    ("queues", "said"),
    [((), "nor of any other"), (("mails", "billing"), "those of billing, mails were: is the name right?")],
)
def test_a_queue_that_nobody_has_seen_may_be_a_typo(run: Run, at: str, engine: Engine, queues: list[str], said: str):
    for queue in queues:
        see(engine, queue)
    ended = run("pause", "biling", *MOVE)
    assert ended.code == 0
    assert ended.err == f"outboxkit: no consumer of queue biling was seen on this database, {said}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("relay",), "Missing option '--why'"),
        (("relay", "--why", ""), "why is empty"),
        (("relay", "--for", "soon", *MOVE), "--for is 'soon': "),
        (("relay", "--for", "0s", *MOVE), "--for is '0s': "),
        (("", *MOVE), "a name of 1 to 255 bytes is accepted"),
    ],
)
def test_bad_input_is_refused(run: Run, at: str, arguments: tuple[str, ...], said: str):
    ended = run("pause", *arguments)
    assert ended.code == 2
    assert said in ended.err
    assert rows(at, tables.pause) == rows(at, tables.audit) == []


def test_status_shows_who_has_paused_what_and_why(run: Run, at: str, engine: Engine):
    see(engine, "billing")
    run("pause", "relay", *MOVE)
    run("pause", "billing", "--for", "10m", *MOVE)
    lines = run("status").out.splitlines()
    (first,) = [number for number, line in enumerate(lines) if line.startswith("paused")]
    assert lines[first].startswith("paused        queue billing since 2")
    assert "the relay of destination default since 2" in "".join(lines)
    assert "by ada: the bank is being moved" in " ".join(line.strip() for line in lines)
    assert "outboxkit resume relay" in " ".join(line.strip() for line in lines)
    said = json.loads(run("status", "--json").out)["figures"]["paused"]
    assert [(one["process"], one["name"], one["paused_by"], one["why"]) for one in said] == [
        ("consumer", "billing", "ada", "the bank is being moved"),
        ("relay", "default", "ada", "the bank is being moved"),
    ]
    assert said[0]["until"] > said[0]["since"]


def test_a_drain_of_a_paused_relay_exits_with_3(run: Run, at: str):
    run("pause", "relay", *MOVE)
    ended = run("relay", "--drain", "--broker-url", "amqp://127.0.0.1:1")
    assert ended.code == 3
    assert "published 0\nthe relay of destination default is paused since 2" in ended.err
