"""What the pages show of a database, and what they do not."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
import typer
from sqlalchemy import Engine, create_engine, insert
from starlette.applications import Starlette
from starlette.routing import Mount

from outboxkit import ids
from outboxkit.cli import app
from outboxkit.console import TokenAccess, console
from outboxkit.operators import audit
from outboxkit.tables import PARKED, dead_letter, idempotency, inbox, outbox, published
from tests.support.databases import SqliteCopies
from tests.unit.console.conftest import TOKEN, Browser, running

NOW = datetime.now(UTC)
ROW: dict[str, Any] = {"type": "OrderConfirmed", "payload": b"{}", "headers": b"{}", "content_type": "application/json"}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e\x1b"


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """The file that the console reads."""
    return sqlite_url


def add(engine: Engine, table: Any, *rows: dict[str, Any]) -> None:
    with engine.begin() as connection:
        connection.execute(insert(table), [ROW | {"message_id": ids.new(), "created_at": NOW} | row for row in rows])


async def test_an_empty_database_says_what_would_appear(browser: Browser):
    async with browser() as client:
        for path, text in {
            "/": "Nothing needs attention",
            "/messages": "No message waits.",
            "/messages?place=kept": "OUTBOXKIT_PUBLISHED_RETENTION",
            "/messages?type=x": "No message matches.",
            "/message?id=x": "No table that was read knows this message.",
            "/search?q=x": "No message with this id, key or correlation id",
            "/search": "Type the id of a message",
            "/keys": "No key waits.",
            "/audit": "No operator has done anything yet.",
        }.items():
            answer = await client.get(path)
            assert answer.status_code == 200
            assert text in answer.text


async def test_the_audit_page_names_commands_that_there_are(browser: Browser):
    async with browser() as client:
        named = re.findall(r"<code>(?:outboxkit )?([a-z]+)", (await client.get("/audit")).text)
    assert len(named) == 6
    assert set(named) <= set(typer.main.get_command(app).commands)


async def test_messages_are_paged_and_each_is_shown_once(browser: Browser, engine: Engine):
    add(engine, outbox, *({"message_id": f"m{number}"} for number in range(120)))
    kept = {"published_at": NOW}
    add(engine, published, *(kept | {"message_id": f"p{number}", "position": number} for number in range(60)))
    async with browser() as client:
        for first, count in (("/messages", 120), ("/messages?place=kept", 60)):
            seen, path = list[str](), first
            while path:
                page = (await client.get(path)).text
                seen += [part.partition('"')[0] for part in page.split('class="id" href="/message?id=')[1:]]
                path = page.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
            assert len(seen) == len(set(seen)) == count


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("type=T", {"typed"}),
        ("key=k", {"ready-of-key", "held-of-key", "parked"}),
        ("key=k&state=held", {"held-of-key"}),
        ("key=k&state=ready", {"ready-of-key"}),
        ("key=k&state=delayed", {"delayed-of-key"}),
        ("state=parked", {"parked"}),
        ("state=parked&destination=default", {"parked"}),
        ("state=delayed", {"delayed-of-key"}),
        ("destination=mail", {"elsewhere"}),
        ("state=ready&destination=mail", {"elsewhere"}),
        ("correlation_id=c", {"correlated"}),
        ("prefix=el", {"elsewhere"}),
        ("older=1h", {"old"}),
        ("newer=1h&state=parked", {"parked"}),
    ],
)
async def test_filters(browser: Browser, engine: Engine, query: str, found: set[str]):
    later = {"due_at": NOW + timedelta(hours=1)}
    base: dict[str, Any] = dict.fromkeys(("key", "correlation_id", "due_at"))
    base |= {"held": False, "destination": "default"}
    rows: list[dict[str, Any]] = [
        {"message_id": "typed", "type": "T"},
        {"message_id": "ready-of-key", "key": "k"},
        {"message_id": "held-of-key", "key": "k", "held": True} | later,
        {"message_id": "delayed-of-key", "key": "k"} | later,
        {"message_id": "parked", "key": "k", "held": True, "due_at": PARKED},
        {"message_id": "elsewhere", "destination": "mail"},
        {"message_id": "correlated", "correlation_id": "c"},
        {"message_id": "old", "created_at": NOW - timedelta(hours=2)},
    ]
    add(engine, outbox, *(base | row for row in rows))
    async with browser() as client:
        page = (await client.get(f"/messages?{query}")).text
    assert {part.partition('"')[0] for part in page.split('class="id" href="/message?id=')[1:]} == found


async def test_a_finding_leads_to_the_rows_that_it_is_about(browser: Browser, engine: Engine):
    base: dict[str, Any] = {"held": False, "due_at": None, "attempts": 0, "last_error": None, "destination": "default"}
    failed = {"held": True, "attempts": 3, "last_error": "no queue", "due_at": NOW + timedelta(hours=1)}
    old, late = ({"created_at": NOW + timedelta(hours=hours)} for hours in (-2, 2))
    failing = [base | failed | {"message_id": f"f-{kind}", "type": f"{kind} & co"} for kind in ("ordered", "billed")]
    mail = {"destination": "mail/é"}
    add(engine, outbox, *failing, base | old | mail | {"message_id": "old"}, base | late | {"message_id": "now"})
    found = dict[str, set[str]]()
    async with browser() as client:
        overview = (await client.get("/")).text
        links = re.findall(r'-(type-failing|relay-missing)">.*?href="([^"]*)">Show these rows', overview, re.DOTALL)
        for code, link in links:
            page = (await client.get(link.replace("&amp;", "&"))).text
            shown = {part.partition('"')[0] for part in page.split('class="id" href="/message?id=')[1:]}
            found.setdefault(f"{code} {len(found)}", shown)
    assert sorted(map(sorted, found.values())) == [["f-billed"], ["f-ordered"], ["old"]]


async def test_the_numbers_of_the_overview_lead_to_their_rows(browser: Browser, engine: Engine):
    base: dict[str, Any] = {"held": False, "due_at": None, "key": None}
    waits = [base] * 4 + [base | {"due_at": NOW + timedelta(hours=1)}] * 3
    held = [base | {"key": "h", "held": True, "due_at": NOW + timedelta(hours=1)}] * 2
    parked = [base | {"key": f"p{number}", "held": True, "due_at": PARKED} for number in range(3)]
    letter = {"side": "outbox", "reason": "failed", "attempts": 1, "parked": True, "position": 0}
    add(engine, outbox, *waits, *held, *parked)
    add(engine, dead_letter, *(letter | {"key": f"p{number}"} for number in range(3)))
    row = {"scope": "POST /", "principal": "", "fingerprint": b"", "token": "t", "state": "done", "created_at": NOW}
    with engine.begin() as connection:
        rows = [row | {"key": f"k{number}", "expires_at": NOW + timedelta(days=1)} for number in range(5)]
        connection.execute(insert(idempotency), rows)
    async with browser() as client:
        overview = (await client.get("/")).text
        numbers = re.findall(r'class="number" href="([^"]+)">(\d+)<', overview)
        counts = {link: (await client.get(link.replace("&amp;", "&"))).text.count("<tr><td>") for link, _ in numbers}
    assert counts == {link: int(number) for link, number in numbers}
    assert {"/messages?state=held", "/keys?state=parked", "/requests"} <= counts.keys()


@pytest.mark.parametrize("query", ["after=x", "after=[1,2]", "older=soon", "type=%00", "key=" + "x" * 300])
async def test_a_query_that_cannot_be_read_is_explained(browser: Browser, query: str):
    async with browser() as client:
        answer = await client.get(f"/messages?{query}")
    assert answer.status_code == 400
    assert "accepted" in answer.text or "cannot be read" in answer.text


async def test_what_strangers_have_written_stays_text(browser: Browser, engine: Engine):
    foreign = dict.fromkeys(("message_id", "type", "key", "correlation_id", "causation_id", "queue"), HOSTILE)
    foreign |= {"payload": b'{"x": "<script>alert(3)</script>"}', "headers": b'{"<b>": "<script>alert(4)</script>"}'}
    add(engine, outbox, foreign | {"held": True, "due_at": NOW, "attempts": 2, "last_error": HOSTILE})
    add(engine, published, foreign | {"published_at": NOW, "position": 9})
    letter = foreign | {"side": "outbox", "reason": HOSTILE[:50], "error": HOSTILE, "attempts": 1}
    add(engine, dead_letter, letter | {"handler": HOSTILE, "parked": True, "position": 1})
    with engine.begin() as connection:
        audit.record_action(connection, "pause", {"why": HOSTILE}, by=HOSTILE, result=HOSTILE)
    async with browser(may=("read", "payload")) as client:
        written = quote(HOSTILE)
        for path in (
            *("/", "/messages", "/messages?place=kept", "/keys", "/audit"),
            *(f"/message?id={written}", f"/search?q={written}"),
        ):
            answer = await client.get(path, follow_redirects=True)
            assert answer.status_code == 200
            assert "alert(" in answer.text
            assert "<script>alert" not in answer.text
            assert "<img" not in answer.text
            assert not {"\u202e", "\x1b"} & set(answer.text)


async def test_the_tree_of_causes_is_shown_with_a_message_and_for_a_correlation_id(browser: Browser, engine: Engine):
    causes = {"order": None, "pay": "order", "ship": "order", "bill": "pay"}
    rows = ({"message_id": id_, "causation_id": of, "correlation_id": "order"} for id_, of in causes.items())
    lone = {"message_id": "lone", "causation_id": "lone", "correlation_id": None}  # foreign: it caused itself
    add(engine, outbox, *rows, {"message_id": "aside", "causation_id": "pay", "correlation_id": "other"}, lone)
    async with browser() as client:
        one, all_ = [(await client.get(path)).text for path in ("/message?id=pay", "/search?q=other")]
        alone = (await client.get("/message?id=lone")).text
        by_link, by_key = [(await client.get(f"/search?q=order&by={by}")).text for by in ("correlation_id", "key")]
    tree = re.findall(r"<tr><td>(?:<span[^>]*>(.*?)</span>)?<(?:a|strong)[^>]*>(\w+)<", one)
    corner, inner = "└ ", "\u2003└ "
    assert tree == [("", "order"), (corner, "pay"), (inner, "aside"), (inner, "bill"), (corner, "ship")]
    assert '<strong class="id" aria-current="true">pay<' in one
    assert ">aside</a>" in all_
    assert 'href="/search?q=order&amp;by=correlation_id"' in one
    assert ">bill</a>" in by_link, "the id of its first message does not lead to that message alone"
    assert ">order</a>" not in by_key
    assert "What caused it" not in alone


async def test_a_message_is_in_the_tree_of_a_large_flow_with_what_it_caused(browser: Browser, engine: Engine):
    others = [f"n{number}" for number in range(60)]
    causes = {"order": None} | dict.fromkeys((*others, "pay"), "order") | {"bill": "pay"}
    rows = ({"message_id": id_, "causation_id": of, "correlation_id": "order"} for id_, of in causes.items())
    add(engine, outbox, *(row | {"created_at": NOW + timedelta(seconds=n)} for n, row in enumerate(rows)))
    async with browser() as client:
        page = (await client.get("/message?id=pay")).text
    tree = page.partition('id="tree"')[2].partition("</section>")[0]
    shown = re.findall(r"(?:└ </span>)?<(?:a|strong)[^>]*>(\w+)<", tree)
    assert shown == ["order", *others[:49], "pay", "bill"]
    assert "further messages are not shown" in tree


async def test_payloads_need_their_right(browser: Browser, engine: Engine):
    content = {"payload": b'{"email": "ann@example"}', "headers": b'{"tenant": "acme"}'}
    add(engine, outbox, {"message_id": "m", "dedup": True} | content)
    async with browser() as client:
        page = (await client.get("/message?id=m")).text
        assert "needs the right “payload”" in page
        assert not [each for each in ("ann@example", "acme") if each in page]
    async with browser(may=("read", "payload")) as client:
        page = (await client.get("/message?id=m")).text
        assert "ann@example" in page
        assert "acme" in page


async def test_errors_need_the_right_to_see_what_is_in_messages(browser: Browser, engine: Engine):
    error = "IntegrityError: Key (email)=(errsecret@example) already exists"
    held = {"held": True, "due_at": NOW, "attempts": 2, "last_error": error}
    parked = {"held": True, "due_at": PARKED}
    add(engine, outbox, {"message_id": "m", "key": "k"} | held)
    add(engine, outbox, {"message_id": "n", "key": "k"})
    add(engine, outbox, {"message_id": "o", "key": "p"} | parked)
    letter = {"side": "outbox", "reason": "failed", "error": error, "attempts": 1, "position": 1}
    add(engine, dead_letter, letter | {"message_id": "d", "key": "p", "parked": True})
    pages = ["/", "/messages", "/keys", "/dead", "/dead?group=error", "/search?q=k", "/search?q=p"]
    pages += [f"/message?id={each}" for each in "mnod"]
    async with browser(may=("read", "operate")) as client:
        for page in pages:
            answer = await client.get(page, follow_redirects=True)
            assert answer.status_code == 200
            assert "errsecret" not in answer.text, page
        assert "IntegrityError: …" in (await client.get("/dead")).text
        for page in ("/dead?error=errsecret", "/dead/plan?action=replay&all=yes&error=errsecret"):
            assert (await client.get(page)).status_code == 403
    async with browser(may=("read", "payload")) as client:
        for page in pages:
            assert "errsecret" in (await client.get(page, follow_redirects=True)).text, page


async def test_errors_in_the_audit_trail_need_the_same_right(browser: Browser, engine: Engine):
    with engine.begin() as connection:
        asked, result = {"error": "errsecret", "type": "T"}, "failed: IntegrityError: errsecret"
        number = audit.record_action(connection, "dead replay", asked, by="eve", result=result)
        audit.record_action(connection, "resume", {}, by="eve", result=audit.DONE)
    for rights, shown in ((("read", "operate"), 0), (("read", "payload"), 2)):
        async with browser(may=rights) as client:
            for path in ("/audit", f"/operation?id={number}"):
                page = (await client.get(path)).text
                assert page.count("errsecret") == shown, path
                assert "failed: " in page
            assert ">done<" in (await client.get("/audit")).text


async def test_a_page_behind_long_names_is_shown(browser: Browser, engine: Engine):
    rows = [{"message_id": f"m{number}", "key": '"' * 255, "due_at": NOW + timedelta(hours=1)} for number in range(120)]
    add(engine, outbox, *(row | {"held": True} for row in rows))
    async with browser() as client:
        page = (await client.get("/messages", params={"key": '"' * 255, "state": "held"})).text
        link = page.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
        answer = await client.get(link)
    assert (answer.status_code, answer.text.count('class="id"')) == (200, 50)


@pytest.mark.parametrize("redact", [["Email", "TENANT"], lambda type_, document: {"type": type_, "of": len(document)}])
async def test_fields_are_taken_out_at_any_depth(browser: Browser, engine: Engine, redact: Any):
    payload = b'{"a": [{"email": "ann@example"}], "total": 12345678901234567890.10}'
    headers = b'{"deep": {"email": "ann@example"}, "list": [{"email": "bob@example"}], "email": "eve@example"}'
    add(engine, outbox, {"message_id": "m", "dedup": True, "payload": payload, "headers": headers})
    async with browser(may=("read", "payload"), redact=redact) as client:
        page = (await client.get("/message?id=m")).text
    assert "@example" not in page
    assert "deep" in page
    assert ("12345678901234567890.10" in page) == isinstance(redact, list)


async def test_it_is_mounted_under_a_prefix(browser: Browser, sqlite_url: str):
    mounted = console(sqlite_url, access=TokenAccess(TOKEN))
    app = Starlette(routes=[Mount("/ops/outbox", mounted)])
    async with browser(token=None, app=app) as client, running(mounted):
        assert (await client.get("/ops/outbox/")).headers["location"] == "/ops/outbox/login"
        answer = await client.post("/ops/outbox/login", data={"token": TOKEN})
        assert "Path=/ops/outbox;" in answer.headers["set-cookie"]
        page = (await client.get("/ops/outbox/")).text
        assert 'href="/ops/outbox/messages"' in page
        assert 'href="/messages"' not in page
        assert (await client.get("/ops/outbox/static/console.css")).status_code == 200


@pytest.mark.parametrize(
    "prefix", ["/a%3B%20Domain%3Devil.example/ops", "/a%0D%0AX%3A1/ops", "/a%3Fb/ops", "/b%C3%B6se%20(x)/ops"]
)
async def test_whatever_a_client_puts_into_the_prefix_stays_in_it(browser: Browser, sqlite_url: str, prefix: str):
    """A mount may have parameters: they are a client's. Neither the cookie nor a link reads them as anything else."""
    mounted = console(sqlite_url, access=TokenAccess(TOKEN))
    app = Starlette(routes=[Mount("/{tenant}/ops", mounted)])
    async with browser(token=None, app=app) as client, running(mounted):
        answer = await client.post(f"{prefix}/login", data={"token": TOKEN})
        (path,) = re.findall(r"Path=([^;]*);", answer.headers["set-cookie"])
        assert (path, answer.headers["location"]) == (quote(unquote(prefix), safe="/"), f"{path}/")
        assert "Domain" not in answer.headers["set-cookie"].replace("%3D", "").partition("Path=")[2].partition(";")[2]
        assert f'href="{path}/messages"' in (await client.get(f"{path}/")).text


