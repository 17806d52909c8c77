"""Dead letters in the console: found, and chosen for a dry run."""

import html
import json
import re
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, delete, update

from outboxkit.console import dead
from outboxkit.tables import dead_letter
from tests.integration.operators.dead_rows import buried, fill, waiting
from tests.integration.operators.dead_rows import dead as parking
from tests.unit.console.conftest import Browser

NOW = datetime.now(UTC)


def letter(message_id: str, **more: Any) -> dict[str, Any]:
    return buried(message_id, **{"handler": "Bill", "error": None, "dead_at": NOW, "created_at": NOW} | more)


@pytest.fixture
def letters(engine: Engine) -> Engine:
    """120 dead letters of one type, and two of others."""
    rows = [letter(f"m{number}") for number in range(120)]
    fill(engine, [*rows, letter("a", type="A", key="k's"), letter("b", type="B", reason="crash")])
    return engine


async def test_a_list_is_paged_and_filtered(browser: Browser, letters: Engine):
    async with browser() as client:
        path, count = "/dead", 0
        while path:
            page = (await client.get(path)).text
            count += page.count('class="id"')
            path = page.partition('rel="next" href="')[2].partition('"')[0]
        assert count == 122
        assert (await client.get("/dead?type=A")).text.count('class="id"') == 1
        assert (await client.get("/dead?reason=crash&side=inbox")).text.count('class="id"') == 1
        assert "<option selected>crash</option>" in (await client.get("/dead?reason=crash&side=inbox")).text
        assert "No dead letter matches" in (await client.get("/dead?older=1d")).text
        assert (await client.get("/dead?after=x")).status_code == 400


async def test_a_message_leads_to_the_dry_run_of_its_dead_letters(browser: Browser, letters: Engine):
    fill(letters, [letter("m7", handler="Ship")])
    async with browser() as client:
        page = (await client.get("/message?id=m7")).text
        link = html.unescape(page.partition(">Replay all 2<")[0].rpartition('href="')[2].rstrip('"'))
        assert "Dry run: replay 2 dead letters" in (await client.get(link)).text
        assert ">Discard it<" in (await client.get("/message?id=m8")).text


async def test_a_traceback_is_shown_to_those_who_may_see_what_is_in_messages(browser: Browser, letters: Engine):
    fill(letters, [letter("m7", handler="Ship", traceback="Traceback:\n  <b>KeyError</b>")])
    async with browser(may=("read", "payload")) as client:
        page = (await client.get("/message?id=m7")).text
        assert "The traceback of Ship" in page
        assert "&lt;b&gt;KeyError&lt;/b&gt;" in page
    async with browser() as client:
        assert "KeyError" not in (await client.get("/message?id=m7")).text


async def test_what_is_chosen_goes_into_a_dry_run(browser: Browser, letters: Engine):
    async with browser() as client:
        page = (await client.get("/dead?type=OrderConfirmed")).text
        all_ = page.partition('href="/dead/plan?action=replay&amp;')[2].partition('"')[0].replace("&amp;", "&")
        assert "120" in (await client.get(f"/dead/plan?action=replay&{all_}")).text
        assert '<form action="/dead/plan">' in page
        assert "Dry run: discard 2 dead letters" in (await client.get("/dead/plan?action=discard&id=1&id=2")).text


async def test_resolved_ones_are_shown_with_who_resolved_them(browser: Browser, letters: Engine):
    with letters.begin() as connection:
        connection.execute(
            update(dead_letter).where(dead_letter.c.id == 7).values(resolution="discarded", resolved_by="bob")
        )
    async with browser() as client:
        assert "bob" not in (await client.get("/dead?newer=1d")).text
        place = json.dumps([NOW.isoformat(), 50])
        page = (await client.get("/dead", params={"after": place, "resolved": "yes"})).text
        assert "bob" in page
        assert 'name="id" value="7"' not in page
        overview = (await client.get("/")).text
        assert ' href="/dead?resolved=only">1</a>' in overview
        alone = (await client.get("/dead?resolved=only&newer=1d")).text
        assert (alone.count("<tr><td>"), "bob" in alone) == (1, True)
        assert "Replay the chosen ones" not in alone
        assert (await client.get("/dead?resolved=all")).status_code == 400


async def test_without_a_resolved_one_the_open_ones_are_not_denied(browser: Browser, letters: Engine):
    async with browser() as client:
        page = (await client.get("/dead?resolved=only")).text
    assert "No dead letter matches." in page


async def test_the_numbers_of_a_dry_run_lead_to_their_rows(browser: Browser, letters: Engine):
    fill(letters, [letter("blank", type=" A"), letter("empty", type="")])  # no filter finds the empty one
    async with browser() as client:
        for query in ("all=yes&newer=1d", "id=1&id=2&id=3"):
            page = (await client.get(f"/dead/plan?action=discard&{query}")).text
            links = re.findall(r'class="number" href="([^"]+)">(\d+)<', page)
            assert links
            for link, number in links:
                shown, place = 0, link
                while place:
                    rows = (await client.get(html.unescape(place))).text
                    shown += rows.count('name="id"')
                    place = rows.partition('rel="next" href="')[2].partition('"')[0]
                assert shown == int(number)


