"""Replays and discards from the console: a dry run, then an operation that goes on without the page."""

import asyncio
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select, update
from structlog.testing import capture_logs

from outboxkit import BrokerUnavailable, ids
from outboxkit.console import BasicAccess, operations, serving
from outboxkit.console.access import ConsoleRight
from outboxkit.operators import background
from outboxkit.operators.background import Background, Plan, begin_operation
from outboxkit.operators.deadletters import DeadLetters, ReplayRules, Selection
from outboxkit.runtime.settings import load
from outboxkit.tables import audit, dead_letter, operation
from tests.integration.operators import dead_rows
from tests.support.polling import eventually_async
from tests.unit.console.conftest import Browser, csrf_in

OPERATOR: tuple[ConsoleRight, ...] = ("read", "operate")


def fill(engine: Engine, count: int) -> None:
    now = datetime.now(UTC)
    dead_rows.fill(engine, [dead_rows.dead(number, dead_at=now, error=None) for number in range(1, count + 1)])


def fields_of(page: str) -> dict[str, str]:
    """The hidden fields of the last form of a page."""
    form = page.rpartition("<form")[2]
    found = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form)
    return {name: value.replace("&#34;", '"') for name, value in found}


async def begin(client: Any, query: str = "all=yes", **more: str) -> str:
    """Begin what a dry run has planned; the place of the operation."""
    fields = fields_of((await client.get(f"/dead/plan?{query}")).text) | more
    return str((await client.post("/dead/plan", data=fields)).headers["location"])


async def ended(client: Any, place: str) -> str:
    async def read() -> str:
        return str((await client.get(place)).text)

    return await eventually_async(read, lambda page: "data-refresh" not in page)


@pytest.mark.parametrize(("action", "outcome"), [("replay", "replayed"), ("discard", "discarded")])
async def test_dead_letters_are_resolved_after_a_dry_run(browser: Browser, engine: Engine, action: str, outcome: str):
    fill(engine, 700)
    async with browser(may=OPERATOR) as client:
        dry = (await client.get(f"/dead/plan?action={action}&all=yes&type=OrderConfirmed&newer=1d")).text
        assert f"Dry run: {action} 700 dead letters" in dry
        assert f"outboxkit dead {action} --type OrderConfirmed --since 1d" in dry
        assert {letter.resolution for letter in dead_rows.letters(engine).values()} == {None}
        dead_rows.fill(engine, [dead_rows.dead(9000)])
        answer = await client.post("/dead/plan", data=fields_of(dry) | {"why": "the bank is back"})
        page = await ended(client, answer.headers["location"])
        assert "700 of 700" in page
        with engine.connect() as connection:
            (row,) = connection.execute(select(audit)).all()
            assert (row.action, row.affected, row.result) == (f"dead {action}", 700, "done")
            assert row.operator == "ann"
            assert "the bank is back" in row.filter
            assert not connection.execute(select(operation)).all()
        *states, later = (letter.resolution for letter in dead_rows.letters(engine).values())
        assert (set(states), later) == ({outcome}, None)
        assert len(dead_rows.outbox_rows(engine)) == (700 if action == "replay" else 0)


async def test_the_command_line_of_a_replay_has_the_very_times_of_its_dry_run(browser: Browser):
    async with browser() as client:
        page = (await client.get("/replay?to_queue=q&newer=1d")).text
    since, until = map(datetime.fromisoformat, re.findall(r"--(?:since|until) (\S+\.\d{6}Z)", page))
    assert until - since == timedelta(days=1)


async def test_the_command_works_at_an_operation_before_anybody_comes_and_gives_it_back_at_its_end(
    sqlite_url: str, engine: Engine
):
    fill(engine, 3)
    with engine.begin() as connection:
        plan = Plan("dead discard", "ann", dead=Selection(), upto=9, rate=0.5, why="of the console before")
        begin_operation(connection, plan, total=3, form=ids.new())

    def state() -> tuple[int, bool]:
        with engine.connect() as connection:
            affected = connection.execute(select(audit.c.affected)).scalar_one()
            return affected, connection.execute(select(operation.c.leased_until)).scalar_one() is not None

    settings, stop = load({"database_url": sqlite_url}), asyncio.Event()
    page = serving.serve(settings, port=0, user="ann", may=OPERATOR, also=(), say=lambda _: None)
    running = asyncio.ensure_future(page(stop))
    async with asyncio.timeout(30):
        while state() != (1, True):
            await asyncio.sleep(0.02)
        stop.set()
        await running
    assert state() == (1, False)


