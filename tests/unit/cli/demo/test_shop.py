"""The demo's shop counts what is really in the database."""

from sqlalchemy import create_engine, insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit import tables
from outboxkit.cli.demo import shop
from outboxkit.inbox import handler_of
from tests.unit.shop import rows


def test_effects_are_counted_apart_from_lost_doubled_and_invented_ones():
    engine = create_engine("sqlite://")
    shop.Shop.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(shop.Order), [{"number": number, "total": 1} for number in (1, 2, 3)])
        connection.execute(insert(shop.SentReceipt), [{"order_number": number} for number in (1, 2, 2, 9)])
        assert connection.execute(shop.count_orders()).scalar_one() == 3
        assert connection.execute(shop.count_receipts()).one() == (4, 2, 1)
    engine.dispose()


async def test_an_order_and_its_event_are_written_together(async_engine: AsyncEngine, database_url: str):
    async with async_engine.begin() as connection:
        await connection.run_sync(shop.Shop.metadata.create_all)
    async with AsyncSession(async_engine) as session, session.begin():
        shop.confirm(session, 7)
    (row,) = rows(database_url, tables.outbox)
    assert (row["type"], row["key"], row["payload"]) == ("OrderConfirmed", "order-7", b'{"number":7,"total":"0.07"}')
    assert [order["number"] for order in rows(database_url, shop.Order.__table__)] == [7]


def test_the_handler_takes_the_shops_event():
    assert handler_of(shop.send_receipt).event_type is shop.OrderConfirmed
