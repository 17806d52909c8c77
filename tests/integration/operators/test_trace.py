"""What `outboxkit trace` reads in a database: the reason for which each row waits, and what became of a message."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, insert
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import ids, tables
from outboxkit.operators.pausing import pause_process
from outboxkit.operators.trace import MessageTrace, Trace, TraceQuery, reading, trace_messages
from outboxkit.operators.trace.reasons import Explanation
from outboxkit.runtime.outage import utc_now
from outboxkit.runtime.workers import RELAY
from outboxkit.statements.dialects import is_server
from tests.integration.operators.doctoring import with_engines
from tests.support.pages import libpq

NOW = utc_now()
HOUR = timedelta(hours=1)
ROW = {"type": "OrderConfirmed", "payload": b"{}", "headers": b"{}", "content_type": "x", "key": "k"}
LETTER = ROW | {"side": "outbox", "reason": "rejected", "error": "too large", "attempts": 10}
RETRY = {"held": True, "due_at": NOW + HOUR, "attempts": 2, "last_error": "NO_ROUTE", "first_failed_at": NOW}


def add(engine: Engine, *rows: dict[str, Any], table: Any = tables.outbox, base: dict[str, Any] = ROW) -> None:
    with engine.begin() as connection:
        for row in rows:
            connection.execute(insert(table), base | row)


def look(url: str, query: TraceQuery, *also: str) -> Trace:
    return with_engines(lambda *engines: trace_messages(engines, query), url, *also)


def traced(url: str, *ids_: str) -> list[MessageTrace]:
    async def ask(*engines: AsyncEngine) -> list[Trace]:
        return [await trace_messages(engines, TraceQuery(id_)) for id_ in ids_]

    return [message for trace in with_engines(ask, url) for message in trace.messages]


def explained(url: str, id_: str) -> Explanation:
    ((reason,),) = (message.why for message in traced(url, id_))
    return reason


def test_each_row_waits_for_one_thing(engine: Engine, database_url: str):
    """Of two destinations, whose rows of one key do not wait for each other."""
    add(
        engine,
        {"position": 1, "message_id": "retried"} | RETRY,
        {"position": 2, "message_id": "behind"},
        {"position": 3, "message_id": "elsewhere", "destination": "payments"},
        {"position": 4, "message_id": "delayed", "key": None, "due_at": NOW + HOUR},
        {"position": 5, "message_id": "parked", "key": "p", "held": True, "due_at": tables.PARKED},
        {"position": 6, "message_id": "ready", "key": "r"},
        {"position": 7, "message_id": "second", "key": "r"},
        {"position": 8, "message_id": "unique", "key": "u", "dedup": True},
        {"position": 9, "message_id": "stranded", "key": "s", "held": True, "due_at": tables.PARKED},
        {"position": 10, "message_id": "behind it", "key": "s", "dedup": True},
    )
    add(
        engine, {"message_id": "dead", "key": "p", "position": 0, "parked": True}, table=tables.dead_letter, base=LETTER
    )
    waits = "no relay" if is_server(engine.dialect.name) else "ready"
    kinds = {"retried": "retry", "behind": "behind", "elsewhere": waits, "delayed": "delayed"}
    kinds |= {"parked": "parked", "ready": waits, "second": "behind", "unique": waits, "dead": "dead"}
    kinds |= {"stranded": "parked", "behind it": "behind"}
    why = {each.message_id: each.why for each in traced(database_url, *kinds)}
    assert {id_: [reason.kind for reason in reasons] for id_, reasons in why.items()} == {
        id_: [kind] for id_, kind in kinds.items()
    }
    assert "behind message retried of its key k" in why["behind"][0].text
    assert why["stranded"][0].text.endswith("no open dead letter parks it any more")
    assert why["behind it"][0].text.endswith(", which is parked")
    assert "parked by dead letter 1, message dead, rejected: too large" in why["parked"][0].text
    assert "; 3 messages to default are before it" in why["unique"][0].text
    of_key = look(database_url, TraceQuery(key="k")).messages
    assert {each.message_id for each in of_key} == {"retried", "behind", "elsewhere"}


def test_a_row_that_was_not_examined_is_said_to_be_so(
    engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
):
    """And those that were asked for come before those that they have caused."""
    monkeypatch.setattr(reading, "MOST_EXPLAINED", 1)
    parked = {"held": True, "due_at": tables.PARKED}
    add(engine, *({"position": 1 + n, "message_id": f"m{n}", "created_at": NOW + n * HOUR} | parked for n in range(3)))
    of_key = look(database_url, TraceQuery(key="k", limit=2)).messages
    assert [each.why[0].kind for each in of_key] == ["parked", "behind"]
    (late,) = look(database_url, TraceQuery(key="k", limit=1, since=NOW + 2 * HOUR)).messages
    assert (late.state, late.why[0].kind, late.why[0].cure) == ("waiting", "not examined", ("outboxkit trace m2",))
    add(engine, {"position": 5, "message_id": "late", "key": None} | parked)
    add(engine, {"position": 4, "message_id": "caused", "causation_id": "late", "due_at": NOW + HOUR})
    (asked,) = look(database_url, TraceQuery("late", limit=1)).messages
    assert (asked.why[0].kind, [each.message_id for each in asked.caused]) == ("parked", ["caused"])


def test_a_database_that_is_away_is_named_and_the_others_are_read(engine: Engine, database_url: str, tmp_path: Path):
    add(engine, {"message_id": "m"})
    away = f"sqlite+aiosqlite:///{tmp_path}/nowhere/other.db"
    answer = look(database_url, TraceQuery("m"), away)
    assert [each.message_id for each in answer.messages] == ["m"]
    (named,) = answer.not_read
    assert named.startswith(f"sqlite:///{tmp_path}/nowhere/other.db: ")
    assert not any("--also" in each for each in look(database_url, TraceQuery("unknown"), away).unknown)
    with pytest.raises(OperationalError):
        look(away, TraceQuery("m"), database_url)


def test_a_relay_of_another_destination_publishes_it_not(pg_engine: Engine, postgresql_url: str):
    add(pg_engine, {"message_id": "m", "destination": "payments", "created_at": NOW - HOUR})
    for name, kind in (("outboxkit relay", "no relay"), ("outboxkit relay payments", "ready")):
        with psycopg.connect(libpq(postgresql_url), application_name=name):
            reason = explained(postgresql_url, "m")
        assert reason.kind == kind
        assert "payments" in reason.cure[0] + reason.text


def test_a_message_whose_relay_is_paused_waits_for_the_pause(engine: Engine, database_url: str):
    add(engine, {"message_id": "m"}, {"message_id": "elsewhere", "destination": "payments"})
    add(engine, {"message_id": "later", "due_at": NOW + HOUR, "key": None})
    with engine.begin() as connection:
        pause_process(connection, RELAY, "default", why="the broker gets new disks", by="ada")
    paused = explained(database_url, "m")
    assert (paused.kind, paused.cure) == ("paused", ("outboxkit resume relay",))
    assert paused.text.startswith("the relay of destination default is paused since ")
    assert "ada" in paused.text
    assert paused.text.endswith("the broker gets new disks")
    assert "paused" not in (explained(database_url, "elsewhere").kind, explained(database_url, "later").kind)


def test_what_became_of_a_message(engine: Engine, database_url: str):
    handled = {"handler": "H", "message_id": "m", "type": "OrderConfirmed", "attempts": 2}
    add(engine, {"message_id": "m", "position": 1, "published_at": NOW}, table=tables.published)
    add(engine, handled, table=tables.inbox, base={})
    add(engine, {"queue": "q", "message_id": "m", "starts": 2}, table=tables.attempt, base={})
    known = {"function": "shop.f", "types": '["OrderConfirmed"]'}
    for name in ("H", "G"):
        add(engine, known | {"handler": name, "queue": "q"}, table=tables.handler, base={})
    dead = {"message_id": "m", "side": "inbox", "queue": "q", "handler": "F", "resolution": "replayed"}
    add(engine, dead | {"resolved_by": "ann", "resolved_at": NOW}, table=tables.dead_letter, base=LETTER)
    answer = look(database_url, TraceQuery("m"))
    (found,) = answer.messages
    assert [reason.kind for reason in found.why] == ["started", "handled", "younger", "replayed"]
    assert "G of queue q" in found.why[2].text
    assert {event.what for event in found.timeline} == {"published", "handled", "started", "dead", "replayed"}
    assert answer.not_read == ()


def test_payloads_of_one_id_are_counted(engine: Engine, database_url: str):
    """Also if a position was used again, after a failover."""
    for number in range(3):
        kept = {"message_id": "m", "position": 1 + number // 2, "published_at": NOW - number * HOUR}
        add(engine, kept | {"payload": b"%d" % number}, table=tables.published)
    add(engine, {"message_id": "m", "payload": b"0"}, {"message_id": "other"})
    assert "4 messages have this id, with 3 payloads" in traced(database_url, "m")[0].why[1].text


def test_of_a_key_the_rows_that_were_not_read_are_named(
    engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
):
    """Those that an index leads to are bounded, too."""
    monkeypatch.setattr(reading, "MOST", 3)
    add(engine, *({"message_id": f"ready {number}"} for number in range(4)))
    add(engine, *(RETRY | {"message_id": f"held {number}"} for number in range(3)))
    trace = look(database_url, TraceQuery(key="k"))
    named = [each.partition(" in ")[0] for each in trace.not_read]
    assert "ready messages behind the first 3" in named
    assert not any("held" in each for each in named)


def test_a_window_is_read_at_the_time_of_the_id(engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch):
    """In a backlog, and among kept messages; also if the producer's clock is a little ahead, or far."""
    monkeypatch.setattr(reading, "WINDOW", 20)
    times = [NOW - (300 - number) * timedelta(minutes=1) for number in range(300)]
    rows = [{"position": n + 1, "message_id": ids.new(at=at), "created_at": at} for n, at in enumerate(times)]
    add(engine, *(row | {"key": None} for row in rows))
    sent = [row | {"message_id": ids.new(at=at), "published_at": at} for row, at in zip(rows, times, strict=True)]
    ahead = [ids.new(at=times[150] + timedelta(minutes=5)), ids.new(at=NOW + 2 * HOUR)]
    sent[150]["message_id"], sent[299]["message_id"] = ahead
    add(engine, *sent, table=tables.published)
    for table, state in ((rows, "waiting"), (sent, "published")):
        some = [table[number]["message_id"] for number in (0, 3, 150, 290, 299)]
        assert [each.state for each in traced(database_url, *some)] == [state] * 5
    answer = look(database_url, TraceQuery("an id without a time"))
    assert answer.messages == ()
    assert len(answer.not_read) == 2
    assert answer.not_read[0].startswith("the outbox before position 282 in ")


@pytest.mark.parametrize(
    ("name", "text_"),
    [("outboxkit relay", "a relay has it in hand: session"), ("psql", "(psql) has locked its row")],
)
def test_a_row_that_is_locked_names_the_session(pg_engine: Engine, postgresql_url: str, name: str, text_: str):
    add(pg_engine, {"position": 1, "message_id": "m"}, {"position": 2, "message_id": "other"})
    holder = psycopg.connect(libpq(postgresql_url), application_name=name)
    holder.execute("SELECT position FROM outboxkit_outbox WHERE position = 1 FOR UPDATE")
    try:
        reason = explained(postgresql_url, "m")
        assert reason.kind == "locked"
        assert text_ in reason.text
        assert str(holder.info.backend_pid) in reason.text
        assert explained(postgresql_url, "other").kind == "behind"
    finally:
        holder.close()


def test_it_reads_only(pg_engine: Engine, postgresql_url: str):
    add(pg_engine, {"position": 1, "message_id": "m"})
    url = f"{postgresql_url}{'&' if '?' in postgresql_url else '?'}options=-cdefault_transaction_read_only%3Don"
    assert explained(url, "m").kind == "no relay"
