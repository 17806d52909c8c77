"""Partitions of the inbox on PostgreSQL: a day of UUIDv7s each, made and dropped beside running consumers."""

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, insert, make_url, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import ids, statements, tables
from outboxkit.consumer.transactions import is_conflict
from outboxkit.runtime import process
from outboxkit.schema.partitions import drop_before, make_ahead, make_behind
from outboxkit.statements import partitions
from outboxkit.statements.partitions import INBOX
from tests.integration.operators.kept import DAY, DAYS, NOW, days
from tests.support.polling import eventually, eventually_async

DEFAULT = "outboxkit_inbox_default"


@pytest.fixture
async def connection(async_pg_engine: AsyncEngine) -> Any:
    async with async_pg_engine.connect() as opened:
        yield opened


def handled(engine: Engine, *messages: str, at: datetime | None = None) -> None:
    rows = [{"handler": "H", "message_id": id_, "type": "T"} | ({"processed_at": at} if at else {}) for id_ in messages]
    with engine.begin() as connection:
        connection.execute(insert(tables.inbox), rows)


def places(engine: Engine) -> dict[str, str]:
    with engine.connect() as connection:
        found = connection.execute(text("SELECT message_id, tableoid::regclass::text FROM outboxkit_inbox"))
        return {row[0]: row[1] for row in found}


def id_at(moment: datetime) -> str:
    return ids.new(at=moment)


def table_of(moment: datetime) -> str:
    return INBOX.partition_of(moment.astimezone(UTC).date())


async def test_ids_go_to_their_day_and_every_other_id_to_the_default(connection: AsyncConnection, pg_engine: Engine):
    assert (await make_ahead(connection, INBOX, NOW)).days == DAYS
    assert (await make_ahead(connection, INBOX, NOW)).days == []
    assert days(pg_engine, INBOX) == DAYS
    midnight = datetime(2026, 3, 2, tzinfo=UTC)
    known = {id_at(moment): table_of(moment) for moment in (midnight - timedelta(milliseconds=1), midnight, NOW)}
    foreign = ("order-7", ids.derive("order", 7), "ä" * 200, "~", "", id_at(NOW - DAY), id_at(NOW + 8 * DAY))
    handled(pg_engine, *known, *foreign)
    assert places(pg_engine) == known | dict.fromkeys(foreign, DEFAULT)


async def test_rows_that_are_there_move_to_their_day(connection: AsyncConnection, pg_engine: Engine):
    moments = [NOW - 3 * DAY, NOW - 3 * DAY, NOW, NOW + 20 * DAY, NOW - 60 * DAY, NOW + 60 * DAY]
    wanted = {id_at(moment): table_of(moment) if abs(moment - NOW) < 50 * DAY else DEFAULT for moment in moments}
    wanted |= {ids.derive_from(id_, "H"): partition for id_, partition in wanted.items()}
    other = ["order-7", wanted_but_not_hexadecimal(NOW)]
    handled(pg_engine, *wanted, *other)
    made = await make_behind(connection, NOW - 16 * DAY, NOW + 31 * DAY)
    assert made.days == [(NOW + number * DAY).date() for number in (-3, 0, 20)]
    assert (await make_behind(connection, NOW - 16 * DAY, NOW + 31 * DAY)).days == []
    found = places(pg_engine)
    assert {id_: found[id_] for id_ in wanted} == wanted
    assert len(found) == len(wanted) + 2


def wanted_but_not_hexadecimal(moment: datetime) -> str:
    return id_at(moment)[:12] + "g-7nonsense"


async def test_only_so_many_days_are_made_at_once(connection: AsyncConnection, pg_engine: Engine):
    handled(pg_engine, *(id_at(NOW + number * DAY) for number in range(12)))
    assert [len((await make_behind(connection, NOW, NOW + 31 * DAY)).days) for _ in range(3)] == [10, 2, 0]
    assert DEFAULT not in places(pg_engine).values()


def record(connection: Connection, id_: str, made: datetime | None = None) -> bool:
    """Insert an inbox row as `run_once` does; False if it is there."""
    row = {"handler": "H", "message_id": id_, "type": "T", "attempts": 1, "payload_crc": None, "made": made}
    return connection.execute(statements.inbox.record_processed("postgresql"), row).scalar() is not None


async def test_a_duplicate_is_one_wherever_the_row_has_moved(connection: AsyncConnection, pg_engine: Engine):
    id_ = id_at(NOW)
    for change in (None, make_ahead(connection, INBOX, NOW)):
        if change is not None:
            assert (await change).days == DAYS
        with pg_engine.begin() as consumer:
            assert record(consumer, id_, NOW) is (change is None)


