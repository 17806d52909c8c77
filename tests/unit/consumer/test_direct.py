"""Messages that are handled in process: what is committed, and the receipt for whatever a handler does."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, insert, select, text
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import Message, Reject, Retries, Retry, inbox_handler, tables
from outboxkit.brokers import CONFIRMED, LONGEST_WAIT, Receipt, Verdict
from outboxkit.consumer.direct import DirectPublisher
from outboxkit.inbox import handler_of
from outboxkit.message import changed, current_handling
from outboxkit.runtime import process
from tests.unit.consumer.conftest import Bench
from tests.unit.inbox.test_versions import SEEN, Packed, pack
from tests.unit.shop import NOW, OrderConfirmed, StockChanged, effects, message


@inbox_handler("Sync")
def work(session: Session, event: OrderConfirmed) -> None:
    session.execute(insert(effects).values(what=f"order {event.order_id}"))


@inbox_handler("Async")
async def async_work(session: AsyncSession, event: OrderConfirmed, sent: Message) -> None:
    await session.execute(insert(effects).values(what=f"{sent.id} {dict(sent.headers)}"))


def raising(error: BaseException | type[BaseException], name: str = "Raises", **more: Any) -> Callable[..., Any]:
    @inbox_handler(name, **more)
    def raises(session: Session, event: OrderConfirmed) -> None:
        work(session, event)
        raise error

    return raises


def direct(bench: Bench, *functions: Callable[..., Any], **more: Any) -> DirectPublisher:
    return DirectPublisher(bench.engine, [handler_of(each) for each in functions], **{"clock": lambda: NOW, **more})


async def publish(bench: Bench, *functions: Callable[..., Any], **more: Any) -> Receipt:
    """The receipt for one message."""
    (receipt,) = await published(direct(bench, *functions), [message(**more)])
    return receipt


async def published(publisher: DirectPublisher, batch: Sequence[Message]) -> Sequence[Receipt]:
    """The receipts for a batch; no connection is left open."""
    try:
        return await publisher.publish(batch)
    finally:
        await publisher.close()


def handled(bench: Bench) -> list[tuple[object, object]]:
    return [(row["handler"], row["message_id"]) for row in bench.rows(tables.inbox)]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"version": 0}, "version is 0"), ({"key": "é" * 250}, "key is 500 bytes"), ({"topic": "\0"}, "NUL")],
)
async def test_a_row_that_outboxkit_would_not_write_is_rejected_and_others_are_handled(
    bench: Bench, fields: dict[str, Any], reason: str
):
    foreign, fine = changed(message(), id="foreign", **fields), message()
    refused, handled = await published(direct(bench, work), [foreign, fine])
    assert refused.verdict is Verdict.REJECTED
    assert reason in str(refused.reason)
    assert handled == CONFIRMED


async def test_every_handler_of_its_type_runs_once(bench: Bench):
    @inbox_handler("Other")
    def other(session: Session, event: StockChanged) -> None:
        raise AssertionError

    publisher = direct(bench, work, other, async_work)
    batch = [message(headers={"tenant": "acme"}), message(headers={"tenant": "acme"})]
    assert await published(publisher, batch) == [CONFIRMED, CONFIRMED]
    assert await published(publisher, batch[:1]) == [CONFIRMED]
    assert bench.done() == ["order 7", "m-1 {'tenant': 'acme'}"]
    assert sorted(handled(bench)) == [("Async", "m-1"), ("Sync", "m-1")]
    assert current_handling() is None


async def test_what_a_handler_did_before_it_failed_is_undone(bench: Bench):
    with capture_logs() as logged:
        receipt = await publish(bench, raising(ZeroDivisionError("no")), async_work)
    assert receipt == Receipt(Verdict.REJECTED, "Raises: ZeroDivisionError: no")
    assert bench.done() == ["m-1 {}"]
    assert handled(bench) == [("Async", "m-1")]
    (line,) = logged
    assert (line["event"], line["log_level"], line["handler"]) == ("handler failed", "warning", "Raises")
    assert (line["message_id"], line["type"]) == ("m-1", "OrderConfirmed")
    assert "raise error" in line["exception"]


@pytest.mark.parametrize(
    ("error", "options", "receipt"),
    [
        (Reject("too late"), {}, Receipt(Verdict.REJECTED, "Raises: Reject: too late", final=True)),
        (Retry("closed"), {}, Receipt(Verdict.REJECTED, "Raises: Retry: closed")),
        (Retry("closed", after=90), {}, Receipt(Verdict.REJECTED, "Raises: Retry: closed", timedelta(seconds=90))),
        (Retry("closed", after=10**30), {}, Receipt(Verdict.REJECTED, "Raises: Retry: closed", LONGEST_WAIT)),
        (KeyError("a"), {"retry": Retries(never=(LookupError,))}, Receipt(Verdict.REJECTED, "", final=True)),
        (ValueError("a"), {"retry": Retries(never=(LookupError,))}, Receipt(Verdict.REJECTED, "")),
        (ValueError("a"), {"retry": Retries(max_attempts=1)}, Receipt(Verdict.REJECTED, "", final=True)),
        (asyncio.CancelledError, {}, Receipt(Verdict.REJECTED, "Raises: CancelledError")),
    ],
    ids=str,
)
async def test_the_receipt_says_what_the_handler_raised(
    bench: Bench, error: BaseException, options: dict[str, Any], receipt: Receipt
):
    found = await publish(bench, raising(error, **options))
    assert (found.verdict, found.after, found.final) == (receipt.verdict, receipt.after, receipt.final)
    assert str(found.reason).startswith(str(receipt.reason))
    assert (bench.done(), handled(bench)) == ([], [])
    assert await publish(bench, work) is CONFIRMED


@pytest.mark.parametrize("colour", ["def", "async def"])
async def test_a_handler_that_cancels_its_task_has_failed(bench: Bench, colour: str):
    @inbox_handler("Cancels")
    def cancels(session: Session, event: OrderConfirmed) -> None:
        asyncio.current_task().cancel()
        work(session, event)

    @inbox_handler("Cancels")
    async def cancels_and_waits(session: AsyncSession, event: OrderConfirmed) -> None:
        asyncio.current_task().cancel()
        await asyncio.sleep(10)

    receipt = await publish(bench, cancels if colour == "def" else cancels_and_waits)
    assert (receipt.verdict, receipt.final) == (Verdict.REJECTED, False)
    assert bench.done() == []
    assert await publish(bench, work) is CONFIRMED


async def test_a_cancelled_publish_ends_and_nothing_is_committed(bench: Bench):
    begun = asyncio.Event()

    @inbox_handler("Waits")
    async def waits(session: AsyncSession, event: OrderConfirmed) -> None:
        await session.execute(insert(effects).values(what="waits"))
        begun.set()
        await asyncio.sleep(60)

    publishing = asyncio.create_task(publish(bench, waits, work))
    await begun.wait()
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    assert (bench.done(), handled(bench)) == ([], [])
    assert await publish(bench, work) is CONFIRMED


async def test_a_payload_that_is_not_the_event_is_dead_at_once(bench: Bench):
    receipt = await publish(bench, work, payload=b'{"order_id": "many"}')
    assert (receipt.verdict, receipt.final) == (Verdict.REJECTED, True)
    assert "Sync: DecodeError: the payload is " in str(receipt.reason)


async def test_a_type_that_no_handler_takes_is_unroutable(bench: Bench):
    receipt = await publish(bench, work, type="ParcelSent")
    assert receipt == Receipt(Verdict.UNROUTABLE, "no handler here takes 'ParcelSent'")


async def test_a_replayed_message_is_for_the_handlers_that_are_named_on_it(bench: Bench):
    headers = {"outboxkit-handlers": ["Async"], "outboxkit-attempt": 3, "tenant": "acme"}
    assert await publish(bench, work, async_work, headers=headers, queue="billing") is CONFIRMED
    assert bench.done() == ["m-1 {'tenant': 'acme'}"]
    receipt = await publish(bench, work, async_work, headers={"outboxkit-handlers": ["Sync", "Gone"]})
    assert receipt == Receipt(Verdict.UNROUTABLE, "no handler here takes 'OrderConfirmed' and is named Gone")
    assert handled(bench) == [("Async", "m-1")]


async def test_a_message_that_may_have_been_handled_and_forgotten_is_refused(bench: Bench):
    old = message(created_at=NOW - timedelta(days=2))
    strict = direct(bench, work, retention=timedelta(days=2))
    (receipt,) = await published(strict, [old])
    assert (receipt.verdict, receipt.final) == (Verdict.REJECTED, True)
    assert "(2 days)" in str(receipt.reason)
    later = datetime(2099, 1, 1, tzinfo=UTC)  # what is accepted is remembered from then on
    accepted = message(created_at=old.created_at, headers={"outboxkit-accepted-at": int(later.timestamp() * 1000)})
    assert await published(strict, [accepted]) == [CONFIRMED]
    assert bench.done() == ["order 7"]
    assert [row["processed_at"] for row in bench.rows(tables.inbox)] == [later]


async def test_what_a_handler_left_running_cannot_use_its_session(bench: Bench):
    left = []

    @inbox_handler("Leaves")
    async def leaves(session: AsyncSession, event: OrderConfirmed) -> None:
        async def later() -> None:
            await asyncio.sleep(0)
            await committed.wait()
            await session.execute(select(effects))

        committed = asyncio.Event()
        left.append((committed, asyncio.create_task(later())))

    assert await publish(bench, leaves) is CONFIRMED
    ((committed, task),) = left
    committed.set()
    with pytest.raises(InvalidRequestError, match="closed"):
        await task
    assert bench.engine.pool.checkedout() == 0


async def test_the_handlers_of_a_message_share_its_time_and_no_other_is_begun_after_that(bench: Bench):
    @inbox_handler("Slow", timeout=60)
    async def slow(session: AsyncSession, event: OrderConfirmed) -> None:
        await asyncio.sleep(60)

    @inbox_handler("Blocks", in_loop=True)
    def blocks(session: Session, event: OrderConfirmed) -> None:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            pass

    publisher = direct(bench, slow, blocks, timeout=timedelta(seconds=0.4))
    receipts = await published(publisher, [message(), message(id="m-2"), message(id="m-3", key="one")])
    assert [receipt.verdict for receipt in receipts] == [Verdict.REJECTED, Verdict.NOT_SENT, Verdict.NOT_SENT]
    assert "took longer than 0.2 s" in str(receipts[0].reason)
    assert [receipt.reason for receipt in receipts[1:]] == ["there was no time left for it"] * 2
    assert handled(bench) == [("Blocks", "m-1")]


async def test_a_message_whose_handler_loses_another_database_fails_in_the_end(bench: Bench, tmp_path: Path):
    other = create_engine(f"sqlite:///{tmp_path}/gone/other.db")

    @inbox_handler("Elsewhere")
    def elsewhere(session: Session, event: OrderConfirmed) -> None:
        other.connect()

    publisher = direct(bench, elsewhere)
    verdicts = [[each.verdict for each in await published(publisher, [message()])] for _ in range(6)]
    assert verdicts == [[Verdict.UNKNOWN]] * 4 + [[Verdict.REJECTED]] * 2


async def test_a_disk_that_is_full_is_nobodys_fault_however_often(bench: Bench):
    @inbox_handler("Fills")
    def fills(session: Session, event: OrderConfirmed) -> None:
        session.execute(text("PRAGMA max_page_count = 1"))  # no more than it has
        session.execute(text("CREATE TABLE filling AS SELECT randomblob(1000000) AS blob"))

    publisher = direct(bench, fills)
    receipts = [(await published(publisher, [message()]))[0] for _ in range(6)]
    assert {receipt.verdict for receipt in receipts} == {Verdict.UNKNOWN}
    assert "disk is full" in str(receipts[0].reason)


async def test_a_database_that_is_away_is_nobodys_fault(bench: Bench, tmp_path: Path):
    bench.engine = process.engine(f"sqlite:///{tmp_path}/gone/shop.db", name="test")
    receipts = await published(direct(bench, work, async_work), [message(), message(id="m-2")])
    assert [receipt.verdict for receipt in receipts] == [Verdict.UNKNOWN, Verdict.NOT_SENT]
    assert "unable to open" in str(receipts[0].reason)
    await bench.engine.dispose()


async def test_tables_that_are_missing_are_no_failure_of_a_message(bench: Bench):
    async with bench.engine.begin() as connection:
        await connection.execute(text("ALTER TABLE outboxkit_inbox RENAME TO elsewhere"))
    receipt = await publish(bench, work)
    assert receipt.verdict is Verdict.UNKNOWN
    assert "outboxkit_inbox" in str(receipt.reason)


async def test_events_of_older_versions_and_names_are_handled(bench: Bench):
    SEEN.clear()
    old = message(id="1", type="Wrapped", payload=b'{"number":2}')
    new = message(id="2", type="Packed", payload=b'{"parcel":7}', version=2)
    assert list(await published(direct(bench, pack), [old, new])) == [CONFIRMED, CONFIRMED]
    assert [Packed(2), Packed(7)] == SEEN


async def test_a_newer_version_is_tried_again(bench: Bench):
    receipt = await publish(bench, pack, type="Packed", payload=b"{}", version=3)
    assert (receipt.verdict, receipt.final) == (Verdict.REJECTED, False)
    assert "Pack: NewerVersion: it has version 3 of 'Packed'" in str(receipt.reason)
