"""Operating in Chromium: a dry run, a replay and its effects, a pause; and ways in that are closed."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, expect
from sqlalchemy import Engine, func, insert, select

from outboxkit.console import TokenAccess, console
from outboxkit.tables import audit, dead_letter, handler, outbox, pause
from tests.integration.console.served import served
from tests.integration.console.test_browser import MESSAGE, TOKEN, chromium, watched

__all__ = ["chromium"]
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def operator(chromium: Browser, pg_engine: Engine, postgresql_url: str) -> AsyncIterator[BrowserContext]:
    with pg_engine.begin() as connection:
        letter = MESSAGE | {"side": "outbox", "reason": "rejected", "attempts": 1}
        rows = [letter | {"message_id": f"m{number}", "position": number} for number in range(1, 101)]
        connection.execute(insert(dead_letter), rows)
        connection.execute(insert(handler).values(handler="SendReceipt", queue="billing"))
    access = TokenAccess(TOKEN, user="ann", may=("read", "operate"))
    async with served(console(postgresql_url, access=access)) as url:
        context = await chromium.new_context(base_url=url)
        page = await context.new_page()
        await page.goto("/")
        await page.get_by_label("Token").fill(TOKEN)
        await page.get_by_role("button", name="Log in").click()
        await page.wait_for_url(f"{url}/")
        await page.close()
        yield context
        await context.close()


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


async def test_paths_and_headers_lead_nowhere_else(operator: BrowserContext):
    page = await operator.new_page()
    await page.goto("/")
    base = page.url.rstrip("/")
    for path in ("/static/../__init__.py", "/static/%2e%2e/access.py", "/static/..%2faccess.py", "/static//etc/passwd"):
        answer = await page.request.get(base + path)
        assert answer.status == 404, path
        assert "import" not in await answer.text()
    for path in (
        "/search?q=x%0d%0aSet-Cookie:%20a=b",
        "/message?id=x%0d%0aX-Evil:%201",
        "/messages?after=%0d%0aX-Evil:1",
    ):
        answer = await page.request.get(base + path)
        assert "x-evil" not in answer.headers
        assert "a=b" not in answer.headers.get("set-cookie", "")
    with_host = await page.request.get(base, headers={"Host": "evil.example"})
    assert with_host.status == 400
