"""`assert_effects_once`: wrong handlers are caught, and their right twins are not accused."""

import re
import socket
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text, update
from sqlalchemy.orm import Session, sessionmaker

from outboxkit import ConfigurationError, inbox_handler
from outboxkit.testing import assert_effects_once, once
from tests.integration.kit import kit_handlers, kit_memory, kit_more, kit_outside
from tests.integration.kit.kit_handlers import ORDERED, Account, Customer, Invoice, Ordered, Tables
from tests.integration.kit.kit_world import mail, web
from tests.servers import Server
from tests.support.databases import SqliteCopies

MODULES = (kit_handlers, kit_memory, kit_outside, kit_more)
RIGHT = [handler for module in MODULES for handler in module.RIGHT]
AT_ONCE, IN_A_BATCH = "two messages of the same event, at once", "two messages of the same event, in one batch"
SWALLOWED = "it swallows the error of a statement that fails"
ENDED = r"it failed at its first delivery, .*\n    TransactionRequired: .* ended the transaction"
NOT_THE_SAME = "two single deliveries from the same rows do not do the same"
AGAIN = r"a rollback, then again\n  receipts\n    - "
REMEMBERS, FILES = "a retry counts or remembers again in variables", "a retry changes files again"
ANOTHER, SPEAKS = "it changes a database by another session or connection", "it speaks with another service"
REQUEST = "it sends a request without a key that is the same at each attempt"
SECOND, AFTER = "a second message of the same event fails, each time", "it acts after the end of its transaction"
CAUGHT = {
    AT_ONCE: "sum_by_hand sum_in_sql sell_the_last",
    f"{AT_ONCE}\n.*\n  to do: between the look and the insert": "upsert",
    "two messages that differ in 'order_id', at once": "sum_of_two_orders",
    "two messages of the same event, after an earlier one, at once": "sum_after_the_first",
    SWALLOWED: "swallow swallow_plain",
    "it swallows a cancellation": "cancellation_swallowed",
    "it calls write_receipt and does not await it": "forgotten_await",
    SECOND: "caught_without_savepoint caught_with_a_statement_behind",
    ENDED: "commit commit_of_connection",
    IN_A_BATCH: "done_in_batch",
    NOT_THE_SAME: "seen",
    f"{NOT_THE_SAME}\n    the second one fails: .*basket": "temporary_table",
    f"{NOT_THE_SAME}|at once|a rollback, then again": "chance",
    AGAIN: "seen_by_id",
    "a rollback, then again: it fails with ValueError: it was here before": "refuses_a_retry",
    REMEMBERS: "totals fake_mailer mocked_mailer number_in_memory counts_elsewhere environment priority_queue",
    FILES: "file_kept_open file file_of_its_own folder truncate hard_link link",
    "it leaves the task later behind": "task",
    r"it leaves the thread Thread-\d+ .* behind": "thread",
    "it leaves the function sleep of a pool behind": "handed_over",
    "it leaves the timer of send_mail behind": "timer",
    REQUEST: "httpx http_client new_key",
    "it sends a mail\n    to ann@example.com by 127.0.0.1": "mail mail_in_thread mail_in_own_thread mail_in_a_pool "
    "mail_after_an_effect",
    SPEAKS: "socket udp unix_socket open_connection asyncpg broker",
    f"{SPEAKS}\n    localhost:8025": "lookup",
    ANOTHER: "second_session other_database raw_connection sqlite psycopg psycopg2",
    "it starts a program": "program system program_async program_instead",
    AFTER: "rows_after_commit after_commit mail_after_rollback",
}
"""The words of the trial that is for each wrong handler."""
ON_A_FILE = {
    "wrong_commit_of_connection": "what stays after a rollback",
    "wrong_second_session": "database is locked",
}
WORDS = {f"wrong_{name}": words for words, names in CAUGHT.items() for name in names.split()}
WRONG = [handler for module in MODULES for handler in module.WRONG]
PAIRS = {"right_broker_with_the_messages_id"}
"""Pika makes a pair of sockets for itself: a connection to a port of its own is no effect."""
SLOW = {"wrong_second_session"}
"""On a file it waits for its lock, for five seconds."""


