"""`outboxkit dead list` and `outboxkit dead show`."""

import json
import re

import pytest
from sqlalchemy import Engine

from tests.integration.operators.dead_rows import buried, dead, fill
from tests.unit.cli.conftest import Run

pytestmark = pytest.mark.usefixtures("at")


def test_the_newest_first_and_how_many_more(run: Run, engine: Engine):
    fill(engine, [dead(place, key=f"order-{place}") for place in range(1, 6)])
    ended = run("dead", "list", "--limit", "2")
    head, first, second, more = ended.out.splitlines()
    assert head.split() == ["no.", "message", "id", "type", "key", "side", "reason", "attempts", "age", "state"]
    assert re.sub(r"\d+ min", "some min", first).split() == [
        *("5", "m-5", "OrderConfirmed", "order-5", "outbox", "rejected", "10", "3", "h", "some", "min", "parked")
    ]
    assert second.split()[0] == "4"
    assert more.startswith("and 3 more")


def test_list_as_json(run: Run, engine: Engine):
    fill(engine, [dead(1), dead(2)])
    found = json.loads(run("dead", "list", "--json", "--limit", "1").out)
    assert (found["more"], found["at_least"]) == (1, False)
    (letter,) = found["dead_letters"]
    assert (letter["id"], letter["message_id"], letter["position"]) == (2, "m-2", 2)
    assert "payload" not in letter


def test_the_inbox_is_listed_with_its_queue_and_handler(run: Run, engine: Engine):
    fill(engine, [buried("x"), buried("y", reason="stale", handler=None)])
    ended = run("dead", "list")
    _, stale, failed, legend = ended.out.splitlines()
    assert stale.split()[4:7] == ["inbox:", "billing", "stale"]
    assert stale.split()[-1] == "stale"
    assert failed.split()[4:7] == ["inbox:", "billing,", "SendReceipt"]
    assert failed.split()[-1] == "open"
    assert legend.startswith("stale: older than the inbox is sure to remember")
    found = json.loads(run("dead", "list", "--json").out)["dead_letters"]
    assert [(one["queue"], one["handler"], one["refused"]) for one in found] == [
        ("billing", None, "stale"),
        ("billing", "SendReceipt", None),
    ]


def test_show_says_what_a_replay_would_do(run: Run, engine: Engine):
    fill(engine, [buried("x"), buried("y", reason="stale")])
    assert [one["refused"] for one in json.loads(run("dead", "show", "1", "2", "--json").out)] == [None, "stale"]


def test_show_by_number_and_by_message_id(run: Run, engine: Engine):
    fill(engine, [dead(1), dead(2, message_id="same"), dead(3, message_id="same")])
    ended = run("dead", "show", "1", "same")
    assert [line for line in ended.out.splitlines() if line.startswith("dead letter")] == [
        f"dead letter {number} of the outbox: rejected" for number in (1, 2, 3)
    ]
    assert [one["id"] for one in json.loads(run("dead", "show", "same", "--json").out)] == [2, 3]


def test_groups_are_counted_the_largest_first_and_filters_choose_them(run: Run, engine: Engine):
    fill(engine, [buried(f"a{n}", error="ValueError: no account") for n in range(2)])
    fill(engine, [buried("b", error="TimeoutError", handler="Ship")])
    fill(engine, [dead(7, error=None)])
    head, *lines = run("dead", "list", "--group-by", "error").out.splitlines()
    assert head.split() == ["count", "first", "last", "example", "error"]
    assert (lines[0].split()[0], lines[0].endswith("ValueError: no account")) == ("2", True)
    grouped = json.loads(run("dead", "list", "--group-by", "handler", "--json").out)
    assert [(one["value"], one["rows"], one["example"]) for one in grouped] == [
        ("SendReceipt", 2, 1),
        ("Ship", 1, 3),
        (None, 1, 4),
    ]
    only = json.loads(run("dead", "list", "--error", "account", "--json").out)["dead_letters"]
    assert [one["message_id"] for one in only] == ["a1", "a0"]
    assert run("dead", "list", "--handler", "Ship", "--group-by", "type").out.splitlines()[1].split()[0] == "1"
    refused = run("dead", "list", "--group-by", "age")
    assert (refused.code, "error, type, handler, key are accepted" in refused.err) == (2, True)
