"""`outboxkit requests list` and `show`: states and times, and nothing of what was asked or answered."""

import json
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, insert, update

from outboxkit import tables
from tests.unit.cli.conftest import Run

NOW = datetime.now(UTC)
HOUR = timedelta(hours=1)
SECRET = b"card 4111"


def fill(engine: Engine) -> None:
    row = {"scope": "POST /orders", "principal": "ann", "fingerprint": SECRET, "token": "hunter2", "created_at": NOW}
    done = {"state": "done", "response_status": 201, "response_headers": SECRET, "response_body": SECRET}
    done |= {"locked_until": None, "steps": None}
    busy = dict.fromkeys(done) | {"state": "processing", "locked_until": NOW + HOUR, "steps": SECRET}
    with engine.begin() as connection:
        for number, (key, state) in enumerate((("k1", done), ("k2", busy), ("k1", done))):
            own = {"key": key, "principal": f"ann-{number}" if number else "", "expires_at": NOW + (number + 1) * HOUR}
            connection.execute(insert(tables.idempotency).values(row | state | own))


def test_keys_are_listed_without_anything_of_the_request_or_the_answer(run: Run, engine: Engine, database_url: str):
    on = ("--database-url", database_url)
    assert run("requests", "list", *on).out == "no request is remembered\n"
    fill(engine)
    shown = run("requests", "list", *on)
    assert (shown.code, [line.split()[0] for line in shown.out.splitlines()]) == (0, ["key", "k1", "k2", "k1"])
    listed = json.loads(run("requests", "list", "--state", "processing", "--json", *on).out)
    assert [(one["key"], one["state"], one["response_status"]) for one in listed] == [("k2", "processing", None)]
    one = run("requests", "show", "k1", *on)
    assert "answer        status 201; a repetition gets it again" in one.out
    assert "caller        anybody: the key is nobody's own" in one.out
    as_json = run("requests", "show", "k2", "--json", *on).out
    for text in (shown.out, one.out, as_json):
        assert "4111" not in text
        assert "hunter2" not in text
    with engine.begin() as connection:
        connection.execute(update(tables.idempotency).values(expires_at=NOW - HOUR))
    assert run("requests", "list", *on).out.count("expired") == 3
    assert "no request matches" in run("requests", "list", "--state", "processing", *on).out, "they are expired"


def test_bad_input_and_unknown_keys_are_told(run: Run, engine: Engine, database_url: str):
    on = ("--database-url", database_url)
    assert run("requests", "list", "--state", "open", *on).code == 2
    assert (
        run("requests", "list", "--scope", "GET /", *on).out == "no request matches among the 10 000 that expire last\n"
    )
    unknown = run("requests", "show", "k\x1b[31m", *on)
    assert (unknown.code, unknown.out) == (1, "")
    assert "it was never taken, or" in unknown.err
    assert "\x1b" not in unknown.err
