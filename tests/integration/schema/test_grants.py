"""The rights that docs/how-to/grant-least-privileges.md grants are enough for each process, and no more than that."""

import os
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import create_engine
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

from outboxkit import Message, outbox
from tests.acceptance.worker_process import WorkerProcess
from tests.processes import COMMAND, programs
from tests.support.delays import DELAYS_TEXT
from tests.support.pages import blocks, libpq
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually

PAGE = "docs/how-to/grant-least-privileges.md"
Run = Callable[..., str]


@pytest.fixture
def shop(postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tutorial's shop, with its tables."""
    for block in blocks("docs/tutorial.md"):
        if block.kind == "file":
            path = tmp_path / block.path
            path.parent.mkdir(exist_ok=True)
            path.write_text(block.body)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTBOXKIT_DATABASE_URL", postgresql_url)
    subprocess.run([sys.executable, "-c", "from shop.models import *; Base.metadata.create_all(engine)"], check=True)


@pytest.fixture
def roles(postgresql_url: str) -> Iterator[dict[str, str]]:
    """The roles of the page, under names of their own, because roles belong to the whole server."""
    script = next(block.body for block in blocks(PAGE) if block.kind == "sql")
    made = {name: f"{name}_{secrets.token_hex(6)}" for name in re.findall(r"CREATE ROLE (\w+);", script)}
    for name, own in made.items():
        script = re.sub(rf"\b{name}\b", own, script)
    with psycopg.connect(libpq(postgresql_url), autocommit=True) as connection:
        connection.execute(script)
        yield made
        for own in made.values():
            connection.execute(f"DROP OWNED BY {own} CASCADE; DROP ROLE {own}")


@pytest.fixture
def run(shop: None, roles: dict[str, str], postgresql_url: str, broker: PlainClient) -> Run:
    """Run a command as one of the roles, with the rights on the shop's own tables besides."""
    with psycopg.connect(libpq(postgresql_url), autocommit=True) as connection:
        connection.execute(f"GRANT SELECT, INSERT, UPDATE ON orders TO {roles['shop_writer']}")
        connection.execute(f"GRANT SELECT, INSERT ON receipts TO {roles['shop_consumer']}")
        for name in ("shop_writer", "shop_consumer"):
            connection.execute(f"GRANT USAGE ON orders_id_seq, receipts_id_seq TO {roles[name]}")
    settings = {"BROKER_URL": broker.url, "EXCHANGE": broker.exchange, "RETRY_DELAYS": DELAYS_TEXT}

    def command(role: str, line: str, code: int | None = 0, **more: str) -> str:
        url = f"{postgresql_url}?options=-crole%3D{roles[role]}"
        chosen = {f"OUTBOXKIT_{name}": value for name, value in ({"DATABASE_URL": url} | settings | more).items()}
        program, *arguments = shlex.split(line)
        environment = os.environ | {"COLUMNS": "200"} | chosen
        done = subprocess.run(
            [programs() / program, *arguments], env=environment, check=False, capture_output=True, text=True
        )
        assert code in (None, done.returncode), f"{role}: {line}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    return command


def test_a_message_goes_all_the_way(run: Run, broker: PlainClient, postgresql_url: str):
    consume = f"outboxkit consume shop.handlers --queue {broker.queue} --drain"
    run("shop_consumer", consume)
    run("shop_writer", "python -m shop.orders")
    assert run("shop_relay", "outboxkit relay --drain", PUBLISHED_RETENTION="7d") == "published 1"
    assert run("shop_consumer", consume) == "processed 1"
    for command in ("trace --key order-1", "reconcile --margin 1ms"):
        assert "HandleOrderConfirmed" in run("shop_operator", f"outboxkit {command}")
    broker.publish(b"{", topic="OrderConfirmed", message_id="poison", type="OrderConfirmed")
    assert run("shop_consumer", consume) == "dead 1"
    assert "dead letters" in run("shop_operator", "outboxkit status")
    with psycopg.connect(libpq(postgresql_url)) as connection:
        connection.execute("UPDATE outboxkit_inbox SET processed_at = processed_at - interval '1 year'")
        connection.execute("UPDATE outboxkit_published SET published_at = published_at - interval '1 day'")
    pruned = run("shop_operator", "outboxkit prune", PUBLISHED_RETENTION="7d").splitlines()
    assert pruned[0] == "inbox: 1 row deleted"
    assert "partitions made" in pruned[-1]
    ended = run("shop_operator", f"outboxkit republish --to-queue {broker.queue} --yes")
    assert ended.endswith("republished 1 of 1")
    assert run("shop_consumer", consume) == "processed 1"
    with psycopg.connect(libpq(postgresql_url)) as connection:
        connection.execute("INSERT INTO outboxkit_sharding (queue, shards) VALUES (%s, 2)", [broker.queue])
    assert f"exchanges {broker.queue}.2 and" in run("shop_operator", f"outboxkit handlers forget {broker.queue}")


def test_the_operator_drops_what_the_operator_has_made(run: Run, roles: dict[str, str], postgresql_url: str):
    run("shop_operator", "outboxkit prune", PUBLISHED_RETENTION="7d")
    with psycopg.connect(libpq(postgresql_url), autocommit=True) as connection:
        (name,) = connection.execute(
            "SELECT min(relname) FROM pg_class WHERE relname ~ 'published_2.*[0-9]$'"
        ).fetchone()
        connection.execute(f"ALTER TABLE outboxkit_published DETACH PARTITION {name}")
        old = name[:-8] + "20200101"
        connection.execute(f"ALTER TABLE {name} RENAME TO {old}")
        connection.execute(
            f"ALTER TABLE outboxkit_published ATTACH PARTITION {old} "
            "FOR VALUES FROM ('2020-01-01 UTC') TO ('2020-01-02 UTC')"
        )
    assert "published: 1 day dropped, 2020-01-01" in run("shop_operator", "outboxkit prune", PUBLISHED_RETENTION="7d")


def test_dead_letters_are_buried_listed_and_brought_back(run: Run, broker: PlainClient):
    broker.declare_exchange()
    run("shop_writer", "python -m shop.orders")
    run("shop_relay", "outboxkit relay --drain", code=3)
    assert "OrderConfirmed" in run("shop_operator", "outboxkit status")
    run("shop_writer", "python -m shop.orders")
    run("shop_relay", "outboxkit relay --drain", code=3, MAX_ATTEMPTS="1")
    assert "unroutable" in run("shop_operator", "outboxkit dead list")
    run("shop_operator", "outboxkit dead replay --all --yes")
    broker.bind("OrderConfirmed")
    assert run("shop_relay", "outboxkit relay --drain").startswith("published")


def test_an_operator_pauses_a_relay_and_runs_doctor(run: Run):
    run("shop_operator", "outboxkit pause relay --why moved --for 1h")
    run("shop_relay", "outboxkit relay --drain", code=3)
    run("shop_operator", "outboxkit resume relay")
    assert "resume" in run("shop_operator", "outboxkit audit list")
    found = run("shop_operator", "outboxkit doctor --only database", code=None)
    assert re.search("not-checked|sessions-hidden|left out", found) is None
    assert "not-checked" not in run("shop_operator", "outboxkit doctor --only broker", code=None)


def test_a_parked_key_is_released(run: Run, broker: PlainClient, roles: dict[str, str], postgresql_url: str):
    broker.bind("T")
    add = f"INSERT INTO outboxkit_outbox ({COLUMNS}, key) VALUES (%s, 'T', '{{}}', %s, 'application/json', 'k')"
    with psycopg.connect(libpq(postgresql_url), autocommit=True) as writer:
        writer.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(roles["shop_writer"])))
        writer.execute(add, ["one", b"no JSON"])
        writer.execute(add, ["two", b"{}"])
        run("shop_relay", "outboxkit relay --drain", code=3, MAX_ATTEMPTS="1")
        assert "parked" in run("shop_operator", "outboxkit status")
        run("shop_operator", "outboxkit dead discard --all --yes")
        run("shop_relay", "outboxkit relay --drain")
    assert [one.properties.message_id for one in broker.take_all()] == ["two"]


