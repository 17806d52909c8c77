"""A consumer that meets a duplicate asks by one query which of the deliveries that wait are duplicates, too."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outboxkit import inbox, inbox_handler
from outboxkit.consumer import handle
from outboxkit.inbox import run_once
from tests.integration.consumer.running_consumer import Ordered, Start, processed, publish
from tests.support.plain_client import PlainClient

MANY = 60


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the messages for which a transaction looked into the inbox."""
    ids = list[str]()

    def counted(session: Any, message: Any, *arguments: Any, **more: Any) -> inbox.Outcome:
        ids.append(message.id)
        return run_once(session, message, *arguments, **more)

    monkeypatch.setattr(inbox, "run_once", counted)
    return ids


def handler(name: str) -> Callable[..., Any]:
    @inbox_handler(name)
    async def handle(session: AsyncSession, event: Ordered) -> None: ...

    return handle


async def test_duplicates_that_wait_need_no_transactions_of_their_own(start: Start, transactions: list[str]):
    async with start(handler("Bill")) as consumer:
        await consumer.takes(range(MANY), processed=MANY)
    transactions.clear()
    async with start(handler("Bill")) as consumer:
        await consumer.takes(range(MANY + 1), duplicate=MANY, processed=1)
    assert f"m{MANY}" in transactions
    assert len(transactions) < MANY / 2


async def test_only_the_handlers_that_have_handled_a_message_are_spared(start: Start, pg_engine: Engine):
    async with start(handler("Bill")) as consumer:
        await consumer.takes(range(MANY), processed=MANY)
    async with start(handler("Bill"), handler("Ship")) as consumer:
        await consumer.takes(range(MANY), duplicate=MANY, processed=MANY)
    assert set(processed(pg_engine)) == {(name, f"m{number}") for name in ("Bill", "Ship") for number in range(MANY)}


async def test_another_payload_under_a_known_id_is_told_among_duplicates(
    start: Start, broker: PlainClient, caplog: pytest.LogCaptureFixture
):
    async with start(handler("BillOnce")) as consumer:
        await consumer.takes(range(MANY), processed=MANY)
        for number in range(MANY):
            publish(broker, number if number < MANY - 1 else 1000, f"m{number}")
        await consumer.reaches(processed=MANY, duplicate=MANY)
    (told,) = [record for record in caplog.records if "payload" in record.message]
    assert f"m{MANY - 1}" in told.getMessage()


async def test_a_query_for_duplicates_that_the_server_cancels_is_done_without(
    start: Start, monkeypatch: pytest.MonkeyPatch
):
    """As under a lock timeout of the role. Each delivery finds out by itself, and the consumer goes on."""
    cancelled = list[int]()

    def slow(session: Session, *_: Any) -> None:
        cancelled.append(1)
        session.execute(text("SET LOCAL statement_timeout = 1"))
        session.execute(text("SELECT pg_sleep(10)"))

    monkeypatch.setattr(handle, "recall", slow)
    async with start(handler("Bill")) as consumer:
        await consumer.takes(range(MANY), processed=MANY)
        await consumer.takes(range(MANY + 1), processed=MANY + 1, duplicate=MANY)
    assert cancelled
