"""Events of older versions and of earlier names, handled in process."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outboxkit import event, inbox_handler, upcast
from outboxkit.brokers import CONFIRMED, Verdict
from tests.unit.consumer.test_direct import direct, published, what
from tests.unit.shop import effects, message


@event("StockCounted", version=2, aliases=("StockTaken",))
@dataclass
class StockCounted:
    amount: int


@upcast("StockCounted", 1)
def count_in_pieces(document: dict[str, Any]) -> dict[str, Any]:
    return {"amount": document["dozens"] * 12}


@inbox_handler("Counter")
def note_amount(session: Session, event: StockCounted) -> None:
    session.execute(insert(effects).values(what=f"amount {event.amount}"))


async def test_events_of_older_versions_and_names_are_handled(async_engine: AsyncEngine, database_url: str):
    publisher = direct(async_engine, note_amount)
    old = message(id="1", type="StockTaken", payload=b'{"dozens":2}')
    new = message(id="2", type="StockCounted", payload=b'{"amount":7}', version=2)
    assert list(await published(publisher, [old, new])) == [CONFIRMED, CONFIRMED]
    assert what(database_url) == ["amount 24", "amount 7"]


async def test_a_newer_version_is_tried_again(async_engine: AsyncEngine):
    publisher = direct(async_engine, note_amount)
    (receipt,) = await published(publisher, [message(type="StockCounted", payload=b"{}", version=3)])
    assert (receipt.verdict, receipt.final) == (Verdict.REJECTED, False)
    assert receipt.reason is not None
    assert "Counter: NewerVersion: it has version 3 of 'StockCounted'" in receipt.reason