def test_a_relay_sleeps_and_is_woken(
    run: Run, roles: dict[str, str], postgresql_url: str, broker: PlainClient, tmp_path: Path
):
    broker.bind("T")
    environment = {
        "OUTBOXKIT_DATABASE_URL": f"{postgresql_url}?options=-crole%3D{roles['shop_relay']}",
        "OUTBOXKIT_BROKER_URL": broker.url,
        "OUTBOXKIT_EXCHANGE": broker.exchange,
    }
    relay = WorkerProcess(
        [COMMAND, "relay"], environment | {"OUTBOXKIT_PUBLISHED_RETENTION": "7d"}, tmp_path / "relay.log"
    )
    try:
        with psycopg.connect(libpq(postgresql_url), autocommit=True) as writer:

            def listeners() -> int:
                return writer.execute("SELECT count(*) FROM outboxkit_listener").fetchone()[0]

            eventually(listeners, lambda count: count == 1)
            writer.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(roles["shop_writer"])))
            writer.execute(ADD)
            writer.execute("RESET ROLE")
        eventually(broker.depth, lambda depth: depth == 1)
        assert relay.stop() == 0
    finally:
        relay.kill()
    (warning,) = [line for line in relay.entries() if line["level"] == "warning"]
    assert warning["event"] == "partition not made, rows go to the default one"