async def test_a_database_without_tables_is_explained(browser: Browser, empty_url: str):
    async with browser(app=console(empty_url, access=TokenAccess(TOKEN))) as client:
        assert "outboxkit migrate" in (await client.get("/")).text
        answer = await client.get("/messages")
        assert answer.status_code == 503
        assert "outboxkit migrate" in answer.text


@pytest.mark.parametrize(
    ("payload", "redact", "shown"),
    [
        (b'{"a":1,"a":2,"n":1e400,"i":12345678901234567890}', (), ("1e400", "12345678901234567890")),
        (b'{"a":1,"a":2,"secret":{"x":[1]}}', ("secret",), ("2", "•••")),
        (b"plain <b>text</b>", (), ("plain &lt;b&gt;text", "It is not JSON.")),
        (b"plain text", ("secret",), ("•••", "it is not shown")),
        (b"\xff\x00", (), ("ff 00", "hexadecimal")),
        (b"[" * 5000, (), ("It is not JSON.",)),
        (b"{}", lambda type_, document: 1 / 0, ("•••", "has failed")),
        (b"text", lambda type_, document: document.upper(), ("TEXT",)),
        (b"x" * 300_000, (), ("Only the first",)),
        (b'"' + "é".encode() * 600_000 + b'"', (), ("é" * 90_000, "It is large: only its first 200000 bytes")),
        (b"[" + b"[]," * 400_000 + b"1]", ("secret",), ("•••", "too large for anything to be taken out of it")),
    ],
)
async def test_payloads_of_every_kind_are_shown(
    browser: Browser, engine: Engine, payload: bytes, redact: Any, shown: tuple[str, ...]
):
    add(engine, outbox, {"message_id": "m", "dedup": True, "payload": payload})
    async with browser(may=("read", "payload"), redact=redact) as client:
        answer = await client.get("/message?id=m")
    assert answer.status_code == 200
    assert [text for text in shown if text not in answer.text] == []


