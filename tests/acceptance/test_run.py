"""`outboxkit run`: one command from an empty folder, killed in between, and the same one on the real servers."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import create_engine, text

from tests.processes import ForkedProcess, run_to_end, start
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually

SHOP = """
import os
import sys
from dataclasses import dataclass

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outboxkit import event, inbox_handler, outbox

class Base(DeclarativeBase): ...

class Receipt(Base):
    __tablename__ = "receipts"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]

@event("OrderConfirmed")
@dataclass(frozen=True)
class OrderConfirmed:
    number: int

@inbox_handler("SendReceipt")
async def send_receipt(session, event: OrderConfirmed) -> None:
    session.add(Receipt(number=event.number))

if __name__ == "__main__":
    engine = create_engine(os.environ.get("OUTBOXKIT_DATABASE_URL", "sqlite:///outboxkit.db"))
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        outbox.add(session, OrderConfirmed(int(sys.argv[1])))
"""


class Shop:
    """A folder with a module `shop`, in which commands are typed."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOXKIT_")}
        self.environment = {**kept, **settings}
        self.started: list[ForkedProcess] = []
        (folder / "shop.py").write_text(SHOP)

    @property
    def log(self) -> str:
        """Everything that its processes have printed."""
        return (self.folder / "log").read_text()

    def run(self, *options: str) -> ForkedProcess:
        """Type `outboxkit run shop`."""
        command = [sys.executable, "-m", "outboxkit", "run", "shop", *options]
        with (self.folder / "log").open("ab") as output:
            process = start(command, environment=self.environment, output=output, folder=self.folder)
        self.started.append(process)
        return process

    def run_until(self, line: str, *options: str) -> ForkedProcess:
        """Type it, and wait until it has printed this."""
        before = self.log.count(line) if (self.folder / "log").exists() else 0
        process = self.run(*options)
        eventually(lambda: self.log.count(line) > before or process.poll() is not None)
        assert process.poll() is None, self.log
        return process

    def order(self, number: int) -> None:
        """Confirm an order, in another process."""
        ended = run_to_end([sys.executable, "shop.py", str(number)], self.environment, folder=self.folder)
        assert ended.returncode == 0, ended.stderr

    def receipts(self) -> list[int]:
        """The numbers of the orders that have a receipt."""
        url = self.environment.get("OUTBOXKIT_DATABASE_URL", f"sqlite:///{self.folder / 'outboxkit.db'}")
        engine = create_engine(url)
        with engine.connect() as connection:
            found = connection.execute(text("SELECT number FROM receipts ORDER BY number")).scalars().all()
        engine.dispose()
        return list(found)

    def wait_for(self, *numbers: int) -> None:
        """Wait until just these orders have a receipt each."""
        eventually(self.receipts, lambda found: len(found) >= len(numbers))
        assert self.receipts() == list(numbers), self.log


def stop(process: ForkedProcess, signum: signal.Signals = signal.SIGTERM) -> int:
    process.send_signal(signum)
    return process.wait(60)


@contextmanager
def opened(folder: Path, **settings: str) -> Iterator[Shop]:
    made = Shop(folder, **settings)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A folder with nothing but `shop.py`, and no server."""
    with opened(tmp_path) as made:
        yield made


@pytest.fixture
def on_servers(empty_postgresql_url: str, broker: PlainClient, tmp_path: Path) -> Iterator[Shop]:
    """The same one, with an empty database and the broker."""
    names = {"BROKER_URL": broker.url, "EXCHANGE": broker.exchange, "QUEUE": broker.queue}
    settings = {f"OUTBOXKIT_{name}": value for name, value in ({"DATABASE_URL": empty_postgresql_url} | names).items()}
    with opened(tmp_path, **settings) as made:
        yield made


def test_from_an_empty_folder_each_order_has_one_receipt_though_the_process_is_killed(shop: Shop):
    first = shop.run_until("relay started")
    assert "the outboxkit tables were made" in shop.log
    shop.order(1)
    shop.wait_for(1)
    eventually(lambda: "inbox pruned" in shop.log)
    first.kill()
    first.wait()
    shop.order(2)
    second = shop.run_until("relay started")
    shop.wait_for(1, 2)
    assert shop.log.count("the outboxkit tables were made") == 1
    assert stop(second) == 0


def test_the_relay_waits_until_the_consumer_has_declared_its_queue(on_servers: Shop, broker: PlainClient):
    running = on_servers.run_until("consumer connected")
    assert stop(running) == 0
    broker.delete_queue()
    on_servers.order(1)
    on_servers.run()
    on_servers.wait_for(1)
    assert "unroutable" not in on_servers.log


def test_a_drain_counts_what_the_queue_had_before_it(on_servers: Shop, broker: PlainClient):
    assert on_servers.run("--drain").wait(60) == 0
    on_servers.order(1)
    broker.publish(b'{"number": 2}', message_id="earlier", type="OrderConfirmed", delivery_mode=2)
    assert on_servers.run("--drain").wait(60) == 0
    on_servers.wait_for(1, 2)
    assert on_servers.log.splitlines()[-1] == "processed 2"


def test_what_stops_one_part_stops_all_and_is_the_reason(on_servers: Shop, broker: PlainClient):
    broker.bind("Other", arguments={"x-queue-type": "classic"})
    process = on_servers.run()
    assert process.wait(60) == 2
    assert f"outboxkit: the broker has queue {broker.queue!r}" in on_servers.log.splitlines()[-1]
    assert "relay stopped" in on_servers.log


def test_a_changed_file_is_run_again(shop: Shop):
    running = shop.run_until("relay started", "--reload")
    shop.order(1)
    shop.wait_for(1)
    module = shop.folder / "shop.py"
    module.write_text(SHOP.replace("number=event.number", "number=event.number * 10"))
    eventually(lambda: shop.log.count("relay started") > 1)
    shop.order(2)
    shop.wait_for(1, 20)
    assert stop(running, signal.SIGINT) == 0
    assert shop.log.count("relay stopped") == shop.log.count("relay started")


def test_the_console_is_a_page_of_the_same_process(shop: Shop):
    """Its link lets one reader in; a stop ends it with the rest."""
    running = shop.run_until("The console is at", "--console")
    shop.order(1)
    shop.wait_for(1)
    (link,) = re.findall(r"The console is at (\S+)", shop.log)
    address = link.partition("/login")[0]
    with httpx.Client(follow_redirects=True) as browser:
        browser.get(link)
        assert "<h1" in (page := browser.get(f"{address}/").text), page
        assert "SendReceipt" in page
    assert httpx.get(f"{address}/").status_code in (302, 303, 401), "nobody else is let in"
    assert stop(running) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///file:shop?mode=memory&cache=shared&uri=true"])
def test_a_database_in_memory_is_refused(shop: Shop, url: str):
    command = [sys.executable, "-m", "outboxkit", "run", "shop", "--drain", "--database-url", url]
    ended = run_to_end(command, shop.environment, folder=shop.folder)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "is a database in memory" in ended.stderr
    assert "outboxkit migrate" not in ended.stderr