COLUMNS = "message_id, type, payload, headers, content_type"
ROW = "'m', 'T', '{}', '{}', 'application/json'"
ADD = f"INSERT INTO outboxkit_outbox ({COLUMNS}) VALUES ({ROW})"
TABLES = ("outbox", "inbox", "attempt", "handler", "dead_letter", "published", "listener", "schema_version")
OURS = ("outboxkit_idempotency", "outboxkit_effect")
REFUSED = {
    "shop_writer": [
        "SELECT message_id FROM outboxkit_outbox",
        f"{ADD} RETURNING position",
        "UPDATE outboxkit_outbox SET payload = ''",
        "DELETE FROM outboxkit_outbox",
        *(f"SELECT * FROM outboxkit_{name}" for name in TABLES),
        *(f"DELETE FROM outboxkit_{name}" for name in TABLES),
        "TRUNCATE outboxkit_outbox",
        *(f"TRUNCATE {name}" for name in OURS),
        "LISTEN x; NOTIFY x; SELECT * FROM outboxkit_listener",
    ],
    "shop_relay": [
        "UPDATE outboxkit_outbox SET payload = ''",
        "UPDATE outboxkit_outbox SET message_id = 'other'",
        "TRUNCATE outboxkit_outbox",
        "SELECT * FROM outboxkit_inbox",
        "SELECT * FROM outboxkit_attempt",
        "SELECT * FROM outboxkit_handler",
        "INSERT INTO outboxkit_inbox (handler, message_id, type) VALUES ('h', 'm', 't')",
        "DELETE FROM outboxkit_inbox",
        "SELECT payload FROM outboxkit_dead_letter",
        "UPDATE outboxkit_dead_letter SET resolution = 'discarded'",
        "DELETE FROM outboxkit_dead_letter",
        "SELECT * FROM outboxkit_published",
        "DELETE FROM outboxkit_published",
        *(f"SELECT key FROM {name}" for name in OURS),
        *(f"DELETE FROM {name}" for name in OURS),
        "UPDATE outboxkit_schema_version SET version = 1",
        "CREATE TABLE t (id int)",
    ],
    "shop_consumer": [
        "SELECT * FROM outboxkit_outbox",
        "UPDATE outboxkit_outbox SET attempts = 0",
        "DELETE FROM outboxkit_outbox",
        "UPDATE outboxkit_inbox SET handler = 'other'",
        "UPDATE outboxkit_inbox SET processed_at = now()",
        "DELETE FROM outboxkit_inbox",
        "SELECT * FROM outboxkit_dead_letter",
        "DELETE FROM outboxkit_dead_letter",
        "DELETE FROM outboxkit_handler",
        "SELECT * FROM outboxkit_published",
        "SELECT * FROM outboxkit_listener",
        "SELECT key FROM outboxkit_idempotency",
        "DELETE FROM outboxkit_idempotency",
    ],
    "shop_operator": [
        *(f"SELECT {name} FROM outboxkit_idempotency" for name in ("key", "principal", "response_body", "steps")),
        "SELECT result FROM outboxkit_effect",
        "UPDATE outboxkit_idempotency SET response_body = ''",
        "UPDATE outboxkit_effect SET state = 'done'",
        *(f"INSERT INTO {name} (key) VALUES ('k')" for name in OURS),
        "DELETE FROM outboxkit_outbox",
        "UPDATE outboxkit_outbox SET payload = ''",
        "UPDATE outboxkit_dead_letter SET payload = ''",
        "UPDATE outboxkit_attempt SET starts = 0",
        "UPDATE outboxkit_handler SET queue = 'other'",
        "UPDATE outboxkit_schema_version SET version = 1",
        "ALTER TABLE outboxkit_outbox ADD COLUMN c int",
        "DROP TABLE outboxkit_dead_letter",
    ],
}
CASES = [(role, statement) for role, statements in REFUSED.items() for statement in statements]
LASTING = ("DELETE FROM outboxkit_audit", "UPDATE outboxkit_audit SET operator = 'bob'")
CASES += [(role, statement) for role in REFUSED for statement in LASTING]


def test_nothing_else_is_allowed(roles: dict[str, str], postgresql_url: str):
    with psycopg.connect(libpq(postgresql_url), autocommit=True) as connection:
        for role, statement in CASES:
            connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(roles[role])))
            try:
                connection.execute(statement)
            except psycopg.errors.InsufficientPrivilege:
                continue
            finally:
                connection.execute("RESET ROLE")
            pytest.fail(f"{role} may: {statement}")


def test_what_needs_more_is_named(roles: dict[str, str], postgresql_url: str):
    more = [block.body for block in blocks(PAGE) if block.kind == "sql"][1]
    dedup, cancel = (line.replace("shop_writer", roles["shop_writer"]) for line in more.splitlines())
    engine = create_engine(f"{postgresql_url}?options=-crole%3D{roles['shop_writer']}")

    def add_once() -> None:
        with Session(engine) as session, session.begin():
            outbox.add(session, Message("m", "T", b"{}"), dedup=True)

    def take_back() -> bool:
        with Session(engine) as session, session.begin():
            return outbox.cancel(session, "m")

    with psycopg.connect(libpq(postgresql_url), autocommit=True) as owner:
        for work, grant in ((add_once, dedup), (take_back, cancel)):
            with pytest.raises(ProgrammingError, match="permission denied"):
                work()
            owner.execute(grant)
            work()
        assert owner.execute("SELECT count(*) FROM outboxkit_outbox").fetchone() == (0,)
    engine.dispose()