async def test_a_message_is_followed_into_another_services_database(
    browser: Browser, engine: Engine, tmp_path: Path, migrated_sqlite: SqliteCopies
):
    other = migrated_sqlite.copy(tmp_path / "billing.db")
    message_id = ids.new()
    add(engine, published, {"message_id": message_id, "published_at": NOW, "position": 1})
    billing = create_engine(other)
    with billing.begin() as connection:
        row = {"handler": "Bill", "message_id": message_id, "type": "OrderConfirmed", "processed_at": NOW}
        connection.execute(insert(inbox), row)
    billing.dispose()
    async with browser(also=[other]) as client:
        shown = (await client.get(f"/message?id={message_id}")).text
        assert "handled by Bill" in shown or "Bill handled it" in shown
        assert "billing.db" in shown


async def test_another_services_database_that_is_away_fails_no_page(
    browser: Browser, engine: Engine, tmp_path: Path, migrated_sqlite: SqliteCopies
):
    add(engine, published, {"message_id": "m", "published_at": NOW, "position": 1})
    (there := tmp_path / "there").mkdir()
    async with browser(also=[migrated_sqlite.copy(there / "billing.db")]) as client:
        there.rename(tmp_path / "gone")
        page = await client.get("/message?id=m")
    assert (page.status_code, "not read: sqlite:///" in page.text) == (200, True)


@pytest.mark.parametrize(
    "path",
    [
        "/audit?after=x",
        '/audit?after=["2020-01-01T00:00:00Z",99999999999999999999]',
        '/audit?after=["2020-01-01T00:00:00",1]',
        '/audit?after=["0001-01-01T00:00:00%2B10:00",1]',
        "/messages?after=[99999999999999999999999]",
        '/messages?type=A&after=["\\u0000",1]',
        "/dead?after=" + "9" * 200,
        "/operation?id=" + "9" * 200,
        "/messages?state=lost",
        "/dead?reason=lost",
        "/dead?side=lost",
        "/dead?group=lost",
        "/dead/plan?all=yes&reason=lost",
        "/requests?state=lost",
    ],
)
async def test_a_link_that_no_page_made_is_refused(browser: Browser, path: str):
    async with browser() as client:
        assert (await client.get(path)).status_code == 400
