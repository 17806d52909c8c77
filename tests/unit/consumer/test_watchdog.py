"""A handler that blocks the event loop is named; nobody else is."""

import asyncio
import re
import time

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import Outcome, inbox_handler
from outboxkit.consumer import watchdog
from tests.support.polling import eventually_async
from tests.unit.consumer.conftest import Bench
from tests.unit.shop import OrderConfirmed, message


def lines(said: list[dict[str, object]]) -> list[str]:
    return [str(line["event"]) for line in said if "event loop" in str(line["event"])]


@pytest.mark.parametrize(("kind", "batch"), [("def", True), ("async def", False)])
async def test_a_handler_that_blocks_the_loop_is_named_once_with_the_cure(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: str, batch: bool
):
    monkeypatch.setattr(watchdog, "BLOCKED_SECONDS", 0.2)

    def block(session: Session, event: OrderConfirmed) -> None:
        deep(3)

    async def block_too(session: AsyncSession, event: OrderConfirmed) -> None:
        deep(3)

    function = block if kind == "def" else block_too
    in_loop = kind == "def"
    bench.put(message())
    with capture_logs() as said:
        consumer = await bench.run_until_settled(inbox_handler("Blocks", batch=batch, in_loop=in_loop)(function))
    assert consumer.outcomes == {Outcome.PROCESSED: 1}
    (line,) = [each for each in lines(said) if "'Blocks'" in each]
    assert re.match(r"the event loop was blocked for \d+ s by handler 'Blocks' \(line \d+ of ", line)
    assert "asyncio.to_thread" in line


async def test_what_is_no_handler_is_told_by_its_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watchdog, "BLOCKED_SECONDS", 0.1)
    watching = asyncio.create_task(watchdog.Watchdog([]).run())
    await asyncio.sleep(0.01)
    blame = f"by code outside the handlers ({__name__}, line "
    with capture_logs() as said:

        async def block() -> list[str]:
            deep(0.4)
            await asyncio.sleep(0.1)
            return lines(said)

        await eventually_async(block, lambda found: any(blame in line for line in found))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


def deep(seconds: float) -> None:
    time.sleep(seconds)
