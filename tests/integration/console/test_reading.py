"""What the console asks of PostgreSQL: bounded parts of indexes, in transactions that only read, as a reader."""

import asyncio
import functools
import inspect
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import httpx
import pytest
from sqlalchemy import Engine, insert, text
from sqlalchemy.exc import DBAPIError

from outboxkit import statements, tables
from outboxkit.console import TokenAccess, console
from outboxkit.console.access import ConsoleRight
from outboxkit.operators import keeping, messages
from outboxkit.operators.replay import Replayer, ReplaySelection
from outboxkit.operators.sql import actions, background, listing
from outboxkit.operators.sql.listing import Choice
from outboxkit.runtime import process
from outboxkit.runtime.settings import load
from outboxkit.statements import dead, idempotency
from outboxkit.statements.dead import Selection
from outboxkit.tables import PARKED
from tests.integration.operators.doctoring import connected, role
from tests.integration.operators.plans import STATISTICS, assert_bounded, filled
from tests.integration.operators.test_doctor_rights import granted
from tests.servers import Server
from tests.unit.console.conftest import running

ROWS, WINDOW = 30_000, 500
NOW = datetime.now(UTC)
PAGES = (
    *("/", "/messages", "/messages?place=kept", "/message?id=m4", "/keys", "/audit", "/search?q=k1", "/workers"),
    *("/retention", "/operations", "/operation?id=3", "/replay", "/replay?to_queue=q", "/dead/plan?all=yes"),
)
TOKEN = "a token of twenty and more signs"
FILL = (
    """
    INSERT INTO outboxkit_outbox (message_id, type, key, payload, headers, content_type, destination, due_at, held)
    SELECT 'm' || n, 'T' || n % 7, 'k' || n % 9, '', '{}', 'x', CASE WHEN n % 2 = 0 THEN 'default' ELSE 'mail' END,
           CASE n % 4 WHEN 0 THEN now() + interval '1 hour' WHEN 1 THEN '9999-12-31 UTC'::timestamptz END,
           n % 4 = 1 OR n % 8 = 0
    FROM generate_series(1, :rows) n
    """,
    """
    INSERT INTO outboxkit_published (published_at, position, message_id, type, payload, headers, content_type)
    SELECT now() - n * interval '1 second', n, 'm' || n, 'T', '', '{}', 'x' FROM generate_series(1, :rows) n
    """,
    """
    INSERT INTO outboxkit_dead_letter (side, message_id, type, key, handler, payload, headers, content_type, reason,
                                       attempts, dead_at)
    SELECT 'outbox', 'm' || n, 'T' || n % 7, 'k' || n % 9, 'H' || n % 5, '', '{}', 'x', 'rejected', 10,
           now() - (:rows - n) * interval '1 second'
    FROM generate_series(1, :rows) n
    """,
    """
    INSERT INTO outboxkit_audit (action, operator, filter, started_at)
    SELECT 'pause', 'ann', '{}', now() - n * interval '1 second' FROM generate_series(1, :rows) n
    """,
    "INSERT INTO outboxkit_operation (action, plan, total) SELECT id, '{}', 1 FROM outboxkit_audit LIMIT :rows",
    """
    INSERT INTO outboxkit_idempotency (scope, principal, key, fingerprint, state, token, created_at, expires_at,
                                       locked_until, response_status, response_headers, response_body)
    SELECT 'POST /orders', '', n, '', CASE WHEN n % 1000 = 0 THEN 'processing' ELSE 'done' END, '', now(),
           now() + n * interval '1 second', now(), 201, '[]', ''
    FROM generate_series(1, :rows) n
    """,
)
CHOICES: dict[str, tuple[Choice, tuple[Any, ...] | None]] = {
    "waiting": (Choice(type="T1"), (15_000,)),
    "kept": (Choice(kept=True, prefix="m1"), (NOW - timedelta(hours=4), 15_000)),
    "kept of a time": (Choice(kept=True, since=NOW - timedelta(hours=5), before=NOW - timedelta(hours=3)), None),
    "ready": (Choice(state="ready"), ("default", 15_000)),
    "ready to a destination": (Choice(state="ready", destination="mail"), ("mail", 15_000)),
    "held": (Choice(state="held"), None),
    "delayed": (Choice(state="delayed", destination="default"), None),
    "parked": (Choice(state="parked", destination="mail"), ("mail", PARKED, 15_000)),
    "of a key": (Choice(key="k1"), ("k1", "default", 15_000)),
    "held of a key": (Choice(key="k1", state="held"), None),
}
DEAD: dict[str, Selection] = {
    "all": Selection(),
    "of a key": Selection(key="k1"),
    "of a handler": Selection(handler="H1", after=(NOW - timedelta(hours=2), 20_000)),
    "of a type": Selection(type="T1", key="nobody's", error="x"),
    "of a time": Selection(before=NOW - timedelta(hours=4), since=NOW - timedelta(hours=7), error="no"),
    "of a type and a time": Selection(type="T1", before=NOW - timedelta(hours=4)),
    "with resolved ones": Selection(resolved=True, type="nothing"),
    "like another one": Selection(same=(("error", 7),)),
}
MOST = {"window": WINDOW, "limit": 51}
OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "content_of the outbox": (listing.content_of(tables.outbox), {"position": 5}),
    "content_of kept messages": (listing.content_of(tables.published), {"published_at": NOW, "position": 5}),
    "content_of dead letters": (listing.content_of(tables.dead_letter), {"id": 5}),
    "held_keys": (listing.held_keys(), {"destination": "default", "limit": WINDOW, "top": 10}),
    "published_between": (
        listing.published_between("postgresql"),
        {"since": NOW - timedelta(hours=4), "until": NOW - timedelta(hours=1), "limit": WINDOW},
    ),
    "newest_actions": (
        actions.newest_actions(),
        {"since": NOW - timedelta(days=9), "before_at": NOW - timedelta(hours=3), "before_id": 9, "limit": WINDOW},
    ),
    "newest_operations": (background.newest_operations(), {"limit": 100}),
    "action_of_form": (actions.action_of_form(), {"form": "f" * 36}),
    "one_operation": (background.one_operation(), {"of": 7}),
    "one_action": (background.one_action(), {"of": 7}),
    "newest_requests": (
        idempotency.newest_requests(),
        {"of_key": None, "of_scope": None, "of_state": "processing", "window": WINDOW, "limit": 50},
    ),
}


