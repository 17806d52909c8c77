"""The engines, sessions and databases that `assert_effects_once` takes, and those that it refuses."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, ForeignKey, create_engine, insert, select, text, update
from sqlalchemy import event as listening
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Mapped, Session, mapped_column
from sqlalchemy.pool import SingletonThreadPool

import outboxkit.runtime.process
from outboxkit import ConfigurationError, inbox_handler, outbox, tables
from outboxkit.testing import assert_effects_once
from tests.integration.kit.kit_handlers import (
    ORDERED,
    Booked,
    Customer,
    Ordered,
    Receipt,
    Tables,
    Token,
    right_book,
    right_book_async,
    right_sum_by_lock,
    wrong_sum_by_hand,
)
from tests.support.night import by_day_on


@inbox_handler("kit.Add")
def add(session: Session, event: Ordered) -> None:
    session.add(Receipt(order_id=event.order_id, total=event.total))


@inbox_handler("kit.AddAsync")
async def add_async(session: AsyncSession, event: Ordered) -> None:
    session.add(Receipt(order_id=event.order_id, total=event.total))


def contents(engine: Engine) -> dict[str, Any]:
    """All rows, and the next numbers that the database gives."""
    with engine.connect() as connection:
        rows = {
            table.name: sorted(map(str, connection.execute(select(table)).all()))
            for table in (*Tables.metadata.sorted_tables, tables.outbox, tables.inbox)
        }
        if engine.dialect.name == "postgresql":
            rows["numbers"] = connection.execute(
                text("SELECT sequencename, last_value FROM pg_sequences ORDER BY 1")
            ).all()
    return rows


@pytest.fixture
def shop(engine: Engine) -> Iterator[Engine]:
    Tables.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        receipt = Receipt(order_id=1, total=5)
        session.add_all([Customer(name="ann", orders=3), receipt])
        session.flush()
        session.add(Token(receipt_id=receipt.id))
        outbox.add(session, Booked(1, "R-1"), key="order-1")
    return engine


@pytest.fixture
def shop_on_pg(pg_engine: Engine) -> Engine:
    Tables.metadata.create_all(pg_engine)
    return pg_engine


def test_all_is_as_it_was(shop: Engine):
    before = contents(shop)
    assert_effects_once(right_book, ORDERED, engine=shop)
    assert contents(shop) == before
    with pytest.raises(AssertionError):
        assert_effects_once(wrong_sum_by_hand, ORDERED, engine=shop)
    assert contents(shop) == before


@by_day_on("postgresql")
async def test_an_async_engine_in_a_running_loop(shop: Engine, async_engine: AsyncEngine):
    async with AsyncSession(async_engine) as session:
        assert (await session.scalars(select(Customer.name))).all() == ["ann"]
        await session.rollback()
        assert_effects_once(add_async, ORDERED, engine=async_engine)
        assert_effects_once(add, ORDERED, engine=async_engine)
        with pytest.raises(AssertionError):
            assert_effects_once(wrong_sum_by_hand, ORDERED, engine=async_engine)
        assert (await session.scalars(select(Customer.name))).all() == ["ann"]


def test_an_engine_whose_driver_sends_in_python_the_rest_of_much_when_the_loop_has_time(shop_on_pg: Engine):
    @inbox_handler("kit.Measure")
    async def measure(session: AsyncSession, event: Ordered) -> None:
        length = await session.scalar(text("SELECT length(:text)"), {"text": "x" * 4_000_000})
        session.add(Receipt(order_id=event.order_id, total=event.total, number=length))

    url = shop_on_pg.url.set(drivername="postgresql+asyncpg")
    assert_effects_once(measure, ORDERED, engine=create_async_engine(url))


class Parent(Tables):
    __tablename__ = "parents"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


class Child(Tables):
    __tablename__ = "children"
    id: Mapped[int] = mapped_column(primary_key=True)
    parent_id: Mapped[int] = mapped_column(ForeignKey("parents.id", ondelete="CASCADE"))


@inbox_handler("kit.Rename")
def rename(session: Session, event: Ordered) -> None:
    session.execute(update(Parent).values(name="new"))


@by_day_on("sqlite")
def test_rows_that_refer_to_changed_ones_are_put_back_too(shop: Engine):
    """To put a parent back it is deleted, and a foreign key may take its children along."""
    if shop.dialect.name == "sqlite":
        listening.listen(shop, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
        shop.dispose()
    with Session(shop) as session, session.begin():
        session.add(Parent(id=1, name="old"))
        session.flush()
        session.add(Child(parent_id=1))
    assert_effects_once(rename, ORDERED, engine=shop)
    with Session(shop) as session:
        assert session.scalars(select(Child.parent_id)).all() == [1]


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///file:kit?mode=memory&cache=shared&uri=true"])
def test_a_database_in_memory_is_copied(url: str):
    engine = create_engine(url, poolclass=SingletonThreadPool)
    Tables.metadata.create_all(engine)
    outboxkit.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Customer(name="ann", orders=3))
    before = contents(engine)
    assert_effects_once(right_book, ORDERED, engine=engine)
    assert_effects_once(right_book_async, ORDERED, engine=engine)
    assert_effects_once(right_sum_by_lock, ORDERED, engine=engine)
    with pytest.raises(AssertionError, match="customers"):
        assert_effects_once(wrong_sum_by_hand, ORDERED, engine=engine)
    assert contents(engine) == before
    engine.dispose()


def test_what_leads_to_no_engine_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"engine is 5; an Engine or AsyncEngine is accepted"):
        assert_effects_once(add, ORDERED, engine=5)
    with pytest.raises(ConfigurationError, match="in memory and asynchronous"):
        assert_effects_once(add, ORDERED, engine=outboxkit.runtime.process.engine("sqlite://", name="test"))


@by_day_on("sqlite")
def test_a_large_database_is_refused(shop: Engine):
    with shop.begin() as connection:
        connection.execute(insert(Customer), [{"name": str(number), "orders": 1} for number in range(10_001)])
    with pytest.raises(ConfigurationError, match="for tests"):
        assert_effects_once(add, ORDERED, engine=shop)


@by_day_on("sqlite")
def test_columns_and_tables_are_ignored(shop: Engine):
    with pytest.raises(AssertionError, match="orders=4"):
        assert_effects_once(wrong_sum_by_hand, ORDERED, engine=shop)
    assert_effects_once(wrong_sum_by_hand, ORDERED, engine=shop, ignore=("customers.orders",))
    assert_effects_once(wrong_sum_by_hand, ORDERED, engine=shop, ignore="customers")


def test_a_handler_that_fails_is_told_with_its_error(shop: Engine):
    @inbox_handler("kit.Fails")
    def fails(session: Session, event: Ordered) -> None:
        raise KeyError("total")

    with pytest.raises(AssertionError, match=r"it failed at its first delivery, .*\n    KeyError: 'total'") as caught:
        assert_effects_once(fails, ORDERED, engine=shop)
    assert isinstance(caught.value.__cause__, KeyError)


@by_day_on("sqlite")
def test_another_event_that_would_be_left_out_in_silence_is_refused(shop: Engine):
    with pytest.raises(ConfigurationError, match=r"'kit\.Add' handles 'Ordered'; the event is 'Booked'"):
        assert_effects_once(add, ORDERED, engine=shop, others=[Booked(1, "R-1")])


def all_rows(engine: Engine, *names: str) -> dict[str, Any]:
    with engine.connect() as connection:
        return {name: connection.execute(text(f"SELECT * FROM {name} ORDER BY 1")).all() for name in names}


def test_rows_of_a_table_that_inherits_stay_in_it(shop_on_pg: Engine):
    with shop_on_pg.begin() as connection:
        connection.execute(text("CREATE TABLE vehicles (name text, wheels int)"))
        connection.execute(text("CREATE TABLE lorries (load int) INHERITS (vehicles)"))
        connection.execute(text("INSERT INTO vehicles VALUES ('bike', 2)"))
        connection.execute(text("INSERT INTO lorries VALUES ('lorry', 6, 40)"))
    before = all_rows(shop_on_pg, "ONLY vehicles", "lorries")

    @inbox_handler("kit.Wheels")
    def set_wheels(session: Session, event: Ordered) -> None:
        session.execute(text("UPDATE vehicles SET wheels = :order_id"), {"order_id": event.order_id})

    assert_effects_once(set_wheels, ORDERED, engine=shop_on_pg)
    assert all_rows(shop_on_pg, "ONLY vehicles", "lorries") == before


def test_a_column_may_have_any_name(shop_on_pg: Engine):
    with shop_on_pg.begin() as connection:
        connection.execute(text('CREATE TABLE colours (r jsonb, n int, v int, name text, "100%" int)'))
        connection.execute(text("INSERT INTO colours VALUES ('{}', 1)"))

    @inbox_handler("kit.ColourByHand")
    def colour(session: Session, event: Ordered) -> None:
        number = session.scalar(text("SELECT n FROM colours"))
        session.execute(text("UPDATE colours SET n = :number"), {"number": number + 1})

    with pytest.raises(AssertionError, match="colours"):
        assert_effects_once(colour, ORDERED, engine=shop_on_pg)


@pytest.fixture
def shop_of_a_plain_role(pg_engine: Engine) -> Iterator[Engine]:
    """It owns its tables, and may not let keys and triggers rest as a superuser may."""
    role, password = f"kit_{secrets.token_hex(6)}", secrets.token_hex(6)
    with pg_engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
        connection.exec_driver_sql(f"GRANT ALL ON SCHEMA public TO {role}")
        connection.exec_driver_sql(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
        connection.exec_driver_sql(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}")
    engine = create_engine(pg_engine.url.set(username=role, password=password))
    yield engine
    engine.dispose()
    with pg_engine.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {role} CASCADE")
        connection.exec_driver_sql(f"DROP ROLE {role}")


ON_SQLITE = [
    "CREATE TRIGGER noted AFTER INSERT ON items BEGIN INSERT INTO log VALUES ('new ' || new.number); END",
]
ON_POSTGRESQL = [
    (
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO log VALUES ('new ' || new.number); RETURN new; END $$"
    ),
    "CREATE TRIGGER noted AFTER INSERT ON items FOR EACH ROW EXECUTE FUNCTION note()",
]


@pytest.mark.parametrize("fixture", ["shop_of_a_plain_role", "sqlite_url"])
def test_no_trigger_hears_how_rows_are_put_back(request: pytest.FixtureRequest, fixture: str):
    given = request.getfixturevalue(fixture)
    engine = create_engine(given) if fixture == "sqlite_url" else given
    with engine.begin() as connection:
        for statement in (
            "CREATE TABLE items (number int)",
            "CREATE TABLE log (line text)",
            *(ON_SQLITE if fixture == "sqlite_url" else ON_POSTGRESQL),
            "INSERT INTO items VALUES (1)",
        ):
            connection.exec_driver_sql(statement)

    @inbox_handler("kit.AddItem")
    def add_item(session: Session, event: Ordered) -> None:
        session.execute(text("INSERT INTO items VALUES (:order_id)"), {"order_id": event.order_id})

    assert_effects_once(add_item, ORDERED, engine=engine)
    assert all_rows(engine, "items", "log") == {"items": [(1,)], "log": [("new 1",)]}
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO items VALUES (2)"))
    assert all_rows(engine, "log") == {"log": [("new 1",), ("new 2",)]}
    engine.dispose()


def test_a_table_that_the_test_has_locked_is_told(shop_on_pg: Engine):
    refused = "the rows cannot be read: canceling statement due to lock timeout. If a session of the test is in a"
    with shop_on_pg.begin() as connection:
        connection.execute(text("TRUNCATE receipts CASCADE"))
        with pytest.raises(ConfigurationError, match=refused):
            assert_effects_once(add, ORDERED, engine=shop_on_pg)


def test_an_index_of_words_in_a_file_is_put_back(sqlite_url: str):
    engine = create_engine(sqlite_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE VIRTUAL TABLE words USING fts5(body)"))
        connection.execute(text("INSERT INTO words VALUES ('hello world')"))
    before = all_rows(engine, "words")

    @inbox_handler("kit.Word")
    def word(session: Session, event: Ordered) -> None:
        session.execute(text("INSERT INTO words VALUES (:word)"), {"word": f"order {event.order_id}"})

    assert_effects_once(word, ORDERED, engine=engine)
    assert all_rows(engine, "words") == before
    engine.dispose()


def test_triggers_of_a_file_stay_when_rows_cannot_be_put_back(sqlite_url: str):
    engine = create_engine(sqlite_url)
    listening.listen(engine, "begin", lambda _: None)  # an application counts transactions; the driver begins late
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE numbers (n int)"))
        connection.execute(text("INSERT INTO numbers VALUES (1), (1)"))
        connection.execute(text("CREATE TRIGGER heard AFTER INSERT ON numbers BEGIN SELECT 1; END"))

    @inbox_handler("kit.Index")
    def index(session: Session, event: Ordered) -> None:
        session.execute(text("DELETE FROM numbers"))
        session.execute(text("CREATE UNIQUE INDEX IF NOT EXISTS one ON numbers (n)"))

    with pytest.raises(ConfigurationError, match="cannot be put back"):
        assert_effects_once(index, ORDERED, engine=engine)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT name FROM sqlite_master WHERE name = 'heard'")).all()
    assert found == [("heard",)]
    engine.dispose()
