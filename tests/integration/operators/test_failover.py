"""A database that lost its last seconds: what `reconcile` and the program of the page on failovers find."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, delete, insert, select, text
from sqlalchemy.orm import Session

from outboxkit import Message, event, ids, inbox, inbox_handler, outbox, tables
from outboxkit.operators.reconciliation import Terms, reconcile_services
from outboxkit.runtime.outage import utc_now
from tests.integration.operators.doctoring import with_engines
from tests.servers import Server
from tests.servers.postgresql import PrivatePostgresql, create_database, drop_database, find_programs
from tests.support.pages import libpq
from tests.support.polling import eventually

PAGE = Path(__file__).parents[3] / "docs/how-to/fail-over.md"
ROW = {"type": "OrderConfirmed", "payload": b"{}", "headers": b"{}", "content_type": "application/json"}


@pytest.fixture(scope="module")
def orphans() -> Any:
    """The function of the page, as it is printed."""
    source = PAGE.read_text().partition("Put this in `orphans.py`:\n\n```python\n")[2].partition("```")[0]
    program: dict[str, Any] = {"__name__": "orphans"}
    exec(source, program)
    return program["orphans"]


@event("Step")
@dataclass(frozen=True)
class Step:
    number: int


@inbox_handler("TakeStep")
def take_step(session: Session, event: Step) -> None:
    outbox.add(session, Step(event.number + 1))


def publish(engine: Engine, position: int) -> str:
    id_ = ids.new()
    with engine.begin() as connection:
        row = ROW | {"message_id": id_, "position": position, "published_at": utc_now()}
        connection.execute(insert(tables.published), row)
    return id_


def handle(engine: Engine, *message_ids: str) -> None:
    rows = [{"handler": "Book", "message_id": id_, "type": "OrderConfirmed"} for id_ in message_ids]
    with engine.begin() as connection:
        connection.execute(insert(tables.inbox), rows)


def missing(producer: str, consumer: str) -> list[str]:
    found: list[str] = []
    terms = Terms(utc_now() - timedelta(hours=1), timedelta(0))
    with_engines(
        lambda *each: reconcile_services(*each, terms, missing=lambda _, ids: found.extend(ids)), producer, consumer
    )
    return found


@pytest.fixture
def fresh(postgresql: Server, template: str) -> Iterator[Any]:
    """Makes databases: migrated ones, or copies of others as of this moment."""
    names: list[str] = []

    def make(of: str = template) -> str:
        names.append(f"outboxkit_{secrets.token_hex(6)}")
        return create_database(postgresql.url, names[-1], template=of)

    yield make
    for name in names:
        drop_database(postgresql.url, name)


def earlier(engine: Engine, make: Any) -> str:
    """A copy of the database as it is now: that to which a failover, or a backup, will go back."""
    engine.dispose()
    return make(engine.url.database)


def test_the_seconds_that_a_failover_lost_are_found_on_both_sides(fresh: Any, orphans: Any):
    shop_url, books_url = fresh(), fresh()
    shop, books = create_engine(shop_url), create_engine(books_url)
    kept = publish(shop, 1)
    handle(books, kept)
    shop_then, books_then = earlier(shop, fresh), earlier(books, fresh)
    since = utc_now() - timedelta(minutes=1)
    lost = publish(shop, 2)
    handle(books, lost)
    assert missing(shop_url, books_url) == []
    assert missing(shop_url, books_then) == [lost], "it was acked, and its effect is gone"
    assert missing(shop_then, books_url) == [], "what the shop has lost, it does not ask for"
    for url, expected in ((shop_url, []), (shop_then, [lost])):
        producer = create_engine(url)
        assert [row.message_id for row in orphans(producer, books, since, ["OrderConfirmed"])] == expected
        assert orphans(producer, books, since, ["Another"]) == []
        producer.dispose()
    with shop.begin() as connection:
        connection.execute(delete(tables.published))
        connection.execute(insert(tables.outbox), ROW | {"message_id": lost})
    assert [row.message_id for row in orphans(shop, books, since, ["OrderConfirmed"])] == [kept], "it will come again"
    shop.dispose()
    books.dispose()


def steps(engine: Engine, cause: Message) -> list[str]:
    """The ids of a message and of those that it leads to, over three handlers."""
    added = [cause]
    for _ in range(3):
        with Session(engine) as session, session.begin():
            inbox.run_once(session, added[-1], take_step)
            session.flush()
            row = session.execute(select(tables.outbox).order_by(tables.outbox.c.position.desc()).limit(1)).one()
        added.append(Message(id=row.message_id, type="Step", payload=row.payload))
    engine.dispose()
    return [message.id for message in added]


def test_handlers_that_run_again_add_the_same_messages_and_in_a_copy_others(fresh: Any):
    """A copy that works beside the first database must not have its messages taken for duplicates."""
    cause = Message(id=ids.new(), type="Step", payload=b'{"number":1}')
    engine = create_engine(fresh())
    copy = create_engine(earlier(engine, fresh))
    first = steps(engine, cause)
    with engine.begin() as connection:
        connection.execute(delete(tables.inbox))
    assert len(set(first)) == 4
    assert steps(engine, cause) == first
    assert set(first) & set(steps(copy, cause)) == {cause.id}


@pytest.mark.night
def test_a_real_standby(orphans: Any):
    """Promoted, an asynchronous one lacks the last seconds, and what had left by then is found."""
    programs = find_programs()
    assert programs is not None
    primary = PrivatePostgresql(programs)
    standby: PrivatePostgresql | None = None
    try:
        primary.start()
        standby = primary.standby()
        url, there = (create_database(primary.url, name) for name in ("shop", "books"))
        shop, books = create_engine(url), create_engine(there)
        for engine in (shop, books):
            tables.metadata.create_all(engine)
        with psycopg.connect(libpq(primary.url), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'")
            connection.execute("SELECT pg_reload_conf()")
            waits = "SELECT sync_state FROM pg_stat_replication"
            eventually(lambda: connection.execute(waits).fetchall(), lambda found: found == [("quorum",)])
            kept = publish(shop, 1)  # its commit has waited for the standby
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            connection.execute("SELECT pg_reload_conf()")
        standby.stop()
        lost = publish(shop, 2)
        cause = Message(id=lost, type="Step", payload=b'{"number":1}')
        first = steps(shop, cause)
        shop.dispose()
        books.dispose()
        primary.kill()
        standby.start()
        with psycopg.connect(libpq(standby.url), autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")
        promoted = create_engine(standby.url).url.set(database="shop")
        shop, books = create_engine(promoted), create_engine(promoted.set(database="books"))
        handle(books, kept, lost)  # a consumer's database of its own has lost nothing
        found = orphans(shop, books, utc_now() - timedelta(minutes=1), ["OrderConfirmed"])
        assert [row.message_id for row in found] == [lost]
        with shop.connect() as connection:
            assert connection.scalars(select(tables.published.c.message_id)).all() == [kept]
            assert connection.scalar(text("SELECT pg_is_in_recovery()")) is False
        assert steps(shop, cause) == first, "the second run of lost handlers"
        shop.dispose()
        books.dispose()
    finally:
        for server in (primary, standby):
            if server is not None:
                server.close()
