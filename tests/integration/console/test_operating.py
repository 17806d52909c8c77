"""Operating in Chromium: a dry run, a replay and its effects, and a pause; and what is refused there."""

from collections.abc import AsyncIterator
from http import HTTPStatus

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, expect
from sqlalchemy import Engine, func, insert, select

from outboxkit.tables import audit, handler, outbox, pause
from tests.integration.console.test_browser import chromium, log_in, logged_in, watched
from tests.integration.operators.dead_rows import dead, fill

__all__ = ["chromium"]
SEND = """async ([path, csrf]) => {
  const form = new URLSearchParams({kind: "consumer", name: "billing", why: "w", ...(csrf && {csrf})});
  return (await fetch(path, {method: "POST", body: form})).status;
}"""
"""A script of the page itself sends a form, and tells the status of the answer."""
ELSEWHERE = """<form method="post" action="{url}/workers/pause"><input name="kind" value="consumer">
<input name="name" value="billing"><input name="why" value="w"><input name="csrf" value="{csrf}">
<button>Win a prize</button></form>"""
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


def paused(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(select(pause.c.name)).scalars())


async def test_who_may_only_read_has_no_button_and_is_refused_at_the_address(
    chromium: Browser, pg_engine: Engine, postgresql_url: str
):
    fill(pg_engine, [dead(1)])
    async with logged_in(chromium, postgresql_url) as context:
        page = await context.new_page()
        for path in ("/workers", "/dead/plan?action=replay&all=yes", "/replay?to_queue=billing"):
            await page.goto(path)
            assert await page.locator("main form[method=post]").count() == 0
        own = await page.locator("input[name=csrf]").first.input_value()
        for path in ("/workers/pause", "/workers/resume", "/dead/plan", "/replay", "/operation/stop"):
            assert await page.evaluate(SEND, [path, own]) == HTTPStatus.FORBIDDEN
    assert paused(pg_engine) == []


async def test_a_form_without_the_pages_own_mark_or_of_another_site_does_nothing(
    operator: BrowserContext, pg_engine: Engine
):
    page = await operator.new_page()
    await page.goto("/workers")
    url, own = page.url.removesuffix("/workers"), await page.locator("input[name=csrf]").first.input_value()
    for csrf in ("", "x", own[:-1]):
        assert await page.evaluate(SEND, ["/workers/pause", csrf]) == HTTPStatus.FORBIDDEN
    other = await operator.new_page()
    await other.route("http://shop.example/", lambda route: route.fulfill(
        content_type="text/html", body=ELSEWHERE.format(url=url, csrf=own)
    ))  # fmt: skip
    await other.goto("http://shop.example/")
    async with other.expect_response("**/workers/pause") as answer:
        await other.get_by_role("button").click()
    assert (await answer.value).status == HTTPStatus.FORBIDDEN
    assert paused(pg_engine) == []
    assert await page.evaluate(SEND, ["/workers/pause", own]) == HTTPStatus.OK
    assert paused(pg_engine) == ["billing"], "the same form of the page itself is taken"


async def test_a_session_that_somebody_has_planted_is_replaced_at_the_login(chromium: Browser, postgresql_url: str):
    async with logged_in(chromium, postgresql_url) as context:
        (own,) = await context.cookies()
        await context.clear_cookies()
        await context.add_cookies([own | {"value": "planted"}])
        page = await context.new_page()
        await log_in(page)
        (new,) = await context.cookies()
        assert (new["name"], new["httpOnly"], new["sameSite"]) == (own["name"], True, "Lax")
        assert new["value"] != "planted"
