"""Selections as conditions. What the statements do is tested in tests/integration/operators/test_deadletters.py."""

from dataclasses import fields

import pytest

from outboxkit import tables
from outboxkit.statements import dead
from outboxkit.statements.dead import Selection
from tests.unit.shop import NOW

GIVEN = {
    "numbers": (7,),
    "message_ids": ("m-1",),
    "type": "T",
    "key": "k",
    "reason": "expired",
    "side": "inbox",
    "destination": "payments",
    "before": NOW,
    "since": NOW,
}


def conditions(selection: Selection) -> str:
    return str(dead.whole(selection)).partition("WHERE")[2].partition("ORDER BY")[0]


def test_open_ones_alone_unless_asked_otherwise():
    assert conditions(Selection()).strip() == "outboxkit_dead_letter.resolution IS NULL"
    assert "resolution" not in conditions(Selection(resolved=True))


@pytest.mark.parametrize("name", GIVEN)
def test_each_field_is_a_condition(name: str):
    column = {"numbers": "id", "message_ids": "message_id", "before": "dead_at", "since": "dead_at"}.get(name, name)
    assert f"outboxkit_dead_letter.{column} " in conditions(Selection(**{name: GIVEN[name]}))


def test_every_field_is_tested():
    assert {field.name for field in fields(Selection)} == {*GIVEN, "resolved"}


def test_a_list_reads_nothing_large():
    names = {column.name for column in dead.newest(Selection()).selected_columns}
    assert names == {column.name for column in tables.dead_letter.columns} - {"payload", "headers", "traceback"}


def test_what_a_replay_may_refuse_is_looked_at_without_what_is_large():
    names = {column.name for column in dead.replay_candidates(Selection()).selected_columns}
    assert names == {*dead.JUDGED}
    assert not names & {"payload", "headers", "error"}


def test_a_consumer_says_all_that_is_not_said_later():
    """A new column of the dead letters is either given at the burial or named here."""
    later = {"id", "dead_at", "position", "parked", "discard_unroutable", "resolution", "resolved_at", "resolved_by"}
    later |= {"destination", "reply"}  # of a row of the outbox; what goes back to a queue goes by way of `default`
    assert {*dead.BURIED} == {column.name for column in tables.dead_letter.columns} - later
