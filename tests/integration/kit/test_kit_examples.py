"""The handlers of the examples, tried by the test kit on PostgreSQL."""

import sys
from collections.abc import Iterator
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outboxkit.testing import assert_effects_once, assert_order_does_not_matter
from tests.integration.kit.kit_world import mail
from tests.support.pages import ROOT


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of an example, by their names; they are forgotten after the test."""
    folder, package = request.param
    monkeypatch.syspath_prepend(str(ROOT / "examples" / folder))
    yield lambda name: import_module(f"{package}.{name}")
    for name in [each for each in sys.modules if each.partition(".")[0] == package]:
        del sys.modules[name]


@pytest.mark.parametrize("example", [("1_hello", "hello")], indirect=True)
def test_hello(example: Any, pg_engine: Engine):
    hello = import_module("hello")
    hello.Base.metadata.create_all(pg_engine)
    assert_effects_once(hello.send_receipt, hello.OrderConfirmed(7, Decimal("19.90")), engine=pg_engine)


@pytest.mark.parametrize("example", [("2_two_services", "billing")], indirect=True)
def test_two_services(example: Any, pg_engine: Engine):
    handlers, events, models = example("handlers"), example("events"), example("models")
    models.Base.metadata.create_all(pg_engine)
    assert_effects_once(handlers.issue_invoice, events.OrderPlaced(7, Decimal("19.90")), engine=pg_engine)


@pytest.mark.parametrize("example", [("4_read_model", "customers")], indirect=True)
def test_the_read_model(example: Any, pg_engine: Engine):
    handlers, events, models = example("handlers"), example("events"), example("models")
    models.Base.metadata.create_all(pg_engine)
    placed, cancelled = events.OrderPlaced("ann", Decimal(10)), events.OrderCancelled("ann", Decimal(10))
    assert_effects_once(handlers.count_placed, placed, engine=pg_engine, others=[events.OrderPlaced("ann", Decimal(3))])
    both = [handlers.count_placed, handlers.count_cancelled]
    assert_order_does_not_matter(both, [placed, cancelled, events.OrderPlaced("bob", Decimal(2))], engine=pg_engine)


@pytest.mark.parametrize("example", [("3_shop", "shop")], indirect=True)
def test_the_shop(example: Any, pg_engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("OUTBOXKIT_DATABASE_URL", pg_engine.url.render_as_string(hide_password=False))
    monkeypatch.setenv("SHOP_DATA", str(tmp_path))
    handlers, events, orders = example("handlers"), example("events"), example("orders")
    orders.Base.metadata.create_all(pg_engine)
    with Session(pg_engine) as session, session.begin():
        session.add(orders.Order(user="ann", customer="Ann", cents=1990, status="paying"))
    charged = events.CardCharged(1, Decimal("19.90"), "ch-1")
    assert_effects_once(handlers.mark_paid, charged, engine=pg_engine)
    with mail() as port:
        monkeypatch.setenv("SMTP_URL", f"smtp://127.0.0.1:{port}")
        assert_effects_once(handlers.send_receipt, charged, engine=pg_engine)
