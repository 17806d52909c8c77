"""Dead letters on real databases: replayed and discarded, by one or by many, beside relays, and broken off."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import ids, statements, tables
from outboxkit.operators import deadletters
from outboxkit.operators.deadletters import DeadLetters, Refusal, ReplayRules, Resolved, Selection
from outboxkit.operators.deadletters.resolving import resolve_page
from outboxkit.operators.sql.resolve import Resolution
from outboxkit.runtime import process, window
from tests.integration.operators.dead_rows import buried, dead, fill, letters, outbox_rows, still_parked, waiting
from tests.support.ledger_requests import waiting as waiting_for_locks
from tests.support.polling import eventually_async

ALL = Selection()


async def replay(engine: AsyncEngine, selection: Selection = ALL, **more: Any) -> Resolved:
    done = Resolved()
    await DeadLetters(engine, **more).resolve("replayed", selection, asyncio.Event(), done)
    return done


async def discard(engine: AsyncEngine, selection: Selection = ALL) -> Resolved:
    done = Resolved()
    await DeadLetters(engine).resolve("discarded", selection, asyncio.Event(), done)
    return done


async def test_a_replayed_message_is_as_it_was_and_due_now(engine: Engine, async_engine: AsyncEngine):
    more = {"topic": "orders.eu", "correlation_id": "story", "causation_id": "cause", "content_encoding": "gzip"}
    more |= {"headers": b'{"tenant":"a"}', "payload": b"\xff\x00", "discard_unroutable": True}
    more |= {"destination": "payments", "reply": "CardCharged"}
    fill(
        engine,
        [dead(10, key="a", **more)],
        [waiting(20, "a", destination="payments"), waiting(21, "b", destination="default")],
    )
    before = await DeadLetters(async_engine).now()
    done = await replay(async_engine)
    assert (done.count, done.released, done.refused, done.complete) == (1, 1, {}, True)
    rows = outbox_rows(engine)
    row, after = rows[10], await DeadLetters(async_engine).now()
    assert {name: getattr(row, name) for name in more} == more
    assert (row.message_id, row.type, row.key, row.attempts, row.held) == ("m-10", "OrderConfirmed", "a", 0, True)
    assert before <= row.due_at <= after
    assert rows[20].due_at == row.due_at
    assert rows[20].held
    assert still_parked(engine) == {21}
    (letter,) = letters(engine).values()
    assert (letter.resolution, letter.parked, letter.resolved_at) == ("replayed", False, row.due_at)
    assert letter.resolved_by == done.by


async def test_a_text_of_an_error_is_compared_as_it_is(engine: Engine, async_engine: AsyncEngine):
    fill(engine, [dead(number, error=error) for number, error in enumerate(("no 5% a_b", "NO 5% A_B", "no 50% aab"))])
    found = await DeadLetters(async_engine).read(Selection(error="5% a_b"), limit=10)
    assert [row.error for row in found] == ["no 5% a_b"]


async def test_a_place_that_is_taken_is_refused_and_nothing_is_lost(engine: Engine, async_engine: AsyncEngine):
    fill(engine, [dead(1), dead(2)], [waiting(1, "a")])
    done = await replay(async_engine)
    assert (done.count, done.refused, done.complete) == (1, {Refusal.TAKEN: 1}, True)
    assert outbox_rows(engine)[1].key == "a"
    assert [row.resolution for row in letters(engine).values()] == [None, "replayed"]


async def test_they_go_back_in_the_order_of_the_outbox_at_their_rate(
    engine: Engine, async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
):
    """Across pages and across what is read ahead, whatever the order in which they died."""
    monkeypatch.setattr(deadletters, "READ_AHEAD", 7)
    places = [17 * n % 31 for n in range(1, 31)]
    fill(engine, [dead(place, key=f"k{place % 3}") for place in places])
    seen: list[set[int]] = []
    rate, time = 3.0, [0.0]

    async def look(seconds: float) -> None:  # it sleeps after each page
        time[0] += seconds
        seen.append(set(outbox_rows(engine)))

    assert (await replay(async_engine, rate=rate, monotonic=lambda: time[0], sleep=look)).count == 30
    added = [sorted(now - before) for before, now in zip([set(), *seen], seen, strict=False)]
    assert [place for page in added for place in page] == sorted(places)
    assert max(map(len, added)) == rate
    assert time[0] == pytest.approx(30 / rate)


async def test_what_dies_meanwhile_is_no_part_of_it(engine: Engine, async_engine: AsyncEngine):
    """Else a message that dies again at once would be replayed for ever."""
    fill(engine, [dead(1), dead(2)])

    async def die_again(_: float) -> None:  # it sleeps after each page
        fill(engine, [dead(100 + len(letters(engine)))])

    async with asyncio.timeout(120):
        done = await replay(async_engine, rate=1.0, monotonic=lambda: 0.0, sleep=die_again)
    assert done.count == 2
    assert sum(row.resolution is None for row in letters(engine).values()) == 2


WRITES = ("INSERT INTO outboxkit_outbox", "UPDATE outboxkit_dead_letter", "UPDATE outboxkit_outbox")


@pytest.mark.parametrize("moment", ["before_cursor_execute", "after_cursor_execute"])
@pytest.mark.parametrize("write", WRITES)
async def test_an_end_at_any_statement_loses_and_doubles_nothing(
    engine: Engine, async_engine: AsyncEngine, write: str, moment: str
):
    fill(engine, [dead(10, key="a"), dead(11, key="b")], [waiting(20, "a"), waiting(21, "b")])

    def break_off(_: object, __: object, statement: str, *___: object) -> None:
        if statement.startswith(write):
            raise ConnectionResetError

    event.listen(async_engine.sync_engine, moment, break_off)
    with pytest.raises(ConnectionResetError):
        await replay(async_engine)
    event.remove(async_engine.sync_engine, moment, break_off)
    assert {row.resolution for row in letters(engine).values()} == {None}
    assert outbox_rows(engine).keys() == {20, 21} == still_parked(engine)
    await replay(async_engine)
    assert outbox_rows(engine).keys() == {10, 11, 20, 21}
    assert still_parked(engine) == set()


SOON = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)


async def park(connection: AsyncConnection, positions: list[int]) -> int:
    parameters = {"positions": positions, "of_destination": "default", "due": SOON}
    return (await connection.execute(statements.settle.park(connection.dialect.name), parameters)).rowcount


async def claim(connection: AsyncConnection, positions: list[int]) -> None:
    chosen = select(tables.outbox.c.position).where(tables.outbox.c.position.in_(positions)).with_for_update()
    await connection.execute(chosen)


async def until_somebody_waits(engine: Engine) -> None:
    await eventually_async(lambda: asyncio.to_thread(waiting_for_locks, engine))


@pytest.mark.parametrize("resolve", [replay, discard])
async def test_a_relay_that_parks_first_is_waited_for(pg_engine: Engine, async_pg_engine: AsyncEngine, resolve: Any):
    """The operator comes while the relay has parked and not committed: it finds the row, and releases it."""
    fill(pg_engine, [dead(10, key="a")], [waiting(20, "a", due_at=None, held=False)])
    async with async_pg_engine.connect() as relay:
        await claim(relay, [20])
        assert await park(relay, [20]) == 1
        resolving = asyncio.ensure_future(resolve(async_pg_engine))
        await until_somebody_waits(pg_engine)
        await relay.commit()
        assert (await resolving).released == 1
    assert still_parked(pg_engine) == set()


@pytest.mark.parametrize("as_", ["replayed", "discarded"])
async def test_a_relay_that_comes_late_parks_nothing(pg_engine: Engine, async_pg_engine: AsyncEngine, as_: Resolution):
    """The relay has seen the key parked, then the operator resolves: the row only waits for its next attempt."""
    fill(pg_engine, [dead(10, key="a")], [waiting(20, "a", due_at=None, held=False)])
    async with async_pg_engine.connect() as relay, async_pg_engine.connect() as operator:
        await claim(relay, [20])
        await resolve_page(operator, as_, [1], "somebody", ReplayRules())
        assert await asyncio.wait_for(park(relay, [20]), 5) == 1
        await relay.commit()
        await operator.commit()
    row = outbox_rows(pg_engine)[20]
    assert (row.due_at, row.held) == (SOON, True), "it stays before later messages of its key"


async def test_two_operators_at_one_key_release_it(pg_engine: Engine, async_pg_engine: AsyncEngine):
    """Each resolves one of its two dead letters: the second must see that it is the last."""
    fill(pg_engine, [dead(10, key="a"), dead(11, key="a")], [waiting(20, "a")])
    async with async_pg_engine.connect() as first, async_pg_engine.connect() as second:
        assert (await resolve_page(first, "discarded", [1], "somebody", ReplayRules())).released == 0
        other = asyncio.ensure_future(resolve_page(second, "discarded", [2], "somebody", ReplayRules()))
        await until_somebody_waits(pg_engine)
        await first.commit()
        assert (await other).released == 1
        await second.commit()
    assert still_parked(pg_engine) == set()


async def test_an_operator_who_stops_in_the_middle_is_in_the_way_of_one_key(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    fill(
        pg_engine,
        [dead(10, key="a"), dead(11, key="b")],
        [waiting(20, "b", due_at=None, held=False), waiting(21, "a", due_at=None, held=False)],
    )
    async with async_pg_engine.connect() as relay, async_pg_engine.connect() as operator:
        await claim(relay, [20, 21])
        await resolve_page(operator, "discarded", [1], "somebody", ReplayRules())
        assert await asyncio.wait_for(park(relay, [20, 21]), 5) == 2
        await relay.commit()
        assert {place: row.due_at for place, row in outbox_rows(pg_engine).items()} == {20: tables.PARKED, 21: SOON}
        await operator.rollback()
    async with async_pg_engine.begin() as relay:
        assert await park(relay, [21]) == 1
    assert still_parked(pg_engine) == {20, 21}


@pytest.mark.parametrize("resolve", [replay, discard])
async def test_a_key_is_released_in_its_destination_alone(engine: Engine, async_engine: AsyncEngine, resolve: Any):
    """The same key is parked in two destinations: each waits for its own dead letter, wherever the other one stood."""
    fill(
        engine,
        [dead(10, key="a", destination="default"), dead(20, key="a", destination="payments")],
        [waiting(30, "a", destination="default"), waiting(31, "a", destination="payments")],
    )
    survey = await DeadLetters(async_engine).survey(Selection(numbers=(2,)))
    assert (survey.keys, survey.waiting.value) == (1, 1)
    assert (await resolve(async_engine, Selection(numbers=(2,)))).released == 1
    assert still_parked(engine) == {30}
    survey = await DeadLetters(async_engine).survey(ALL)
    assert (survey.keys, survey.waiting.value) == (1, 1)
    assert (await resolve(async_engine)).released == 1
    assert still_parked(engine) == set()


async def test_one_page_releases_keys_of_several_destinations(engine: Engine, async_engine: AsyncEngine):
    names = ("default", "mail", "payments")
    fill(
        engine,
        [dead(place, key="a", destination=name) for place, name in enumerate(names, 1)],
        [waiting(10 + place, "a", destination=name) for place, name in enumerate(names)],
    )
    assert (await DeadLetters(async_engine).survey(ALL)).keys == 3
    assert (await discard(async_engine)).released == 3


async def test_operators_at_one_key_of_two_destinations_do_not_wait_for_each_other(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    fill(pg_engine, [dead(10, key="a", destination="default"), dead(11, key="a", destination="payments")])
    async with async_pg_engine.connect() as first, async_pg_engine.connect() as second:
        await resolve_page(first, "discarded", [1], "somebody", ReplayRules())
        await second.execute(text("SET lock_timeout = '5s'"))
        assert (await resolve_page(second, "discarded", [2], "somebody", ReplayRules())).count == 1
        await first.commit()
        await second.commit()


async def test_two_operators_with_the_same_dead_letters_replay_each_once(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    fill(pg_engine, [dead(place, key=f"k{place % 7}") for place in range(1, 1201)])
    done = await asyncio.gather(*(replay(async_pg_engine) for _ in range(3)))
    assert sum(one.count for one in done) == 1200
    assert not any(one.refused for one in done)
    assert outbox_rows(pg_engine).keys() == set(range(1, 1201))


async def test_relays_that_park_and_operators_that_release_never_leave_a_row_behind(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    """Many keys, both at once, in opposite orders: no deadlock, and in the end nothing is parked without a reason."""
    keys = [f"k{n}" for n in range(60)]
    fill(
        pg_engine,
        [dead(n + 1, key=key) for n, key in enumerate(keys)],
        [waiting(1000 + n, key, due_at=None, held=False) for n, key in enumerate(reversed(keys))],
    )

    async def relay(offset: int) -> None:
        for first in range(1000 + offset, 1060, 20):
            async with async_pg_engine.begin() as connection:
                await claim(connection, list(range(first, first + 10)))
                await park(connection, list(range(first, first + 10)))

    await asyncio.gather(relay(0), replay(async_pg_engine), relay(10), discard(async_pg_engine))
    assert all(row.resolution for row in letters(pg_engine).values())
    assert still_parked(pg_engine) == set()


async def test_it_is_known_whether_a_relay_is_there_to_send_them(async_pg_engine: AsyncEngine, postgresql_url: str):
    letters = DeadLetters(async_pg_engine)
    assert await letters.without_relay({"mail", "default"}) == ["default", "mail"]
    relay = process.relay_engine(postgresql_url, publish_timeout=timedelta(seconds=1), destination="mail")
    async with relay.connect():
        assert await letters.without_relay({"mail", "default"}) == ["default"]
    await relay.dispose()


async def test_a_survey_judges_as_a_replay_does_though_the_server_leaves_most_of_them_out(
    engine: Engine, async_engine: AsyncEngine
):
    """Each condition of the statement alone makes a letter one that the rules refuse, or may."""
    now = await DeadLetters(async_engine).now()
    day, rules = timedelta(days=1), ReplayRules(timedelta(days=14))
    fresh, old = f"{ids.new()[:-12]}abcdefabcdef", window.lowest_id(now - 20 * day)
    edge = [
        window.lowest_id(now - rules.retention + rules.skew + seconds * timedelta(seconds=1)) for seconds in (-60, 60)
    ]
    texts = [fresh, old, *edge, fresh.upper(), "m-1", "zzzzzzzz-zzzz-7zzz-8zzz-zzzzzzzzzzzz", "", None]
    rows = [buried(text_) for text_ in texts]
    rows += [
        buried("m-2", created_at=now - 20 * day),
        buried(f"{fresh[:-1]}0", queue=None),
        buried(f"{fresh[:-1]}1", type=""),
    ]
    rows += [buried(f"{fresh[:-2]}0{n}", reason=reason) for n, reason in enumerate(("stale", "malformed", "rejected"))]
    rows += [
        buried(f"{fresh[:-2]}1{n}", **{name: "é" * 200}) for n, name in enumerate(("key", "topic", "type", "queue"))
    ]
    fill(engine, rows)
    survey = await DeadLetters(async_engine, rules=rules).survey(ALL)
    judged = Counter(filter(None, (rules.refusal(row, now) for row in letters(engine).values())))
    assert survey.refusals == judged
    assert {Refusal.STALE, Refusal.MALFORMED, Refusal.NO_QUEUE} == judged.keys()
    assert survey.count == len(rows)
