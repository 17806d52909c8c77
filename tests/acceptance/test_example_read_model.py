"""The read model, run as its README says: the commands are read from there and typed into a shell."""

import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal

import pytest
from sqlalchemy import create_engine, text

from tests.acceptance.test_examples import EXAMPLES, counted, fenced, new_databases, run_script, with_exports
from tests.servers import Server
from tests.support.plain_client import PlainClient

QUEUES = ("customers", "customers-new")


@pytest.fixture
def databases(postgresql: Server) -> Iterator[list[str]]:
    """Three new databases without any table: orders, customers, and customers anew."""
    with new_databases(postgresql, "orders", "customers", "new") as urls:
        yield urls


@pytest.fixture
def own_names(broker: PlainClient) -> Iterator[dict[str, str]]:
    """A name of its own for each queue of the README, on a broker that others use too; deleted afterwards."""
    names = {queue: f"{broker.queue}-{queue}" for queue in QUEUES}
    yield names
    for name in names.values():
        for suffix in ("", ".dead"):
            broker.delete_queue(f"{name}{suffix}")


def test_the_model_that_was_built_anew_is_the_old_one(
    databases: list[str], broker: PlainClient, own_names: dict[str, str]
):
    orders, customers, new = databases
    page = EXAMPLES / "4_read_model" / "README.md"
    script = re.sub(
        r"(queue )(customers(?:-new)?)\b", lambda found: found[1] + own_names[found[2]], "".join(fenced(page, "sh"))
    )
    urls = {
        "ORDERS_DATABASE_URL": orders,
        "CUSTOMERS_DATABASE_URL": customers,
        "NEW_DATABASE_URL": new,
        "OUTBOXKIT_BROKER_URL": broker.url,
    }
    done = run_script(with_exports(script, urls), page.parent, OUTBOXKIT_EXCHANGE=broker.exchange)

    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if "the same" in line] == [
        "rebuilt: the same",
        "beside the old one: the same",
    ]
    (shown,) = fenced(page, "text")
    assert shown in done.stdout
    lines = Counter(done.stdout.splitlines())
    assert (lines["processed 24"], lines["republished 24 of 24"]) == (2, 2)
    assert (lines["processed 12"], lines["processed 36"]) == (1, 1)
    expected = asked(
        orders, "SELECT customer, count(*), sum(total) FROM orders WHERE status = 'placed' GROUP BY customer"
    )
    assert sum(count for _, count, _ in expected) == 24
    assert expected == asked(customers, "SELECT name, orders, total FROM customers")
    assert expected == asked(new, "SELECT name, orders, total FROM customers")
    assert counted(orders) == [0, 36, 0, 0]
    assert counted(customers) == counted(new) == [0, 0, 36, 0]


def asked(url: str, query: str) -> list[tuple[str, int, Decimal]]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = sorted(tuple(row) for row in connection.execute(text(query)))
    engine.dispose()
    return found