async def test_the_numbers_of_a_key_with_blanks_lead_to_its_own_rows(browser: Browser, engine: Engine):
    for count, key in enumerate(("order-1", " order-1", "order-1 ", ""), 1):
        places = range(10 * count, 10 * count + count)
        fill(engine, [parking(each, key=key) for each in places], [waiting(each + 100, key) for each in places])
    async with browser() as client:
        page = (await client.get("/keys")).text
        links = re.findall(r'class="number" href="([^"]+)">(\d)', page)
        assert len(links) == 6, "no filter finds an empty key"
        for link, number in links:
            rows = (await client.get(html.unescape(link))).text
            assert (link, rows.count('class="id"')) == (link, int(number))
        typed = "/search?q=++order-1+"
        for link in (*re.findall(r'href="(/search[^"]+)"', page), typed):
            assert "Messages with the key" in (await client.get(html.unescape(link))).text


async def test_a_page_reads_a_window_says_so_and_leads_on(
    browser: Browser, letters: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dead, "WINDOW", 70)
    async with browser(may=("read", "payload")) as client:
        page, pages = (await client.get("/dead?reason=failed&side=inbox&error=no")).text, 1
        assert "None of these dead letters matches" in page
        while link := page.partition('rel="next" href="')[2].partition('"')[0]:
            assert "The newest 70 were read" in page
            page, pages = (await client.get(html.unescape(link))).text, pages + 1
        assert pages == 2
        assert "No dead letter matches" in page
        groups = (await client.get("/dead?group=type")).text
        assert "The newest 70 were read" in groups
        assert ">68</a>" in groups
        assert "Count on" in groups
        assert 'class="id"' in (await client.get("/dead?id=3")).text
        assert "Replay all that match" not in (await client.get("/dead?id=3")).text


@pytest.mark.parametrize("action", ["replay", "discard"])
@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("", "Nothing was chosen"),
        ("&type=OrderConfirmed", "Nothing was chosen"),
        ("&all=no", "Nothing was chosen"),
        ("&all=yes&id=1", "take one of both"),
        ("&id=abc", "no number"),
        ("&id=1.5", "no number"),
        ("&id=1&id=99999999999999999999", "no number"),
        ("&id=" + "9" * 5000, "no number"),
        ("&all=yes&same_error=x", "This link to a group"),
    ],
)
async def test_a_choice_of_nothing_never_is_all(browser: Browser, letters: Engine, action: str, query: str, says: str):
    async with browser() as client:
        answer = await client.get(f"/dead/plan?action={action}{query}")
        assert answer.status_code == 400
        assert says in answer.text
        assert "Dry run" not in answer.text


async def test_a_choice_keeps_the_filters_of_its_list(browser: Browser, letters: Engine):
    async with browser() as client:
        form = (await client.get("/dead?type=A&newer=1d")).text.partition('<form action="/dead/plan">')[2]
        kept = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form))
        assert kept == {"type": "A", "newer": "1d"}
        dry = (await client.get("/dead/plan", params={"action": "discard", **kept, "id": ["1", "121"]})).text
        assert "Dry run: discard 1 dead letter" in dry
        assert "outboxkit dead discard 1 121\n" in html.unescape(dry).replace("</pre>", "\n")


@pytest.mark.parametrize("group", ["error", "key", "type"])
async def test_each_count_of_a_group_leads_to_its_rows(browser: Browser, letters: Engine, group: str):
    values = [None, "", "", " x ", "x", "x", "x", "xy", "é" * 100, *["long " * 40 + end for end in "abcde"]]
    if group != "error":
        values = values[:-5]
    with letters.begin() as connection:
        connection.execute(delete(dead_letter).where(dead_letter.c.id > 1))
        connection.execute(update(dead_letter).values({group: None}))
    fill(letters, [letter(f"v{number}", **{group: value}) for number, value in enumerate(values)])
    async with browser() as client:
        page = (await client.get(f"/dead?group={group}")).text
        links = re.findall(r'class="number" href="([^"]*)">(\d+)</a>', page)
        sizes = Counter(None if value is None else value[:200] for value in [None, *values])
        assert sorted(int(count) for _, count in links) == sorted(sizes.values())
        for link, count in links:
            rows = (await client.get(html.unescape(link))).text
            assert rows.count('class="id"') == int(count), link
            dry = rows.rpartition('href="/dead/plan?action=discard')[2].partition('"')[0]
            plan = (await client.get(f"/dead/plan?action=discard{html.unescape(dry)}")).text
            assert re.search(rf"discard {count} dead letters?</h1>", plan)
        assert "empty" in page
        assert "No dead letter matches" in (await client.get(f"/dead?same_{group}=9999")).text