@pytest.fixture(scope="module", params=STATISTICS)
def large(request: pytest.FixtureRequest, postgresql: Server, template: str) -> Iterator[Engine]:
    quiet = ("outbox", "dead_letter", "published_default", "audit", "operation", "idempotency")
    with filled(postgresql, template, request.param, quiet, *((each, {"rows": ROWS}) for each in FILL)) as engine:
        yield engine


bounded = functools.partial(assert_bounded, most=WINDOW + 1)


@asynccontextmanager
async def visited(url: str, *may: ConsoleRight) -> AsyncIterator[httpx.AsyncClient]:
    """A client that has logged in to a console of this database."""
    app = console(url, access=TokenAccess(TOKEN, may=("read", *may)))
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
    async with running(app), client:
        await client.post("/login", data={"token": TOKEN})
        yield client


@pytest.mark.parametrize("name", CHOICES)
def test_a_page_of_messages_reads_a_window_of_an_index(large: Engine, name: str):
    choice, after = CHOICES[name]
    for each in listing.walks_of(choice):
        statement = listing.page_of_messages(choice, each, after)
        bounded(large, statement, MOST, doc=listing.page_of_messages.__doc__ or "")


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_list_reads_a_bounded_part_of_an_index(large: Engine, name: str):
    statement, parameters = OTHERS[name]
    function, modules = name.split(maxsplit=1)[0], (listing, actions, background, idempotency)
    (made,) = (getattr(module, function) for module in modules if hasattr(module, function))
    bounded(large, statement, parameters, doc=inspect.getdoc(made) or "")


@pytest.mark.parametrize("name", DEAD)
def test_dead_letters_are_listed_and_counted_in_a_window_of_an_index(large: Engine, name: str):
    chosen, doc = DEAD[name], dead.newest.__doc__ or ""
    bounded(large, dead.end_of_window(chosen), {"window": WINDOW}, doc=doc)
    with large.connect() as connection:
        connection.execute(statements.status.forbid_sorting())
        end = connection.execute(dead.end_of_window(chosen), {"window": WINDOW}).one_or_none()
    assert (end is None) == (chosen.key == "nobody's")
    window = chosen if end is None else replace(chosen, upto=tuple(end))
    for statement in (dead.newest(window), dead.count_newest(window), dead.count_by(window, "error")):
        bounded(large, statement, {"limit": WINDOW}, doc=doc)
    for statement in (dead.count_by_kind(window), dead.replay_candidates("postgresql", window)):
        bounded(large, statement, {"fresh_from": ""} if statement.compile().params else {}, doc=doc)


async def test_a_replay_of_kept_messages_is_counted_in_a_window(large: Engine):
    engine = process.engine(large.url.render_as_string(hide_password=False), name="test")
    replayer = Replayer(engine, cast("Any", None), ReplaySelection(type="T"))
    found = await replayer.find(window=WINDOW)
    assert (found.count, found.is_partial) == (WINDOW - 1, True)
    assert (await replayer.find(window=ROWS + 1)).count == ROWS
    await engine.dispose()


