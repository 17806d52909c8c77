"""`outboxkit reconcile` on SQLite; tests/integration/operators/test_reconcile.py has PostgreSQL."""

import json
import shlex
import subprocess
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, insert

from outboxkit import tables
from outboxkit.runtime.urls import shown
from tests.support.databases import SqliteCopies
from tests.unit.cli.conftest import Run

NOW = datetime.now(UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
KEPT = {"type": "T", "payload": b"{}", "headers": b"{}", "content_type": "x", "published_at": NOW - HOUR}
LETTER = {name: KEPT[name] for name in ("type", "payload", "headers", "content_type")}
LETTER |= {"side": "inbox", "queue": "q", "reason": "failed", "attempts": 10}
HANDLER = {"handler": "H", "queue": "q", "types": '["T"]'}


def write(url: str, table: Any, *rows: dict[str, Any]) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for row in rows:
            connection.execute(insert(table), row)
    engine.dispose()


def publish(url: str, *ids: str, **more: Any) -> None:
    write(url, tables.published, *(KEPT | {"message_id": id_, "position": hash(id_) % 10**9} | more for id_ in ids))


def handle(url: str, *ids: str, handler: str = "H") -> None:
    write(url, tables.inbox, *({"handler": handler, "message_id": id_, "type": "T"} for id_ in ids))


@pytest.fixture
def consumer_url(tmp_path: Path, migrated_sqlite: SqliteCopies) -> str:
    url = migrated_sqlite.copy(tmp_path / "consumer.db")
    write(url, tables.handler, HANDLER)
    return url


@pytest.fixture
def reconcile(run: Run, database_url: str, consumer_url: str) -> Any:
    def command(*arguments: str) -> Any:
        return run("reconcile", "--producer", database_url, "--consumer", consumer_url, *arguments)

    return command


def test_nothing_is_missing(reconcile: Any, database_url: str, consumer_url: str):
    publish(database_url, "a", "b", "c")
    handle(consumer_url, "a", "b", "c", "of others")
    ended = reconcile()
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == f"producer      {database_url}"
    assert lines[3].startswith("published     3 kept messages, from ")
    assert lines[4] == "margin        1 min 0 s: what was published later than that ago may be in flight"
    assert [line.split() for line in lines[6:8]] == [
        ["handler", "queue", "expected", "processed", "dead", "waiting", "missing"],
        ["H", "q", "3", "3", "0", "0", "0"],
    ]
    assert lines[-3].startswith("result        nothing is missing")
    assert lines[-2].startswith("left out      handled messages that the producer does not know")


def test_an_id_with_several_payloads_is_a_loss(reconcile: Any, database_url: str, consumer_url: str):
    for number in range(50):
        publish(database_url, "order-confirmation", payload=b'{"order":%d}' % number, position=number)
    publish(database_url, "twice", position=100)
    publish(database_url, "twice", position=101)
    handle(consumer_url, "order-confirmation", "twice")
    ended = reconcile()
    assert ended.code == 1
    assert "result        0 missing; 1 id published with different payloads" in ended.out.splitlines()
    assert "50 messages with different payloads were published under the id" in ended.out
    document = json.loads(reconcile("--json").out)
    assert (document["published"], document["ambiguous_ids"]) == (52, 1)
    assert document["ambiguous"] == {"order-confirmation": 50}


def test_a_database_that_knows_no_handler_proves_nothing(
    run: Run, database_url: str, tmp_path: Path, migrated_sqlite: SqliteCopies
):
    publish(database_url, "a")
    another = migrated_sqlite.copy(tmp_path / "another.db")
    ended = run("reconcile", "--producer", database_url, "--consumer", another)
    assert ended.code == 3
    assert "result        nothing was compared" in ended.out.splitlines()


def test_every_fate_has_a_count(reconcile: Any, database_url: str, consumer_url: str):
    publish(database_url, "a", "crashed", "dead", "discarded", "gone", "malformed", "replayed", "replayed-now")
    publish(database_url, "put-back")
    publish(database_url, "young", published_at=datetime.now(UTC))
    handle(consumer_url, "a")
    write(consumer_url, tables.attempt, {"queue": "q", "message_id": "crashed", "starts": 1})
    write(consumer_url, tables.attempt, {"queue": "another", "message_id": "gone", "starts": 1})
    write(
        consumer_url,
        tables.outbox,
        {name: KEPT[name] for name in ("type", "payload", "headers", "content_type")}
        | {"message_id": "put-back", "queue": "q"},
    )
    resolved = {"resolution": "replayed", "resolved_by": "ann", "resolved_at": NOW - HOUR, "handler": "H"}
    write(
        consumer_url,
        tables.dead_letter,
        LETTER | {"message_id": "dead", "handler": "H"},
        LETTER | {"message_id": "malformed", "queue": "q"},
        LETTER | {"message_id": "gone", "queue": "another"},
        LETTER | resolved | {"message_id": "gone", "queue": "another", "resolution": "discarded", "handler": None},
        LETTER | {"message_id": "gone", "handler": "Other"},
        LETTER | {"message_id": "gone", "handler": "H", "side": "outbox"},
        LETTER | resolved | {"message_id": "replayed"},
        LETTER | resolved | {"message_id": "put-back"},
        LETTER | resolved | {"message_id": "replayed-now", "resolved_at": datetime.now(UTC) + HOUR},
        LETTER | resolved | {"message_id": "discarded", "queue": "q", "resolution": "discarded", "handler": None},
    )
    ended = reconcile("--json")
    assert ended.code == 1
    document = json.loads(ended.out)
    (tally,) = document["handlers"]
    counts = {name: tally[name] for name in ("expected", "processed", "dead", "waiting", "missing")}
    assert counts == {"expected": 10, "processed": 2, "dead": 2, "waiting": 4, "missing": 2}
    assert sorted(Path(tally["missing_file"]).read_text().split()) == ["gone", "replayed"]
    assert document["missing"] == 2


FEW, MANY = ["m 2", "m-1"], [f"n-{number:03}" for number in range(100)]


def test_a_shell_reads_the_command_with_names_of_any_characters(reconcile: Any, database_url: str, consumer_url: str):
    name = "it's a\nname; $(id)"
    write(consumer_url, tables.handler, {"handler": name, "queue": name, "types": '["T"]'})
    publish(database_url, "gone")
    lines = [line[14:] for line in reconcile().out.splitlines() if " --to-queue " in line]
    (command,) = [line for line in lines if "--to-queue q " not in line]
    script = f"outboxkit() {{ printf '%s|' \"$@\"; }}; {command}"
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith(f"republish|--to-queue|{name}|--handler|{name}|--since|")


@pytest.mark.parametrize(("missing", "handled"), [(FEW, MANY), ([*FEW, *MANY], [])], ids=["few", "many"])
def test_the_command_replays_exactly_what_is_missing(
    run: Run,
    reconcile: Any,
    database_url: str,
    consumer_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    missing: list[str],
    handled: list[str],
):
    publish(database_url, *FEW, *MANY, "there")
    handle(consumer_url, "there", *handled)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = reconcile()
    assert ended.code == 1
    (command,) = [line[14:] for line in ended.out.splitlines() if line.startswith("replay  ")]
    name, *arguments = shlex.split(command)
    assert name == "outboxkit"
    again = run(*arguments, "--dry-run", "--database-url", database_url)
    assert again.out.startswith(
        f"{len(missing)} message{'s' * (len(missing) != 1)} for queue q and its handlers H alone, published from"
    )
    assert "not kept" not in again.out
    files = [path.read_text().splitlines() for path in (tmp_path.glob("outboxkit-missing-*"))]
    assert [sorted(ids) for ids in files] == [sorted(missing)]


def test_what_is_wrong_is_named(run: Run, database_url: str, tmp_path: Path):
    ended = run("reconcile", "--producer", database_url)
    assert ended.code == 2
    assert ended.err.startswith("outboxkit: OUTBOXKIT_DATABASE_URL is not set")
    for option in ("--producer", "--consumer"):
        ended = run("reconcile", "--producer", database_url, "--consumer", database_url, option, f"@{tmp_path}/none")
        assert (ended.code, f"{option} is '{tmp_path}/none': it cannot be read" in ended.err) == (2, True)
    ended = run("reconcile", "--producer", database_url, "--consumer", database_url, "--margin", "soon")
    assert (ended.code, "--margin is 'soon'" in ended.err) == (2, True)


def test_a_file_with_the_url_is_named_in_the_command(run: Run, database_url: str, consumer_url: str, tmp_path: Path):
    (tmp_path / "shop.url").write_text(database_url)
    publish(database_url, "gone")
    ended = run("reconcile", "--producer", f"@{tmp_path}/shop.url", "--consumer", consumer_url)
    assert f".txt --database-url @{tmp_path}/shop.url\n" in ended.out
    assert "OUTBOXKIT_DATABASE_URL" not in ended.out


@pytest.mark.parametrize("side", ["producer", "consumer"])
def test_an_error_names_its_database(run: Run, database_url: str, consumer_url: str, empty_url: str, side: str):
    Path(empty_url.removeprefix("sqlite:///")).touch()
    urls = {"producer": database_url, "consumer": consumer_url} | {side: empty_url}
    ended = run("reconcile", "--producer", urls["producer"], "--consumer", urls["consumer"])
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"outboxkit: {shown(empty_url)}: the outboxkit tables are missing")
