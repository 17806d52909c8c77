"""Operating in Chromium: a dry run, a replay and its effects, and a pause."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, expect
from sqlalchemy import Engine, func, insert, select

from outboxkit.tables import audit, handler, outbox, pause
from tests.integration.console.test_browser import chromium, logged_in, watched
from tests.integration.operators.dead_rows import dead, fill

__all__ = ["chromium"]
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def operator(chromium: Browser, pg_engine: Engine, postgresql_url: str) -> AsyncIterator[BrowserContext]:
    fill(pg_engine, [dead(number) for number in range(1, 101)])
    with pg_engine.begin() as connection:
        connection.execute(insert(handler).values(handler="SendReceipt", queue="billing"))
    async with logged_in(chromium, postgresql_url, "operate") as context:
        yield context


async def test_an_operator_replays_a_hundred_dead_letters(operator: BrowserContext, pg_engine: Engine):
    page = await operator.new_page()
    troubles = watched(page)
    await page.goto("/dead")
    await page.get_by_role("link", name="Replay all").click()
    await expect(page.get_by_role("heading", name="Dry run: replay 100 dead letters")).to_be_visible()
    with pg_engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(outbox)).scalar_one() == 0
    await page.get_by_role("button", name="Replay 100 dead letters").click()
    await expect(page.get_by_text("100 of 100")).to_be_visible()
    await expect(page.get_by_role("button", name="Stop it here")).to_have_count(0)
    with pg_engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(outbox)).scalar_one() == 100
        (action,) = connection.execute(select(audit)).all()
        assert action.operator.startswith("ann ")
    await page.goto("/messages")
    assert await page.locator("tbody tr").count() == 50
    assert troubles == []


async def test_an_operator_pauses_a_queue(operator: BrowserContext, pg_engine: Engine):
    page = await operator.new_page()
    troubles = watched(page)
    await page.goto("/workers")
    section = page.get_by_role("region", name="Consumers of queue billing")
    await section.locator("summary").click()
    await section.get_by_label("Reason").fill("the bank <b>is moved</b>")
    await section.get_by_role("button", name="Pause the consumers").click()
    await expect(section.get_by_text("the bank <b>is moved</b>")).to_be_visible()
    with pg_engine.connect() as connection:
        assert connection.execute(select(pause.c.name)).scalar_one() == "billing"
    await section.get_by_role("button", name="Let them go on").click()
    await expect(section.get_by_text("paused")).to_have_count(0)
    assert troubles == []