def test_a_transaction_that_meets_a_partition_being_attached_collides_and_its_second_try_does_not(pg_engine: Engine):
    id_ = id_at(NOW)

    def handle() -> bool:
        with pg_engine.begin() as consumer:
            return record(consumer, id_)

    def waits() -> int:
        with pg_engine.connect() as other:
            asked = f"SELECT count(*) FROM pg_locks WHERE relation = '{DEFAULT}'::regclass AND NOT granted"
            return int(other.execute(text(asked)).scalar_one())

    at = INBOX, "public", NOW.date()
    with ThreadPoolExecutor(1) as pool, pg_engine.begin() as pruner:
        pruner.execute(partitions.make_partition(*at))
        pruner.execute(partitions.close_default(INBOX, "public"))
        first = pool.submit(handle)
        eventually(waits)
        pruner.execute(partitions.attach_partition(*at))
        pruner.commit()
        with pytest.raises(IntegrityError) as failed:
            first.result()
    assert is_conflict(failed.value)
    assert [handle(), handle()] == [True, False]


@pytest.mark.parametrize(
    ("before", "dropped"),
    [
        (datetime(2026, 3, 2, tzinfo=UTC) - timedelta(microseconds=1), 0),
        (datetime(2026, 3, 2, tzinfo=UTC), 1),
        (datetime(2026, 3, 4, tzinfo=UTC), 3),
    ],
)
async def test_a_day_goes_when_it_is_over_and_nothing_in_it_is_younger(
    connection: AsyncConnection, pg_engine: Engine, before: datetime, dropped: int
):
    await make_ahead(connection, INBOX, NOW)
    handled(pg_engine, *(id_at(NOW + number * DAY) for number in range(4)), at=before - timedelta(microseconds=1))
    assert (await drop_before(connection, before, INBOX)).days == DAYS[:dropped]
    assert days(pg_engine, INBOX) == DAYS[dropped:]
    assert len(places(pg_engine)) == 4 - dropped


async def test_a_row_that_was_processed_later_keeps_its_day(connection: AsyncConnection, pg_engine: Engine):
    await make_ahead(connection, INBOX, NOW)
    before = NOW + 5 * DAY
    handled(pg_engine, id_at(NOW), id_at(NOW + DAY), at=before - timedelta(seconds=1))
    handled(pg_engine, id_at(NOW + DAY), at=before)
    dropped = await drop_before(connection, before, INBOX)
    assert dropped.days == dropped.emptied == [DAYS[0], DAYS[2], DAYS[3], DAYS[4]]
    assert len(places(pg_engine)) == 2
    assert (await drop_before(connection, before + timedelta(microseconds=1), INBOX)).days == [DAYS[1]]
    assert places(pg_engine) == {}


async def test_a_row_that_is_not_committed_yet_keeps_its_day(connection: AsyncConnection, pg_engine: Engine):
    await make_ahead(connection, INBOX, NOW)
    with pg_engine.connect() as consumer:
        consumer.execute(insert(tables.inbox).values(handler="H", message_id=id_at(NOW), type="T"))
        busy = await drop_before(connection, NOW + 2 * DAY, INBOX)
        assert (busy.days, busy.emptied, busy.busy) == ([], [], True)
        consumer.commit()
    assert (await drop_before(connection, NOW + 2 * DAY, INBOX)).days == [DAYS[1]]
    assert len(places(pg_engine)) == 1


async def test_a_row_that_is_committed_while_the_pruner_waits_keeps_its_day(postgresql_url: str, pg_engine: Engine):
    """Also where the database's transactions see only what was committed before they began."""
    elsewhere = make_url(postgresql_url).update_query_dict(
        {"options": "-cdefault_transaction_isolation=repeatable\\ read"}
    )
    engine = process.engine(elsewhere.render_as_string(hide_password=False), name="test")
    async with engine.connect() as connection:
        await make_ahead(connection, INBOX, NOW)
        with pg_engine.connect() as consumer, pg_engine.connect() as observer:
            consumer.execute(insert(tables.inbox).values(handler="H", message_id=id_at(NOW), type="T"))

            async def waiting() -> bool:
                observer.rollback()
                locks = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = cast(:name AS regclass)"
                return bool(observer.execute(text(locks), {"name": INBOX.partition_of(DAYS[0])}).scalar_one())

            dropping = asyncio.ensure_future(drop_before(connection, NOW + DAY, INBOX))
            await eventually_async(waiting)
            consumer.commit()
            assert (await dropping).days == []
    await engine.dispose()
    assert len(places(pg_engine)) == 1


