"""What `outboxkit doctor` finds about messages, handlers and retention, each finding produced for real."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, delete, insert

from outboxkit import tables
from outboxkit.errors.figures import COUNTED
from outboxkit.operators.doctor import messages, retention, shards
from outboxkit.operators.findings import Diagnosis, Limits
from outboxkit.operators.pausing import pause_process
from outboxkit.runtime import process
from outboxkit.runtime.outage import utc_now
from outboxkit.runtime.retention import Periods, Retention
from outboxkit.runtime.workers import CONSUMER, RELAY
from tests.integration.operators.dead_rows import ENVELOPE, fill
from tests.integration.operators.dead_rows import dead as dead_row
from tests.integration.operators.doctoring import codes, connected, look, one, with_engines
from tests.integration.operators.kept import row as kept_row
from tests.unit.cli.conftest import Run

HANDLER = "INSERT INTO outboxkit_handler (handler, queue, last_seen) VALUES (%s, %s, now() - interval '3 hours')"


def add(engine: Engine, message_id: str = "m", **more: object) -> None:
    known = ENVELOPE | {"message_id": message_id, "created_at": utc_now() - timedelta(hours=2)}
    fill(engine, [], [known | more])


def of_relays(url: str, **more: Any) -> list[Diagnosis]:
    return look(url, messages.check_relays, **{"limits": Limits()} | more)


@pytest.mark.parametrize(
    ("row", "limits", "severity", "what"),
    [
        ({}, Limits(), "problem", "1 message could go now, and the oldest waits for 2 h 0 min, and no session of a"),
        ({}, Limits(waiting=timedelta(days=1)), "warning", "1 message could go now, and the oldest waits for 2 h"),
        ({"due_at": utc_now() - timedelta(hours=5)}, Limits(), "problem", "1 message could go now, and the oldest"),
    ],
    ids=["for long", "since just now", "its time has come"],
)
def test_a_relay_that_nobody_runs(
    postgresql_url: str, pg_engine: Engine, row: dict[str, object], limits: Limits, severity: str, what: str
) -> None:
    add(pg_engine, "later", due_at=utc_now() + timedelta(days=99))
    assert of_relays(postgresql_url) == []
    add(pg_engine, **row)
    (finding,) = of_relays(postgresql_url, limits=limits)
    assert (finding.code, finding.severity, finding.commands) == ("relay-missing", severity, ("outboxkit relay",))
    assert finding.what.startswith(what)
    assert finding.what.endswith("and no session of a relay for it is connected.")


def test_commands_name_the_destination_unless_the_settings_do(postgresql_url: str, pg_engine: Engine) -> None:
    add(pg_engine)
    add(pg_engine, "n", destination="crm")
    (finding,) = of_relays(postgresql_url, destination="crm")
    assert sorted(finding.commands) == ["outboxkit relay", "outboxkit relay --destination default"]


def test_a_relay_that_does_not_get_on(postgresql_url: str, pg_engine: Engine) -> None:
    add(pg_engine)
    with connected(postgresql_url, name="outboxkit relay"):
        (finding,) = of_relays(postgresql_url)
    assert (finding.code, finding.severity) == ("relay-stuck", "problem")
    assert "though 1 session of a relay for it is connected" in finding.what
    assert "end the relay's process: its supervisor starts it again" in finding.cure
    assert "Meanwhile a relay beside it moves what waits" in finding.cure
    assert finding.commands == ("outboxkit relay --drain",)
    with connected(postgresql_url, name="outboxkit relay"), connected(postgresql_url, name="outboxkit relay"):
        (finding,) = of_relays(postgresql_url)
    assert "though 2 sessions of a relay for it are connected" in finding.what


def test_a_relay_that_is_paused_is_not_missed(postgresql_url: str, pg_engine: Engine) -> None:
    add(pg_engine)
    with pg_engine.begin() as connection:
        pause_process(connection, RELAY, "default", why="new disks", by="ada")
        pause_process(connection, CONSUMER, "billing", why="a bad deployment", by="bob")
    assert of_relays(postgresql_url) == []
    relay, queue = sorted(
        look(postgresql_url, messages.check_pauses), key=lambda finding: finding.commands, reverse=True
    )
    assert (relay.code, relay.commands) == ("paused", ("outboxkit resume relay",))
    assert relay.what.startswith("the relay of destination default is paused since ")
    assert relay.what.endswith(": new disks.")
    assert queue.commands == ("outboxkit resume billing",)


def test_all_destinations_without_a_relay_are_one_finding(postgresql_url: str, pg_engine: Engine) -> None:
    for number in range(12):
        add(pg_engine, f"m-{number}", destination=f"hook {number:02}")
    with connected(postgresql_url, name=process.relay_name("hook 00")):
        stuck, alone = of_relays(postgresql_url)
    assert (stuck.code, alone.code) == ("relay-stuck", "relay-missing")
    assert "1 message to hook 01 could go now, and the oldest waits for 2 h 0 min; 1 message to hook 02" in alone.what
    assert alone.what.endswith("; and 1 other destination, and no session of a relay for them is connected.")
    assert alone.commands[0] == "outboxkit relay --destination 'hook 01' --broker-url URL"
    assert len(alone.commands) == 10


def test_a_key_that_is_parked_and_cannot_be_printed(postgresql_url: str, pg_engine: Engine) -> None:
    fill(pg_engine, [dead_row(7, key="order\n7", error="rejected: the queue is full")])
    add(pg_engine, key="order\n7", held=True, due_at=tables.PARKED)
    parked, dead = look(postgresql_url, messages.check_dead_letters)
    assert (parked.code, parked.severity) == ("key-parked", "problem")
    assert parked.what == (
        r"The key order\n7 is parked: 1 message waits behind 1 dead letter. The first is message m-7, "
        "rejected: the queue is full."
    )
    number = parked.commands[0].rpartition(" ")[2]
    assert parked.commands[1:] == (f"outboxkit dead replay {number}", f"outboxkit dead discard {number}")
    assert dead.code == "dead-letters"


def test_dead_letters_beyond_those_that_are_counted(postgresql_url: str) -> None:
    with connected(postgresql_url) as connection:
        connection.execute(
            "INSERT INTO outboxkit_dead_letter (side, type, payload, headers, content_type, reason, attempts) "
            "SELECT 'inbox', 'T', '', '{}', 'x', 'failed', 1 FROM generate_series(1, %s)",
            (COUNTED + 5,),
        )
    (finding,) = look(postgresql_url, messages.check_dead_letters)
    assert finding.what.startswith("more than 10 000 dead letters are open (more than 10 000 inbox failed). ")
    assert finding.commands[0] == "outboxkit dead list --group-by error"


def test_a_dead_letter_that_nobody_decides_on(postgresql_url: str, pg_engine: Engine) -> None:
    fill(pg_engine, [dead_row(7, dead_at=utc_now() - timedelta(days=3), error="rejected: the queue is full")])
    (finding,) = look(postgresql_url, messages.check_dead_letters)
    assert (finding.code, finding.severity) == ("dead-letters", "warning")
    assert finding.what == (
        "1 dead letter is open (1 outbox rejected). The oldest, for 3 d 0 h: OrderConfirmed, rejected: the queue is "
        "full"
    )
    assert finding.commands[0] == "outboxkit dead list"


def test_a_call_that_may_have_happened(postgresql_url: str) -> None:
    with connected(postgresql_url) as connection:
        connection.execute(
            "INSERT INTO outboxkit_effect (key, state, token, started_at, used_at, locked_until) "
            "VALUES ('mail-7', 'started', 't', now() - interval '1 hour', now(), now() - interval '1 minute')"
        )
        finding = one(postgresql_url, messages.check_effects, "effect-unknown")
        assert connection.execute(finding.commands[0]).fetchone()[0] == "mail-7"


def test_two_queues_with_one_handler_name(postgresql_url: str) -> None:
    known = "INSERT INTO outboxkit_handler (handler, queue, function, types) VALUES ('SendReceipt', %s, %s, '[\"T\"]')"
    with connected(postgresql_url) as connection:
        connection.execute(known, ("billing", "shop.bill"))
        connection.execute(known, ("mails", "shop.bill"))
        assert codes(postgresql_url, retention.check_names) == []
        connection.execute("UPDATE outboxkit_handler SET function = 'shop.mail' WHERE queue = 'mails'")
        (finding,) = look(postgresql_url, retention.check_names)
        assert (finding.code, finding.severity) == ("handler-name-shared", "problem")
        assert finding.commands == ("outboxkit handlers forget billing  # if the queue was a mistake",)
        assert finding.what.endswith("SendReceipt each: two functions, shop.bill and shop.mail, and both take T.")
        connection.execute("INSERT INTO outboxkit_inbox (handler, message_id, type) VALUES ('SendReceipt', 'm', 'T')")
        with connected(postgresql_url, name="outboxkit consumer billing"):
            (finding,) = look(postgresql_url, retention.check_names)
        assert finding.what.startswith("Queues billing (connected now) and mails (last seen")
        assert finding.cure.startswith("Do not rename it")
        assert finding.commands == ("outboxkit handlers forget mails  # if the queue was a mistake",)


def test_a_consumer_that_has_gone(postgresql_url: str, run: Run) -> None:
    with connected(postgresql_url) as connection:
        connection.execute(HANDLER, ("SendReceipt", "q; touch pwned #"))
    (finding,) = look(postgresql_url, retention.check_consumers, limits=Limits())
    assert finding.commands[0] == "outboxkit consume MODULE --queue 'q; touch pwned #'"
    with connected(postgresql_url) as connection:
        connection.execute("DELETE FROM outboxkit_handler")
        connection.execute(HANDLER, ("SendReceipt", "billing"))
    (finding,) = look(postgresql_url, retention.check_consumers, limits=Limits())
    assert (finding.code, finding.commands) == (
        "consumer-gone",
        ("outboxkit consume MODULE --queue billing", "outboxkit handlers forget billing  # if the queue is given up"),
    )
    with connected(postgresql_url) as connection:
        connection.execute("INSERT INTO outboxkit_sharding (queue, shards) VALUES ('billing', 4)")
        (finding,) = look(postgresql_url, retention.check_consumers, limits=Limits())
        assert finding.commands[0] == "outboxkit consume MODULE --queue billing --ordered --shards 4"
        connection.execute("DELETE FROM outboxkit_sharding")
    with connected(postgresql_url, name="outboxkit consumer billing-copies"):
        assert codes(postgresql_url, retention.check_consumers, limits=Limits()) == ["consumer-gone"]
    with connected(postgresql_url, name="outboxkit consumer mails, billing"):
        assert codes(postgresql_url, retention.check_consumers, limits=Limits()) == []
    module = "tests.unit.cli.one_handler"
    told = run("doctor", module, "--only", "database", "--database-url", postgresql_url).out
    assert f" outboxkit consume {module} --queue billing\n" in told


SHARDING = "INSERT INTO outboxkit_sharding (queue, shards, draining, moved_from) VALUES ('steps', %s, %s, %s)"
MEMBER = "INSERT INTO outboxkit_shard_member (queue, member, shards, seen_at) VALUES ('steps', %s, %s, now() - %s)"


@pytest.mark.parametrize(
    ("row", "counts", "what"),
    [
        ((1, None, None), (1, 1, 4), "is to change to 4: it waits for the end of 2 processes that run with 1."),
        ((1, None, None), (1, 1), None),
        ((1, None, None), (4,), None),
        (
            (4, None, 1),
            (4,),
            "changes to 4: messages in steps are handled first, and later ones after them.",
        ),
        (
            (1, '{"steps.2.0": null, "steps.2.1": ["k"]}', None),
            (1,),
            "changes to 1: messages in steps.2.0, steps.2.1 are",
        ),
        ((4, '{"steps": ["k7", "k8"]}', None), (4, 4), "later messages of 2 keys wait for earlier ones in steps."),
        ((4, None, None), (4, 4), None),
    ],
)
def test_a_change_of_the_number_of_shards(
    postgresql_url: str, row: tuple[object, ...], counts: tuple[int, ...], what: str | None
) -> None:
    with connected(postgresql_url) as connection:
        connection.execute(SHARDING, row)
        for number, count in enumerate(counts):
            connection.execute(MEMBER, (str(number), count, timedelta(0)))
        found = look(postgresql_url, shards.check_shards)
        assert [(each.code, each.severity, each.commands) for each in found] == [("shards-moving", "note", ())] * (
            what is not None
        )
        assert what is None or what in found[0].what
        assert codes(postgresql_url, retention.check_consumers) == []


def test_a_change_of_the_number_of_shards_that_nobody_carries_on(postgresql_url: str) -> None:
    with connected(postgresql_url) as connection:
        connection.execute(SHARDING, (1, '{"steps.2.0": null}', None))
        connection.execute(MEMBER, ("killed", 1, timedelta(minutes=1)))
    (found,) = look(postgresql_url, shards.check_shards)
    assert (found.code, found.severity) == ("shards-moving", "warning")
    assert found.what.endswith("and no process of it runs.")
    assert found.commands == ("outboxkit consume MODULE --queue steps --ordered --shards 1",)


def test_retention_and_retries(postgresql_url: str) -> None:
    check = retention.check_retention
    assert codes(postgresql_url, check) == []
    (too_short,) = look(postgresql_url, check, inbox_retention="1h")
    assert (too_short.code, too_short.severity) == ("retention-short", "problem")
    (short,) = look(postgresql_url, check, inbox_retention="90m")
    assert (short.code, short.severity) == ("retention-short", "warning")


AGO = utc_now() - timedelta(days=40)
OLD: dict[str, tuple[tables.Table, dict[str, Any]]] = {
    "inbox rows": (tables.inbox, {"handler": "H", "message_id": "m", "type": "T", "processed_at": AGO}),
    "effects": (
        tables.effect,
        {"key": "k", "state": "done", "token": "t", "started_at": AGO, "used_at": AGO, "locked_until": AGO},
    ),
    "idempotency keys": (
        tables.idempotency,
        {"scope": "s", "principal": "", "key": "k", "fingerprint": b"", "state": "done", "token": "t"}
        | {"created_at": AGO, "expires_at": AGO},
    ),
    "published messages": (tables.published, kept_row(1, AGO)),
    "dead letters": (tables.dead_letter, dead_row(1, dead_at=AGO)),
}


def test_a_pruner_that_never_ran(postgresql_url: str, pg_engine: Engine) -> None:
    kept = {"published_retention": "7d", "dead_retention": "30d"}
    prune(postgresql_url)  # which makes the partitions of the days to come
    assert codes(postgresql_url, retention.check_pruning, **kept) == []
    with pg_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for kind, (table, row) in OLD.items():
            connection.execute(insert(table), row)
            (finding,) = look(postgresql_url, retention.check_pruning, limits=Limits(), **kept)
            assert (finding.code, finding.severity) == ("prune-missing", "problem")
            assert finding.commands == ("outboxkit prune",)
            assert f"The retention of {kind} is over for " in finding.what
            connection.execute(delete(table))
        for table, row in OLD.values():
            connection.execute(insert(table), row)
    prune(postgresql_url)
    assert codes(postgresql_url, retention.check_pruning, limits=Limits(), **kept) == []


def prune(url: str) -> None:
    periods = Periods(inbox=timedelta(days=14), published=timedelta(days=7), dead=timedelta(days=30))
    with_engines(lambda engine: Retention(engine, periods).prune(), url)


def test_days_without_a_partition(postgresql_url: str) -> None:
    assert codes(postgresql_url, retention.check_pruning) == []
    with connected(postgresql_url) as connection:
        connection.execute(HANDLER, ("SendReceipt", "billing"))
    (found,) = look(postgresql_url, retention.check_pruning, limits=Limits(), published_retention="7d")
    assert (found.code, found.severity) == ("prune-missing", "warning")
    for table in ("outboxkit_inbox", "outboxkit_published"):
        assert f"The table {table} has no partition for the days to come" in found.what
    prune(postgresql_url)
    assert codes(postgresql_url, retention.check_pruning, limits=Limits(), published_retention="7d") == []