@pytest.mark.parametrize("ends", [False, True])
async def test_a_form_that_is_sent_again_leads_to_its_operation(browser: Browser, engine: Engine, ends: bool):
    fill(engine, 3)
    async with browser(may=OPERATOR) as client:
        dry = fields_of((await client.get("/dead/plan?all=yes")).text) | ({} if ends else {"rate": "1"})
        place = (await client.post("/dead/plan", data=dry)).headers["location"]
        if ends:
            await ended(client, place)
        assert (await client.post("/dead/plan", data=dry | {"rate": "7"})).headers["location"] == place
        assert ends or await begin(client, "all=yes&action=discard", why="w") != place
    with engine.connect() as connection:
        assert len(connection.execute(select(audit)).all()) == (1 if ends else 2)


@pytest.mark.parametrize("query", ["", "&error=rejected"])
async def test_a_dry_run_reads_a_window_and_the_operation_takes_all(
    browser: Browser, engine: Engine, monkeypatch: pytest.MonkeyPatch, query: str
):
    monkeypatch.setattr(operations, "WINDOW", 100)
    fill(engine, 700)
    with engine.begin() as connection:
        connection.execute(update(dead_letter).where(dead_letter.c.id < 600).values(error="rejected"))
    async with browser(may=(*OPERATOR, "payload")) as client:
        dry = (await client.get(f"/dead/plan?action=discard&all=yes{query}")).text
        assert f"Dry run: discard {'all that match' if query else 'more than 100 dead letters'}</h1>" in dry
        assert "Only the newest 100 were read" in dry
        answer = await client.post("/dead/plan", data=fields_of(dry) | {"why": "old", "rate": "500"})
        place = answer.headers["location"]
        while (page := (await client.get(place)).text) and "being counted" in page:
            await asyncio.sleep(0.02)
        total = 599 if query else 700
        assert f"of {total}</dd>" in page
        page = await ended(client, place)
        assert f"{total} of {total}" in page


async def test_an_operation_is_stopped_and_the_next_console_goes_on(browser: Browser, engine: Engine):
    fill(engine, 5)
    async with browser(may=OPERATOR) as client:
        place = await begin(client, rate="1")
        while "<dt>Done</dt>" in (page := (await client.get(place)).text) and " 0 of 5" in page:
            await asyncio.sleep(0.02)
        assert "dead replay" in (await client.get("/operations")).text
    with engine.connect() as connection:
        (row,) = connection.execute(select(operation)).all()
        assert row.leased_until is None
    async with browser(may=OPERATOR) as client:
        page = (await client.get(place)).text
        await client.post("/operation/stop", data={"csrf": csrf_in(page), "id": str(row.action)})
        page = await ended(client, place)
        assert "stopped" in page
    with engine.connect() as connection:
        actions = {one.action: one for one in connection.execute(select(audit))}
        assert 0 < actions["dead replay"].affected < 5
        assert actions["stop"].operator == "ann"


async def test_who_may_not_operate_sees_the_command_and_no_form(browser: Browser, engine: Engine):
    fill(engine, 3)
    async with browser() as client:
        dry = (await client.get("/dead/plan?all=yes")).text
        assert "outboxkit dead replay --all" in dry
        assert "needs the right “operate”" in dry
        assert 'name="selection"' not in dry
        for path in ("/dead/plan", "/replay", "/operation/stop"):
            sent = {"csrf": csrf_in(dry), "action": "replay", "selection": "{}", "upto": "9", "total": "3", "id": "1"}
            assert (await client.post(path, data=sent)).status_code == 403
    with engine.connect() as connection:
        assert not connection.execute(select(audit)).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"selection": "[]"},
        {"selection": "{"},
        {"selection": '{"type":"\\u0000"}'},
        {"selection": '{"numbers":[99999999999999999999]}', "all": ""},
        {"selection": f'{{"type":"{"x" * 256}"}}'},
        {"selection": '{"numbers":[1]}'},
        {"upto": "-1"},
        {"upto": "9" * 5000},
        {"rate": "0"},
        {"rate": "x"},
        {"total": "9" * 30},
        {"total": "9" * 5000},
        {"action": "zap"},
        {"form": ""},
        {"form": "f" * 37},
        {"action": ""},
        {"all": ""},
        {"why": "w" * 256},
        {"why": "a\0b"},
    ],
)
async def test_a_form_that_was_made_up_does_nothing(browser: Browser, engine: Engine, changes: dict[str, str]):
    fill(engine, 3)
    async with browser(may=OPERATOR) as client:
        dry = (await client.get("/dead/plan?all=yes")).text
        assert (await client.post("/dead/plan", data=fields_of(dry) | changes)).status_code == 400
    with engine.connect() as connection:
        assert not connection.execute(select(operation)).all()