async def test_space_is_free_although_a_transaction_stays_open(connection: AsyncConnection, pg_engine: Engine):
    await make_ahead(connection, INBOX, NOW)
    handled(pg_engine, id_at(NOW), id_at(NOW + DAY), at=NOW)
    with pg_engine.connect() as consumer:
        consumer.execute(insert(tables.inbox).values(handler="H", message_id="order-7", type="T"))
        dropped = await drop_before(connection, NOW + 2 * DAY, INBOX)
        assert (dropped.days, dropped.emptied, dropped.busy) == ([], DAYS[:2], True)
        assert size(pg_engine, *DAYS[:2]) == 0
        consumer.commit()
    assert (await drop_before(connection, NOW + 2 * DAY, INBOX)).days == DAYS[:2]
    assert list(places(pg_engine).values()) == [DEFAULT]


async def test_days_are_made_although_a_transaction_stays_open(connection: AsyncConnection, pg_engine: Engine):
    await make_ahead(connection, INBOX, NOW)
    with pg_engine.connect() as consumer:
        consumer.execute(insert(tables.inbox).values(handler="H", message_id=id_at(NOW), type="T"))
        handled(pg_engine, id_at(NOW - DAY))
        assert len((await make_ahead(connection, INBOX, NOW + 2 * DAY)).days) == 2
        assert len((await make_behind(connection, NOW - 2 * DAY, NOW)).days) == 1
        consumer.commit()
    assert list(places(pg_engine).values()).count(DEFAULT) == 0


def size(engine: Engine, *of: Any) -> int:
    with engine.connect() as connection:
        names = [INBOX.partition_of(day) for day in of]
        asked = text("SELECT sum(pg_relation_size(name::regclass)) FROM unnest(cast(:names AS text[])) name")
        return int(connection.execute(asked, {"names": names}).scalar_one())


HANDLERS = 4
MESSAGES = 200


class Consumers:
    """Threads that handle the same messages again and again, as consumers do: the row, the effect, the commit."""

    def __init__(self, engine: Engine, messages: list[str]) -> None:
        self._engine = engine
        self._messages = messages
        self.stop = threading.Event()
        self.done = 0
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE effect (message_id text)"))

    def work(self, seed: int) -> None:
        chosen = random.Random(seed)
        with self._engine.connect() as connection:
            while not self.stop.is_set():
                try:
                    self._handle(connection, chosen)
                except DBAPIError as error:
                    connection.rollback()
                    if not is_conflict(error):
                        raise
                self.done += 1

    def _handle(self, connection: Connection, chosen: random.Random) -> None:
        for id_ in chosen.sample(self._messages, 3):
            if record(connection, id_):
                connection.execute(text("INSERT INTO effect VALUES (:id)"), {"id": id_})
        if chosen.random() < 0.1:
            connection.rollback()
        else:
            connection.commit()


async def test_no_row_is_lost_or_doubled_while_partitions_come_and_go(
    async_pg_engine: AsyncEngine, pg_engine: Engine, connection: AsyncConnection
):
    """Threads insert each message again and again while its day is made, emptied of the old, dropped and made again."""
    moments = [NOW + random.Random(7).uniform(-5, 8) * DAY for _ in range(MESSAGES)]
    messages = [*map(id_at, moments), *(f"foreign-{number}" for number in range(20))]
    consumers = Consumers(pg_engine, messages)
    working = [asyncio.ensure_future(asyncio.to_thread(consumers.work, seed)) for seed in range(HANDLERS)]
    made, dropped, round_ = 0, 0, 0
    try:
        while round_ < 12 or consumers.done < 400:
            round_ += 1
            assert not any(one.done() for one in working), [one.exception() for one in working if one.done()]
            made += len((await make_behind(connection, NOW - 16 * DAY, NOW + 31 * DAY)).days)
            made += len((await make_ahead(connection, INBOX, NOW + round_ % 3 * DAY)).days)
            handled(pg_engine, id_at(NOW - (20 + round_) * DAY), at=NOW - 20 * DAY)
            made += len((await make_behind(connection, NOW - 60 * DAY, NOW)).days)
            dropped += len((await drop_before(connection, NOW - DAY, INBOX)).days)
            await asyncio.sleep(0)
    finally:
        consumers.stop.set()
        await asyncio.wait(working)
    for one in working:
        one.result()
    with pg_engine.connect() as reader:
        effects = dict(reader.execute(text("SELECT message_id, count(*) FROM effect GROUP BY 1")).all())
        rows = reader.execute(text("SELECT message_id FROM outboxkit_inbox")).scalars().all()
    assert set(effects.values()) == {1}
    assert sorted(effects) == sorted(id_ for id_ in rows if id_ in set(messages))
    assert made > 8, "partitions were made below them"
    assert dropped > 0, "and dropped"
