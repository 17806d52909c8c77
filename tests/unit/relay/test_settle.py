"""Settlements as they are written, on SQLite: where each row ends up."""

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from outboxkit import ids, tables
from outboxkit.brokers import Answer
from outboxkit.relay.claim import Claimer
from outboxkit.relay.decisions import Dead, FailedRow, Reason, Reply, Settlement, reply_to
from outboxkit.relay.order import Batch, ClaimedRow
from outboxkit.relay.settle import SettlementWriter
from outboxkit.tables import PARKED
from tests.unit.relay.conftest import SECOND, Bench
from tests.unit.shop import NOW, message, rows

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def claim(bench: Bench) -> Batch:
    return await Claimer(bench.async_engine, 20, destination=bench.destination).claim(NOW, now=NOW)


async def settled(bench: Bench, settlement: Settlement, *, keep: bool = False) -> None:
    await SettlementWriter("sqlite", keep=keep, destination=bench.destination).commit(
        await claim(bench), settlement, now=NOW
    )
    assert bench.async_engine.pool.checkedout() == 0


def dead(position: int, reason: Reason, error: str, *, failures: int = 1, parked: bool = False) -> Dead:
    return Dead(position, message(), reason, error, failures, parked)


async def test_each_row_ends_up_where_the_settlement_says(bench: Bench):
    bench.add(*"abcdefg")
    await settled(
        bench,
        Settlement(
            published=[1],
            discarded=[2],
            failed=[FailedRow(3, 1, message(), "rejected: no", NOW + SECOND)],
            dead=[dead(4, Reason.UNROUTABLE, "unroutable: nobody")],
            waiting={NOW + SECOND: [5], NOW + 2 * SECOND: [6]},
        ),
    )
    assert [(row["message_id"], row["attempts"], row["held"], row["due_at"]) for row in bench.rows()] == [
        ("c", 1, True, NOW + SECOND),
        ("e", 0, True, NOW + SECOND),
        ("f", 0, True, NOW + 2 * SECOND),
        ("g", 0, False, None),
    ]
    assert [row["message_id"] for row in bench.dead()] == ["d"]
    assert rows(bench.url, tables.published) == []


async def test_a_failure_keeps_its_reason_and_when_it_first_failed(bench: Bench):
    bench.add("a", "b")
    bench.add("c", columns={"first_failed_at": NOW - SECOND})
    failed = [FailedRow(position, 1, message(), "a\0b\ud800c", NOW + SECOND) for position in (1, 3)]
    await settled(bench, Settlement(failed=failed))
    assert [(row["last_error"], row["first_failed_at"]) for row in bench.rows()] == [
        ("a\\0b\\ud800c", NOW),
        (None, None),
        ("a\\0b\\ud800c", NOW - SECOND),
    ]


async def test_a_dead_letter_keeps_everything(bench: Bench):
    more = {"key": "k", "topic": "t", "headers": {"h": 1}, "correlation_id": "c", "causation_id": "d"}
    bench.add("a", "b", "c", "d", "e", columns={"attempts": 9, "discard_unroutable": True}, **more)
    written = bench.rows()
    lost = [
        dead(1, Reason.REJECTED, "rejected: a\0", parked=True),
        dead(2, Reason.REJECTED, "rejected: a\0"),
        dead(3, Reason.REJECTED, "rejected: a\0"),
        dead(4, Reason.EXPIRED, "late", failures=0),
        dead(5, Reason.REJECTED, "rejected: e"),
    ]
    await settled(bench, Settlement(dead=lost))
    assert bench.rows() == []
    found = sorted(bench.dead(), key=lambda row: row["position"])
    assert [(row["reason"], row["error"], row["attempts"], row["parked"]) for row in found] == [
        ("rejected", "rejected: a\\0", 10, True),
        ("rejected", "rejected: a\\0", 10, False),
        ("rejected", "rejected: a\\0", 10, False),
        ("expired", "late", 9, False),
        ("rejected", "rejected: e", 10, False),
    ]
    kept = set(written[0]) & set(found[0]) - {"attempts", "first_failed_at"}
    assert kept >= {"payload", "headers", "key", "topic", "correlation_id", "causation_id", "position", "created_at"}
    assert [{name: row[name] for name in kept} for row in found] == [
        {name: row[name] for name in kept} for row in written
    ]
    assert {(row["side"], row["dead_at"], row["first_failed_at"], row["resolution"]) for row in found} == {
        ("outbox", NOW, NOW, None)
    }


