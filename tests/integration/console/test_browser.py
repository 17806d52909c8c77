"""The console in Chromium: what an operator sees and clicks, and what hostile messages cannot do there."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
import uvicorn
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect
from sqlalchemy import Engine, insert

from outboxkit import ids
from outboxkit.console import TokenAccess, console
from outboxkit.console.access import ConsoleRight
from outboxkit.operators import audit
from outboxkit.runtime.outage import utc_now
from outboxkit.tables import PARKED, dead_letter, outbox, published
from tests.servers import provide_chromium

TOKEN = "a token of twenty and more signs"
OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
OPTIONS += ("--disable-component-update", "--disable-sync")
HOSTILE = "<script>document.title='broken in'</script>\"'><img src=x onerror=\"document.title='broken in'\">"
MESSAGE = {"type": "OrderConfirmed", "payload": b"{}", "headers": b"{}", "content_type": "application/json"}
PAGES = (
    "/",
    "/dead",
    "/dead/plan?action=replay&all=yes",
    "/messages",
    "/messages?place=kept",
    "/keys",
    "/workers",
    "/replay?to_queue=billing",
    "/operations",
    "/requests",
    "/retention",
    "/audit",
    "/search?q=order-1",
    "/nothing",
)
WIDER = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).map(e => e.ariaLabel)"
"""The lists of a page that must be scrolled to the side."""
HEADER = "document.querySelector('header').offsetHeight"
CUT = """() => {
  const ink = document.createElement("canvas").getContext("2d"), cut = [];
  for (const field of document.querySelectorAll("select, input[placeholder]")) {
    const style = getComputedStyle(field), arrow = field.tagName === "SELECT" ? 20 : 0;
    const text = arrow ? [...field.options].map(each => each.text) : [field.placeholder];
    const room = field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - arrow;
    ink.font = style.font;
    cut.push(...text.filter(each => ink.measureText(each).width > room));
  }
  for (const cell of document.querySelectorAll("td.type")) {
    const words = document.createRange();
    words.selectNodeContents(cell);
    if (cell.innerText === "OrderConfirmed" && words.getClientRects().length > 1) cut.push("OrderConfirmed");
  }
  return cut;
}"""
"""The texts of fields that are wider than their field, and types that are broken within their word."""


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Browser]:
    """Chromium without a window, started once."""
    async with async_playwright() as playwright:
        program = await playwright.chromium.launch(executable_path=provide_chromium(), args=OPTIONS)
        yield program
        await program.close()


@pytest.fixture
def filled(pg_engine: Engine) -> Engine:
    """A database with messages of every state; the texts of one of each were written to break a page."""
    now = utc_now()
    foreign = dict.fromkeys(("message_id", "type", "key", "correlation_id", "causation_id", "queue"), HOSTILE[:250])
    foreign |= {"payload": f'{{"x": "{HOSTILE[:40]}"}}'.encode(), "headers": b'{"<img src=x>": "<script>1</script>"}'}
    tables: dict[Any, list[dict[str, Any]]] = {
        outbox: [
            *({"message_id": ids.new(), "key": f"order-{number % 9}", "created_at": now} for number in range(70)),
            {"message_id": "held", "key": "order-1", "held": True, "due_at": now, "attempts": 2, "last_error": HOSTILE},
            {"message_id": "parked", "key": "order-2", "held": True, "due_at": PARKED},
            foreign | {"dedup": True, "created_at": now},
        ],
        published: [{"message_id": ids.new(), "published_at": now, "position": 9, "created_at": now} | foreign],
        dead_letter: [
            {"side": "outbox", "key": "order-2", "reason": "rejected", "attempts": 1, "parked": True, "position": 1},
            {"side": "inbox", "reason": "failed", "error": HOSTILE, "handler": HOSTILE, "attempts": 1} | foreign,
        ],
    }
    with pg_engine.begin() as connection:
        for table, rows in tables.items():
            for row in rows:
                connection.execute(insert(table), MESSAGE | row)
        audit.record_action(connection, "pause", {"why": HOSTILE}, by=HOSTILE, result=HOSTILE)
    return pg_engine


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Serve an application on 127.0.0.1; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", ws="none"))
        running = asyncio.create_task(server._serve(sockets=[listening]))
        while not server.started:
            await asyncio.sleep(0.01)
            assert not running.done()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running


async def log_in(page: Page) -> None:
    """Log in, and come to the first page."""
    await page.goto("/")
    await page.get_by_label("Token").fill(TOKEN)
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()


@asynccontextmanager
async def logged_in(
    chromium: Browser, database_url: str, *may: ConsoleRight, **options: Any
) -> AsyncIterator[BrowserContext]:
    """A browser that has logged in, and has a console as its home."""
    access = TokenAccess(TOKEN, user="ann", may=("read", *may))
    async with served(console(database_url, access=access)) as url:
        context = await chromium.new_context(base_url=url, **options)
        page = await context.new_page()
        await log_in(page)
        await page.close()
        yield context
        await context.close()


@pytest_asyncio.fixture(loop_scope="module")
async def browser(chromium: Browser, filled: Engine, postgresql_url: str) -> AsyncIterator[BrowserContext]:
    here = {"timezone_id": "Asia/Tokyo", "locale": "en-GB"}
    async with logged_in(chromium, postgresql_url, "payload", "operate", **here) as context:
        yield context


def watched(page: Page) -> list[str]:
    """What goes wrong in a page: errors, what its policy has blocked, and requests to other hosts."""
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda each: troubles.append(each.text) if "Security Policy" in each.text else None)
    page.on("request", lambda each: None if "127.0.0.1" in each.url else troubles.append(each.url))
    page.on("dialog", lambda each: troubles.append(each.message))
    return troubles


async def test_an_operator_filters_opens_a_message_and_searches(browser: BrowserContext):
    page = await browser.new_page()
    troubles = watched(page)
    await page.goto("/")
    await page.get_by_role("link", name="Messages", exact=True).click()
    assert await page.locator("tbody tr").count() == 50
    await page.get_by_role("link", name="Next page").click()
    assert await page.locator("tbody tr").count() == 23
    await page.get_by_label("State").select_option("held")
    await page.get_by_role("button", name="Filter").click()
    await page.get_by_role("link", name="held").click()
    assert await page.get_by_text("attempt 2 failed").count() == 1
    await page.get_by_label("Id, key or correlation id").fill("order-2")
    await page.get_by_role("button", name="Find").click()
    assert await page.get_by_text("Messages with the key").count() == 1
    await page.get_by_role("button", name="Log out").click()
    assert await page.get_by_label("Token").count() == 1
    assert troubles == []


async def test_times_are_in_the_readers_zone_and_exact_on_hover(browser: BrowserContext):
    page = await browser.new_page()
    await page.goto("/messages")
    time = page.locator("tbody time").first
    exact = await time.get_attribute("title") or ""
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC", exact)
    shown = await time.inner_text()
    assert int(shown[12:14]) == (int(exact[11:13]) + 9) % 24
    assert "Asia/Tokyo" in await page.locator("footer").inner_text()


async def test_the_overview_refreshes_itself_and_keeps_what_is_open(browser: BrowserContext, filled: Engine):
    page = await browser.new_page()
    troubles = watched(page)
    await page.clock.install()
    await page.goto("/")
    await page.locator("summary").first.click()
    await page.evaluate("document.activeElement.blur()")
    await page.evaluate("document.querySelector('[data-state]').textContent = 'old'")
    async with page.expect_response(lambda answer: answer.request.headers.get("hx-request") == "true"):
        await page.clock.fast_forward(11_000)
    await expect(page.locator("[data-state]")).to_contain_text("as of")
    await expect(page.locator("details[open]")).to_have_count(1)
    assert troubles == []


async def test_hostile_messages_are_text(browser: BrowserContext):
    page = await browser.new_page()
    troubles = watched(page)
    for path in (*PAGES, f"/message?id={quote(HOSTILE[:250])}", f"/search?q={quote(HOSTILE[:250])}"):
        await page.goto(path)
        assert "outboxkit" in await page.title()
        assert await page.locator("main script, main img, main iframe, [onerror]").count() == 0
    assert [each for each in troubles if "404" not in each] == []


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.night)])
async def test_every_page_can_be_used_by_everybody(browser: BrowserContext, scheme: Any):
    """By axe-core; and no page is wider than its window, no list wider than its box, and the menu is one line."""
    page = await browser.new_page()
    await page.emulate_media(color_scheme=scheme)
    for path in (*PAGES, "/message?id=held"):
        for width in (360, 1280):
            await page.set_viewport_size({"width": width, "height": 800})
            await page.goto(path)
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
            assert await page.evaluate(WIDER) == [], path
            assert width == 360 or await page.evaluate(HEADER) < 60, path
        found = await Axe().run(page)
        assert len(found.response["passes"]) > 10
        assert found.violations_count == 0, f"{path}\n{found.generate_report()}"


async def test_large_numbers_have_room(browser: BrowserContext, filled: Engine):
    with filled.begin() as connection:
        row = MESSAGE | {"message_id": "m", "created_at": utc_now() - timedelta(hours=2, minutes=15)}
        rows = [row | {"destination": name} for name in ("default", "courier")]
        connection.execute(insert(outbox), rows * 10_001)
    page = await browser.new_page()
    await page.set_viewport_size({"width": 1280, "height": 800})
    await page.goto("/")
    large = page.get_by_role("link", name="more than 10 000")
    await expect(large.first).to_be_visible(
        timeout=30_000
    )  # with a refresh, if the figures of the log-in are shown yet
    assert await large.count() > 2
    assert await page.evaluate(WIDER) == []


@pytest.mark.night
@pytest.mark.parametrize("path", ["/dead", "/messages"])
async def test_no_text_is_cut_in_an_ordinary_window(browser: BrowserContext, path: str):
    page = await browser.new_page()
    await page.set_viewport_size({"width": 1280, "height": 800})
    await page.goto(path)
    assert await page.locator("td.type").count() > 0
    assert await page.evaluate(CUT) == []


async def test_the_first_page_is_small_and_works_without_scripts(browser: BrowserContext):
    page = await browser.new_page()
    sizes: list[int] = []

    async def measure(answer: Any) -> None:
        sizes.append(len(await answer.body()))

    page.on("response", measure)
    await page.goto("/", wait_until="networkidle")
    assert 20_000 < sum(sizes) < 150_000
    assert browser.browser is not None
    plain = await browser.browser.new_context(
        java_script_enabled=False, base_url=page.url, storage_state=await browser.storage_state()
    )
    without = await plain.new_page()
    await without.goto("/messages")
    assert await without.locator("tbody tr").count() == 50
    assert "UTC" in await without.locator("tbody time").first.inner_text()
    await plain.close()