def cases(handlers: Sequence[Callable[..., Any]], *, by_day: int) -> Iterator[Any]:
    """Each handler on both databases; by day, of so many handlers one, on one of them."""
    for index, handler in enumerate(handlers):
        for each in ("postgresql", "sqlite"):
            is_slow = each == "sqlite" and handler.__name__ in SLOW
            is_other = index % by_day > 0 and handler.__name__ not in PAIRS
            by_night = is_slow or is_other or (index // by_day % 2 == 1) != (each == "sqlite")
            marks = [pytest.mark.night] if by_night else []
            yield pytest.param(each, handler, id=f"{handler.__name__}-{each}", marks=marks)


@pytest.fixture
def database_url(request: pytest.FixtureRequest, database: str) -> str:
    url: str = request.getfixturevalue(f"{database}_url")
    return url


@pytest.fixture(scope="module", autouse=True)
def _world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path = str(tmp_path_factory.mktemp("kit") / "socket")
    listener, kept = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    with web() as web_port, mail() as mail_port, listener, kept:
        listener.bind(path)
        listener.listen()
        kept.connect(path)
        kit_outside.WEB, kit_outside.MAIL = f"http://127.0.0.1:{web_port}", mail_port
        kit_outside.LOCAL, kit_more.SENDALL = path, kept.sendall
        yield


@pytest.fixture
def shop(
    engine: Engine, tmp_path: Path, migrated_sqlite: SqliteCopies, postgresql_url: str, rabbitmq: Server
) -> Iterator[Engine]:
    Tables.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Customer(name="ann", orders=3), Account(name="ann", orders=3)])
    kit_memory.SEEN.clear()
    kit_outside.FOLDER = tmp_path
    (tmp_path / "counter").write_text("12345")
    (tmp_path / "folder").mkdir()
    effects = create_engine(migrated_sqlite.copy(tmp_path / "effects.db"))
    kit_outside.SESSIONS = sessionmaker(effects)
    elsewhere = create_engine(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    with elsewhere.begin() as connection:
        connection.execute(text("CREATE TABLE stats (n integer)"))
    kit_more.ELSEWHERE, kit_more.FILE = elsewhere, str(tmp_path / "file.db")
    kit_more.POSTGRESQL = postgresql_url.replace("+psycopg", "")
    kit_more.BROKER = rabbitmq.url
    with (tmp_path / "kept.log").open("a") as kit_memory.LOG:
        yield engine
    effects.dispose()
    elsewhere.dispose()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize(("database", "handler"), list(cases(WRONG, by_day=1)))
def test_a_wrong_handler_is_caught(handler: Callable[..., Any], shop: Engine):
    with pytest.raises(AssertionError) as caught:
        assert_effects_once(handler, ORDERED, engine=shop)
    words = WORDS[handler.__name__]
    if shop.dialect.name == "sqlite":
        words = ON_A_FILE.get(handler.__name__, words)
    assert re.search(words, str(caught.value)), str(caught.value)


@pytest.mark.filterwarnings("ignore:handler 'wrong.Task' has changed nothing")
@pytest.mark.parametrize("database", ["postgresql"])
@pytest.mark.parametrize(
    ("trial", "handler", "words"),
    [
        (once.single_deliveries, kit_memory.wrong_task, "it leaves the task later behind"),
        (once.a_second_message, kit_handlers.wrong_caught_without_savepoint, SECOND),
        (once.a_rollback, kit_more.wrong_mail_after_rollback, AFTER),
        (once.a_lost_connection, kit_more.undone_by_hand, "what stays after a connection lost before the commit"),
        (once.a_statement_fails, kit_handlers.wrong_swallow_plain, SWALLOWED),
        (once.a_cancellation, kit_more.wrong_cancellation_swallowed, "it swallows a cancellation"),
        (once.one_batch, kit_memory.wrong_done_in_batch, IN_A_BATCH),
        (once.two_at_once, kit_handlers.wrong_sum_in_sql, AT_ONCE),
    ],
    ids=lambda value: getattr(value, "__name__", "it"),
)
def test_each_trial_has_a_wrong_handler_that_only_it_catches(
    trial: Callable[..., Any], handler: Callable[..., Any], words: str, shop: Engine, monkeypatch: pytest.MonkeyPatch
):
    def without_findings(trials: Any) -> Iterator[Any]:
        list(trial(trials))
        trials.recorder.effects.clear()
        return iter(())

    allowed = ["*: INSERT INTO receipts", "*: DELETE FROM receipts"]
    with pytest.raises(AssertionError, match=words):
        assert_effects_once(handler, ORDERED, engine=shop, outside=allowed)
    monkeypatch.setattr(once, "TRIALS", [without_findings if each is trial else each for each in once.TRIALS])
    assert_effects_once(handler, ORDERED, engine=shop, outside=allowed)


@pytest.mark.parametrize("database", ["postgresql"])
def test_an_event_of_the_test_is_handled_at_the_same_time(shop: Engine):
    """Only new orders of two new customers can meet: other events fail, or fail one after the other."""

    @inbox_handler("kit.CountFirstOrders")
    def count_first_orders(session: Session, event: Ordered) -> None:
        customer = session.get_one(Customer, "ann")
        session.add_all([Invoice(order_id=event.order_id), Account(name=event.customer, orders=1)])
        customer.orders += 1

    first, other = Ordered(7, "bob", Decimal(1)), Ordered(8, "eve", Decimal(1))
    assert_effects_once(count_first_orders, first, engine=shop)
    with pytest.raises(AssertionError, match=r"beside Ordered\(order_id=8, customer='eve', .*\), at once"):
        assert_effects_once(count_first_orders, first, engine=shop, others=[other])


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
@pytest.mark.parametrize("order_id", [7, 8])
def test_each_of_two_messages_is_the_one_that_reads_too_early(order_id: int, shop: Engine):
    @inbox_handler("kit.ResetOrCount")
    def reset_or_count(session: Session, event: Ordered) -> None:
        if event.order_id == order_id:
            session.execute(update(Customer).values(orders=0))
        else:
            session.get_one(Customer, "ann").orders += 1
        session.add(Invoice(order_id=event.order_id))  # so that two messages of one event cannot meet

    with pytest.raises(AssertionError, match=r"two messages that differ in 'order_id', at once(.|\n)* orders=4"):
        assert_effects_once(reset_or_count, ORDERED, engine=shop)


@pytest.mark.parametrize(("database", "handler"), list(cases(RIGHT, by_day=3)))
def test_a_right_handler_is_not_accused(handler: Callable[..., Any], shop: Engine):
    assert_effects_once(handler, ORDERED, engine=shop)


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_handler_that_does_nothing_is_told(shop: Engine):
    @inbox_handler("kit.Nothing")
    def look(session: Session, event: Ordered) -> None:
        session.get(Customer, "bob")

    with pytest.warns(UserWarning, match=r"handler 'kit.Nothing' has changed nothing.* commit the rows") as told:
        assert_effects_once(look, ORDERED, engine=shop)
    assert told[0].filename == __file__


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_missing_tables_are_told_with_what_makes_them(engine: Engine, tmp_path: Path):
    empty = create_engine(f"sqlite:///{tmp_path / 'empty.db'}")
    with pytest.raises(
        ConfigurationError, match=r"empty\.db, cannot be used: the outboxkit tables are missing"
    ) as told:
        assert_effects_once(kit_handlers.right_book, ORDERED, engine=empty)
    assert "outboxkit.metadata.create_all(engine)" in str(told.value)
    empty.dispose()
    with pytest.raises(AssertionError, match=r"to do: create the tables of the models .*Base\.metadata\.create_all"):
        assert_effects_once(kit_handlers.right_book, ORDERED, engine=engine)