async def test_an_error_settles_nothing_and_gives_the_connection_back(bench: Bench):
    bench.add("a", "b")
    before = bench.rows()
    with bench.engine.begin() as connection:
        connection.execute(text("DROP TABLE outboxkit_dead_letter"))
    # what is parked is looked up in the table that is gone, after the first row was deleted
    with pytest.raises(OperationalError):
        await settled(bench, Settlement(published=[1], parked=[2]))
    assert bench.async_engine.pool.checkedout() == 0
    assert bench.rows() == before


def reply_of(position: int, id_: str, **more: Any) -> Reply:
    claimed = ClaimedRow(position, 0, message(id=id_, key="k", headers={"traceparent": TRACE}), reply="CardCharged")
    return reply_to(claimed, "CardCharged", Answer(**{"payload": b"{1}", **more}), now=NOW)


async def test_replies_are_added_for_the_destination_default(bench: Bench):
    bench.add("a", "b", "c", key="k", columns={"destination": "payments", "reply": "CardCharged"})
    bench.destination = "payments"
    replies = [reply_of(1, "a"), reply_of(2, "b", payload=b"", content_type="x\0" * 300)]
    await settled(bench, Settlement(published=[1, 2], replies=replies))
    left, first, second = bench.rows()
    assert left["message_id"] == "c"
    assert (first["message_id"], first["type"], first["payload"]) == (ids.derive("reply", "a"), "CardCharged", b"{1}")
    assert (first["key"], first["headers"], first["created_at"]) == ("k", b'{"traceparent":"%s"}' % TRACE.encode(), NOW)
    assert (first["correlation_id"], first["causation_id"], first["topic"]) == ("a", "a", None)
    assert (second["payload"], second["content_type"][:3]) == (b"{}", "x\\0")
    for row in (first, second):
        assert (row["destination"], row["reply"], row["due_at"], row["held"], row["attempts"]) == (
            "default",
            None,
            None,
            False,
            0,
        )


async def test_a_row_that_is_gone_stays_gone_and_has_no_reply(bench: Bench):
    """As where the rows of a batch are not held, and somebody has cancelled them meanwhile."""
    bench.add(*"abcdefg", key="k")
    batch = await Claimer(bench.async_engine, 20, keeps_locks=False).claim(NOW, now=NOW)
    with bench.engine.begin() as connection:
        connection.execute(tables.outbox.delete().where(tables.outbox.c.message_id != "g"))
    everything = Settlement(
        published=[1, 7],
        replies=[reply_of(1, "a"), reply_of(7, "g")],
        discarded=[2],
        failed=[FailedRow(3, 1, message(), "no", NOW + SECOND)],
        dead=[dead(4, Reason.REJECTED, "no", parked=True)],
        waiting={NOW + SECOND: [5]},
        parked=[6],
    )
    await SettlementWriter("sqlite", keep=True).commit(batch, everything, now=NOW)
    assert bench.left() == [ids.derive("reply", "g")]
    assert bench.dead() == []
    assert [row["message_id"] for row in rows(bench.url, tables.published)] == ["g"]


async def test_what_was_postponed_has_not_failed(bench: Bench):
    bench.add("a", columns={"attempts": 2})
    await settled(bench, Settlement(failed=[FailedRow(1, 2, message(), "postponed: 503", NOW + SECOND, failures=0)]))
    (row,) = bench.rows()
    assert (row["attempts"], row["first_failed_at"], row["last_error"]) == (2, None, "postponed: 503")
    assert (row["held"], row["due_at"]) == (True, NOW + SECOND)


async def test_a_key_is_parked_in_its_destination(bench: Bench):
    bench.add("a", "b", key="k")
    bench.add("c", "d", key="k", columns={"destination": "payments"})
    await settled(bench, Settlement(dead=[dead(1, Reason.REJECTED, "no", parked=True)]))
    bench.destination = "payments"
    await settled(bench, Settlement(parked=[3]))
    assert [row["due_at"] for row in bench.rows()] == [None, None, None]
    bench.destination = "default"
    await settled(bench, Settlement(parked=[2]))
    assert [row["due_at"] for row in bench.rows()] == [PARKED, None, None]