def test_a_search_that_finds_nothing_goes_on_where_it_ended(large: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(messages, "WINDOW", 10_000)
    with large.connect() as connection:
        page, pages = messages.read_page(connection, Choice(prefix="m29999"), after=None, limit=10), 1
        while not page.rows and page.after is not None:
            assert page.is_searched
            page, pages = messages.read_page(connection, Choice(prefix="m29999"), after=page.after, limit=10), pages + 1
    assert [row.message_id for row in page.rows] == ["m29999"]
    assert pages == 3


@pytest.mark.parametrize("name", CHOICES)
def test_pages_have_every_message_once(large: Engine, name: str):
    choice, after = CHOICES[name]
    seen: list[Any] = []
    with large.connect() as connection:
        while len(seen) < 3000:
            page = messages.read_page(connection, choice, after=after, limit=700)
            seen += [(row.position, row.message_id) for row in page.rows]
            after = page.after
            if after is None:
                break
    assert len(seen) == len(set(seen)) > 400


async def test_a_role_that_can_only_read_sees_every_page(postgresql_url: str, pg_engine: Engine):
    with pg_engine.begin() as connection:
        for statement in FILL:
            connection.execute(text(statement), {"rows": 200})
    with connected(postgresql_url) as owner, role(postgresql_url) as (name, url):
        owner.execute(granted("shop_viewer").replace("TO shop_viewer;", f"TO {name};"))
        async with visited(url, "payload") as client:
            for path in PAGES:
                page = await client.get(path)
                assert page.status_code == 200
                assert [each for each in ("not-checked", "sessions-hidden", "permission") if each in page.text] == []


def test_every_table_has_its_size(large: Engine):
    with large.connect() as connection:
        kept = {one.table: one for one in keeping.read_keeping(connection, load({"database_url": "postgresql://x/y"}))}
    assert all(one.bytes is not None and one.bytes > 0 for one in kept.values())
    big = [kept[f"outboxkit_{name}"].bytes or 0 for name in ("outbox", "published", "dead_letter", "idempotency")]
    assert min(big) > 2_000_000


async def test_a_page_can_neither_write_nor_wait_for_long(postgresql_url: str):
    reader = process.reader(postgresql_url, name="test", pool_size=1, timeout="100ms")
    try:
        for statement in ("DELETE FROM outboxkit_outbox", "SELECT pg_sleep(9)"):
            async with reader.connect() as connection:
                with pytest.raises(DBAPIError, match=r"read-only transaction|statement timeout"):
                    await connection.execute(text(statement))
        async with reader.connect() as connection:  # and the session is as it was, for those who share it
            raw: Any = (await connection.get_raw_connection()).driver_connection
            await connection.rollback()
            await raw.set_read_only(False)
            assert (await (await raw.execute("SHOW statement_timeout")).fetchone())[0] == "0"
            assert (await (await raw.execute("SHOW default_transaction_read_only")).fetchone())[0] == "off"
    finally:
        await reader.dispose()


async def test_a_page_that_takes_too_long_asks_for_a_filter(pg_engine: Engine, postgresql_url: str):
    async with visited(postgresql_url) as client:
        with pg_engine.begin() as connection:
            lock = text("LOCK TABLE outboxkit_dead_letter IN ACCESS EXCLUSIVE MODE")
            await asyncio.to_thread(connection.execute, lock)  # the page of the login may still be read
            page = await client.get("/dead?group=error")
        assert page.status_code == 503
        assert "Filter first" in page.text
        assert "outboxkit doctor" not in page.text


async def test_a_queue_without_a_consumer_says_how_to_start_one(pg_engine: Engine, postgresql_url: str):
    with pg_engine.begin() as connection:
        connection.execute(insert(tables.handler), {"handler": "SendReceipt", "queue": "statistics"})
        paused = {"process": "relay", "name": "payments", "since": NOW, "why": "w", "paused_by": "ann"}
        connection.execute(insert(tables.pause), paused)
    async with visited(postgresql_url) as client:
        page = (await client.get("/workers")).text
    assert "No consumer of it is there." in page
    assert "<code>outboxkit relay --destination payments --broker-url URL</code> publishes what waits" in page
    assert "<code>outboxkit consume MODULE --queue statistics</code> starts one" in page
    assert "by ann: w; no relay is connected.</p>" in page


async def test_groups_lead_to_their_rows_on_a_server(pg_engine: Engine, postgresql_url: str):
    with pg_engine.begin() as connection:
        connection.execute(text(FILL[2]), {"rows": 30})
        connection.execute(text("UPDATE outboxkit_dead_letter SET error = repeat('é', 190 + CAST(id AS int) % 12)"))
        connection.execute(text("UPDATE outboxkit_dead_letter SET error = NULL WHERE id < 6"))
    async with visited(postgresql_url, "payload") as client:
        groups = re.findall(r'class="number" href="([^"]*)">(\d+)<', (await client.get("/dead?group=error")).text)
        assert sum(int(count) for _, count in groups) == 30
        for link, count in groups:
            assert (await client.get(link)).text.count('class="id"') == int(count)
            plan = await client.get(link.replace("/dead?", "/dead/plan?all=yes&action=discard&"))
            assert re.search(rf"discard {count} dead letters?</h1>", plan.text)
