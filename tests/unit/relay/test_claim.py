"""Claiming on SQLite: which rows a batch holds, and when the relay looks where."""

import pytest

from outboxkit.relay import claim as module
from outboxkit.relay.claim import Claimer
from outboxkit.relay.order import Batch
from tests.unit.relay.conftest import SECOND, Bench, Seconds
from tests.unit.shop import NOW


def ids(batch: Batch) -> list[str]:
    return [row.message.id for row in batch.rows]


async def claimed(batches: Claimer) -> list[str]:
    batch = await batches.claim(NOW, now=NOW)
    await batch.connection.close()
    return ids(batch)


async def test_a_batch_is_in_position_order_whatever_its_rows_waited_for(bench: Bench, seconds: Seconds):
    bench.add("new-1")
    bench.add("due-1", "due-2", deliver_at=NOW - SECOND)
    bench.add("new-2", "new-3")
    assert await claimed(Claimer(bench.async_engine, 4, monotonic=seconds)) == ["new-1", "due-1", "due-2", "new-2"]


async def test_half_of_a_batch_is_for_rows_that_wait_for_nothing(bench: Bench, seconds: Seconds):
    bench.add(*(f"due-{n}" for n in range(9)), deliver_at=NOW - SECOND)
    bench.add(*(f"new-{n}" for n in range(9)))
    found = await claimed(Claimer(bench.async_engine, 6, monotonic=seconds))
    assert found == ["due-0", "due-1", "due-2", "new-0", "new-1", "new-2"]


@pytest.mark.parametrize("size", [1, 2, 5, 12])
async def test_due_rows_fill_what_the_others_leave_and_none_comes_twice(bench: Bench, seconds: Seconds, size: int):
    bench.add(*(f"due-{n}" for n in range(9)), deliver_at=NOW - SECOND)
    bench.add("new")
    found = await claimed(Claimer(bench.async_engine, size, monotonic=seconds))
    assert len(found) == len(set(found))
    assert size <= len(found) <= size + 1 or len(found) == 10
    assert "new" in found


async def test_a_busy_relay_looks_for_due_rows_now_and_then(bench: Bench, seconds: Seconds):
    bench.add(*(f"new-{n}" for n in range(9)))
    batches = Claimer(bench.async_engine, 4, monotonic=seconds)
    await claimed(batches)
    bench.add("due", deliver_at=NOW - SECOND)
    assert "due" not in await claimed(batches)
    seconds.now += module.QUERY_SECONDS
    assert "due" in await claimed(batches)


async def test_a_claim_without_ready_rows_always_looks_for_due_rows(bench: Bench, seconds: Seconds):
    batches = Claimer(bench.async_engine, 4, monotonic=seconds)
    await claimed(batches)
    bench.add("due", deliver_at=NOW - SECOND)
    assert await claimed(batches) == ["due"]


async def test_where_due_rows_were_the_next_claim_looks_for_more(bench: Bench, seconds: Seconds):
    bench.add("due", deliver_at=NOW - SECOND)
    batches = Claimer(bench.async_engine, 4, monotonic=seconds)
    assert await claimed(batches) == ["due"]
    bench.add("new")
    assert await claimed(batches) == ["due", "new"]


async def test_it_looks_below_the_floor_at_first_and_then_every_few_seconds(bench: Bench, seconds: Seconds):
    bench.add("low", "high")
    batches = Claimer(bench.async_engine, 4, monotonic=seconds)
    assert await claimed(batches) == ["low", "high"]
    batches.floor.value = 1
    assert await claimed(batches) == ["high"]
    seconds.now += module.SWEEP_SECONDS
    assert await claimed(batches) == ["low", "high"]
    assert batches.floor.value == 0, "a floor that was wrong is given up"


async def test_large_messages_make_small_batches(bench: Bench, seconds: Seconds, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "BATCH_BYTES", 1000)
    bench.add(*(f"m-{n}" for n in range(9)), payload=b"x" * 500)
    batches = Claimer(bench.async_engine, 6, monotonic=seconds)
    assert [len(await claimed(batches)) for _ in range(2)] == [2, 2]
    batch = await batches.claim(NOW, now=NOW)
    await batch.connection.close()
    assert not batch.is_last, "the average limits the batch: more are ready"


async def test_a_huge_message_still_makes_a_batch(bench: Bench, seconds: Seconds, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "BATCH_BYTES", 10)
    bench.add("a", "b", payload=b"x" * 500)
    batches = Claimer(bench.async_engine, 6, monotonic=seconds)
    await claimed(batches)
    assert await claimed(batches) == ["a"]


async def test_large_messages_behind_small_ones_are_left_for_the_next_batch(
    bench: Bench, seconds: Seconds, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "BATCH_BYTES", 1000)
    bench.add("small-1", "small-2", payload=b"x")
    bench.add("large-1", "large-2", "large-3", payload=b"y" * 600)
    bench.add("small-3", payload=b"x")
    batches = Claimer(bench.async_engine, 6, monotonic=seconds)
    batch = await batches.claim(NOW, now=NOW)
    await batch.connection.close()
    assert ids(batch) == ["small-1", "small-2", "large-1", "large-2"]
    assert [row.message.payload for row in batch.send] == [b"x", b"x", b"y" * 600, b"y" * 600]
    assert not batch.is_last, "rows are left"


async def test_an_error_gives_the_connection_back(bench: Bench, seconds: Seconds):
    batches = Claimer(bench.async_engine, 4, monotonic=seconds)
    batches._predecessors = None  # type: ignore[assignment]
    bench.add("a", key="k")
    with pytest.raises(Exception, match="None"):
        await batches.claim(NOW, now=NOW)
    assert bench.async_engine.pool.checkedout() == 0


@pytest.mark.parametrize("keeps_locks", [True, False])
async def test_rows_that_do_not_stay_locked_are_in_nobodys_way(bench: Bench, keeps_locks: bool):
    bench.add("a")
    batch = await Claimer(bench.async_engine, 4, keeps_locks=keeps_locks).claim(NOW, now=NOW)
    assert [row.message.id for row in batch.send] == ["a"]
    assert batch.connection.in_transaction() is keeps_locks
    await batch.connection.close()
    assert bench.async_engine.pool.checkedout() == 0