async def test_a_form_cannot_guess_errors_without_their_right(browser: Browser, engine: Engine):
    fill(engine, 3)
    async with browser(may=OPERATOR) as client:
        dry = (await client.get("/dead/plan?all=yes")).text
        guess = {"selection": '{"numbers":[1],"error":"guess"}', "all": ""}
        assert (await client.post("/dead/plan", data=fields_of(dry) | guess)).status_code == 403
    with engine.connect() as connection:
        assert not connection.execute(select(operation)).all()


@pytest.mark.parametrize("queue", ["", " ", "a\0b", "q" * 256, "ü" * 128])
async def test_a_replay_needs_the_name_of_a_queue(browser: Browser, engine: Engine, queue: str):
    async with browser(may=OPERATOR) as client:
        sent = {"csrf": csrf_in((await client.get("/operations")).text), "selection": "{}", "total": "3"}
        answer = await client.post("/replay", data=sent | {"to_queue": queue})
        assert (answer.status_code, "“to_queue”" in answer.text) == (400, True)
        assert (await client.post("/operation/stop", data=sent | {"id": "9" * 5000})).status_code == 400
    with engine.connect() as connection:
        assert not connection.execute(select(operation)).all()


async def test_a_discard_needs_a_reason(browser: Browser, engine: Engine):
    fill(engine, 3)
    async with browser(may=OPERATOR) as client:
        dry = (await client.get("/dead/plan?action=discard&all=yes")).text
        answer = await client.post("/dead/plan", data=fields_of(dry))
        assert (answer.status_code, "No reason" in answer.text) == (400, True)


async def test_pages_without_operations(browser: Browser):
    async with browser(may=OPERATOR) as client:
        assert "No operation runs." in (await client.get("/operations")).text
        assert "there is nothing to do" in (await client.get("/dead/plan?id=7")).text
        assert (await client.get("/operation?id=7")).status_code == 404
        assert (await client.get("/operation?id=x")).status_code == 400
        assert "A dry run says" in (await client.get("/replay")).text
        assert "No such message is kept." in (await client.get("/replay?to_queue=statistics")).text


async def test_a_console_that_only_reads_leaves_operations_alone(browser: Browser, engine: Engine):
    fill(engine, 3)
    async with browser(may=OPERATOR) as client:
        place = await begin(client, rate="1")
    async with browser() as client:
        for _ in range(20):
            assert "waiting" in (await client.get(place)).text
    basic = BasicAccess({"bob": "a password of many signs"}, may={"bob": OPERATOR})
    async with browser(access=basic, token=None) as client:
        page = await client.get(place, auth=("bob", "a password of many signs"))
        assert page.status_code == 200


async def test_an_operation_that_is_found_while_the_console_stops_is_not_left_running(
    browser: Browser, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    lease, found = Background._lease, asyncio.Event()

    async def late(self: Background) -> Any:
        """As with a client library that swallows the cancellation."""
        row = await lease(self)
        found.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return row

    monkeypatch.setattr(Background, "_lease", late)
    fill(engine, 3)
    async with browser(may=OPERATOR) as client:
        await begin(client, rate="1")
        await found.wait()
    assert not [task for task in asyncio.all_tasks() if "Background" in repr(task)]


async def test_an_operation_has_the_rules_the_rate_and_the_user_of_its_form(
    browser: Browser, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    given: list[dict[str, Any]] = []

    class Noted(DeadLetters):
        def __init__(self, of: Any, **options: Any) -> None:
            given.append(options)
            super().__init__(of, **options)

    monkeypatch.setattr(background, "DeadLetters", Noted)
    fill(engine, 1)
    async with browser(may=OPERATOR) as client:
        await ended(client, await begin(client, "all=yes&accept_stale=yes", rate="7"))
    assert given == [{"rules": ReplayRules(accept_stale=True), "rate": 7, "by": "ann"}]


async def test_an_operation_waits_for_a_server_that_is_away(
    browser: Browser, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    async def lose(*_: object, **__: object) -> None:
        raise BrokerUnavailable("it is away")

    monkeypatch.setattr(DeadLetters, "resolve", lose)
    fill(engine, 1)
    with capture_logs() as logs:
        async with browser(may=OPERATOR) as client:
            await begin(client)
            said = await eventually_async(
                lambda: asyncio.sleep(0, [log["event"] for log in logs if log["event"].startswith("an operation")])
            )
    assert said == ["an operation waits for a server"]
    with engine.connect() as connection:
        assert connection.execute(select(audit.c.result)).scalar_one() is None
        assert len(connection.execute(select(operation)).all()) == 1
