"""Dead letters of the inbox on real databases: sent back to their queue through the outbox."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import ids
from outboxkit.codec import headers as own
from outboxkit.codec.headers import read_delivery_headers
from outboxkit.operators.deadletters import DeadLetters, Refusal, ReplayRules, Resolved, Selection
from tests.integration.operators.dead_rows import buried, dead, fill, letters, outbox_rows, still_parked, waiting

REPLAYED = {own.REPLAYED: True}
OLD = ids.new(at=datetime.now(UTC) - timedelta(days=15))


async def replay(engine: AsyncEngine, selection: Selection | None = None, **rules: Any) -> Resolved:
    done = Resolved()
    await DeadLetters(engine, rules=ReplayRules(**rules)).resolve(
        "replayed", selection or Selection(), asyncio.Event(), done
    )
    return done


def headers_of(row: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row.headers)
    return found


async def test_a_message_goes_back_as_it_came_to_its_queue_and_handler_alone(engine: Engine, async_engine: AsyncEngine):
    more = {"topic": "orders.eu", "key": "a", "correlation_id": "story", "causation_id": "cause", "payload": b"\xff\0"}
    more |= {"content_encoding": "gzip", "content_type": "text/plain", "created_at": datetime.now(UTC), "version": 3}
    fill(engine, [buried(ids.new(), **more, headers=b'{"tenant":"a"}')], [waiting(20, "b")])
    done = await replay(async_engine)
    assert (done.count, done.released, done.refused, done.complete) == (1, 0, {}, True)
    (letter,) = letters(engine).values()
    (row,) = (row for row in outbox_rows(engine).values() if row.message_id == letter.message_id)
    assert {name: getattr(row, name) for name in more} == more
    assert (row.message_id, row.type, row.attempts, row.held, row.due_at) == (
        letter.message_id,
        letter.type,
        0,
        False,
        None,
    )
    assert (row.expires_at, row.dedup, row.discard_unroutable, row.last_error) == (None, False, False, None)
    assert (row.queue, headers_of(row)) == ("billing", {"tenant": "a", own.HANDLERS: ["SendReceipt"], **REPLAYED})
    assert letter.resolution == "replayed"
    assert letter.resolved_by == done.by


@pytest.mark.parametrize("handlers", [{}, {own.HANDLERS: ["Mailer", "Biller"]}], ids=["all", "those of before"])
async def test_one_that_no_handler_gave_up_is_for_those_that_it_was_for(
    engine: Engine, async_engine: AsyncEngine, handlers: dict[str, Any]
):
    fill(engine, [buried(handler=None, reason="no handler", headers=json.dumps(handlers).encode())])
    await replay(async_engine)
    (row,) = outbox_rows(engine).values()
    assert (row.queue, headers_of(row)) == ("billing", handlers | REPLAYED)


async def test_both_sides_go_at_once_each_in_its_way(engine: Engine, async_engine: AsyncEngine):
    fill(engine, [dead(7, key="a"), dead(5)], [waiting(8, "a")])
    fill(engine, [buried("x"), buried("y")])
    done = await replay(async_engine)
    assert (done.count, done.released) == (4, 1)
    rows = outbox_rows(engine)
    assert {row.message_id for place, row in rows.items() if row.held} == {"m-5", "m-7", "m-8"}
    assert [row.message_id for row in rows.values() if not row.held] == ["x", "y"]


async def test_they_go_in_the_order_in_which_they_died_across_pages(
    engine: Engine,
    async_engine: AsyncEngine,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("outboxkit.operators.deadletters.READ_AHEAD", 7)
    monkeypatch.setattr("outboxkit.operators.deadletters.PAGE", 3)
    fill(engine, [buried(f"m-{number}") for number in range(30)])
    assert (await replay(async_engine)).count == 30
    assert [row.message_id for row in outbox_rows(engine).values()] == [f"m-{number}" for number in range(30)]


@pytest.mark.parametrize(
    ("letter", "why"),
    [
        (buried(None), Refusal.MALFORMED),
        (buried(headers=b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), Refusal.MALFORMED),
        (buried(queue=None), Refusal.NO_QUEUE),
        (buried(OLD), Refusal.STALE),
        (dead(None), Refusal.NO_PLACE),
    ],
)
async def test_what_cannot_go_back_is_refused_and_the_others_go(
    engine: Engine,
    async_engine: AsyncEngine,
    letter: dict[str, Any],
    why: Refusal,
):
    fill(engine, [letter])
    fill(engine, [buried("good")])
    done = await replay(async_engine)
    assert (done.count, done.refused, done.complete) == (1, {why: 1}, True)
    assert [row.message_id for row in outbox_rows(engine).values()] == ["good"]
    assert [row.resolution for row in letters(engine).values()] == [None, "replayed"]


async def test_a_stale_one_is_dated_anew_where_that_is_accepted(engine: Engine, async_engine: AsyncEngine):
    fill(engine, [buried(OLD), buried(ids.new())])
    before = await DeadLetters(async_engine).now()
    assert (await replay(async_engine, accept_stale=True)).count == 2
    after = await DeadLetters(async_engine).now()
    stale, fresh = (read_delivery_headers(headers_of(row)).accepted_at for row in outbox_rows(engine).values())
    assert fresh is None
    assert stale is not None
    assert before - timedelta(milliseconds=1) <= stale <= after


async def test_nothing_else_of_the_key_is_released(engine: Engine, async_engine: AsyncEngine):
    """An outbox-side dead letter of the same key still parks it; the relay puts the new row behind it."""
    fill(engine, [dead(10, key="a")], [waiting(20, "a")])
    fill(engine, [buried("x", key="a")])
    assert (await replay(async_engine, Selection(side="inbox"))).released == 0
    assert still_parked(engine) == {20}
