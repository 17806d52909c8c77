"""`once` on SQLite, in both colours."""

import asyncio
import re
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outboxkit import ConfigurationError, EncodeError, InProgressElsewhere, Retry, effects
from outboxkit.defaults import LEASE
from outboxkit.effects import Effect
from outboxkit.message import Origin, handling
from outboxkit.tables import effect
from outboxkit.telemetry.catalogue import EFFECTS
from tests.unit.shop import message, rows

Once = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def once(request: pytest.FixtureRequest, engine: Engine, async_engine: AsyncEngine) -> Once:
    """`effects.once` with a plain call, run in either colour; awaited by the caller."""

    async def run(key: str | None, call: Callable[[], Any], **options: Any) -> Effect:
        given = {"on_unknown": "skip"} | options
        if request.param == "sync":
            return effects.once(sessionmaker(engine), key, call, **given)

        async def as_coroutine() -> Any:
            await asyncio.sleep(0)
            return call()

        return await effects.once(async_sessionmaker(async_engine), key, as_coroutine, **given)

    return run


def raising(error: BaseException) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


async def test_it_is_made_once_and_returns_the_same_each_time(once: Once, database_url: str):
    made: list[int] = []

    def call() -> dict[str, Any]:
        assert [row["state"] for row in rows(database_url, effect)] == ["started"], "committed before the call"
        made.append(1)
        return {"charge": Decimal("9.50")}

    assert await once("k", call) == Effect("made", {"charge": "9.50"})
    assert await once("k", call) == Effect("remembered", {"charge": "9.50"})
    assert made == [1]
    assert [row["state"] for row in rows(database_url, effect)] == ["done"]
    assert (await once("other", lambda: None)).outcome == "made"


async def test_after_a_certain_failure_the_next_run_makes_it(once: Once, database_url: str):
    for error in (ConnectionRefusedError("refused"), ValueError("refused")):
        with pytest.raises(type(error), match="refused"):
            await once("k", raising(error), certain=(ValueError,))
    assert rows(database_url, effect) == []
    assert await once("k", lambda: 1) == Effect("made", 1)


async def test_a_certain_failure_of_a_repetition_leaves_unknown_what_was_unknown(once: Once):
    for error in (TimeoutError(), ConnectionRefusedError()):
        with pytest.raises(type(error)):
            await once("k", raising(error), on_unknown="repeat")
    assert await once("k", lambda: 7) == Effect("skipped")


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError(), LookupError(), asyncio.CancelledError()])
@pytest.mark.parametrize(("policy", "known"), [("skip", Effect("skipped")), ("repeat", Effect("repeated", 7))])
async def test_where_it_may_have_been_made_the_policy_decides_and_is_reported(
    once: Once,
    error: BaseException,
    policy: str,
    known: Effect,
    caplog: pytest.LogCaptureFixture,
    database_url: str,
):
    with pytest.raises(type(error)):
        await once("k", raising(error))
    assert await once("k", lambda: 7, on_unknown=policy) == known
    assert [row["state"] for row in rows(database_url, effect)] == [known.outcome]
    again = await once("k", lambda: 8, on_unknown=policy)
    assert again == (known if policy == "skip" else Effect("remembered", 7))
    (record,) = [record for record in caplog.records if record.name == "outboxkit"]
    assert record.levelname == "WARNING"
    assert re.search(rf"key 'k', policy {policy}, begun at \S+\+00:00$", record.getMessage())


async def test_a_result_without_json_is_told_after_it_is_recorded(once: Once):
    with pytest.raises(EncodeError, match="'k': the call was made, and its result is not remembered") as raised:
        await once("k", object)
    assert isinstance(raised.value.__cause__, EncodeError)
    assert await once("k", lambda: 7) == Effect("remembered", None)


async def test_what_was_given_is_checked_at_once(engine: Engine, async_engine: AsyncEngine, database_url: str):
    async def call() -> None: ...

    def hides() -> Any:
        return call()

    for factory in (sessionmaker(engine), async_sessionmaker(async_engine)):
        with pytest.raises(ConfigurationError, match="needs a call"):
            effects.once(factory, "k", on_unknown="skip")
        with pytest.raises(ConfigurationError, match="needs a key"):
            effects.once(factory, None, call, on_unknown="skip")
    for wrong in (Session(engine), engine, scoped_session(sessionmaker(engine))):
        with pytest.raises(ConfigurationError, match="takes a sessionmaker or an async_sessionmaker"):
            effects.once(wrong, "k", call, on_unknown="skip")
    for hidden in (call, hides):
        with pytest.raises(ConfigurationError, match="the call is async and the sessions are not"):
            effects.once(sessionmaker(engine), "k", hidden, on_unknown="skip")
    assert rows(database_url, effect) == []


@pytest.mark.parametrize("within", [None, "Send"])
def test_while_a_run_is_busy_another_one_is_told_when_to_come_back(engine: Engine, within: str | None):
    sessions = sessionmaker(engine)
    busy = Retry if within else InProgressElsewhere

    def first() -> None:
        handled = handling(message(), handler=within) if within else nullcontext()
        with handled, pytest.raises(busy, match=r"^effect 'k': another run is busy with it, for \d+\.\d s at") as told:
            effects.once(sessions, "k", int, on_unknown="skip")
        assert timedelta(0) < told.value.after <= LEASE

    assert effects.once(sessions, "k", first, on_unknown="skip").outcome == "made"


def test_each_run_is_counted_by_its_decision(engine: Engine):
    from tests.support.measured import measuring  # which needs OpenTelemetry's SDK

    def run(key: str, call: Callable[[], object], policy: Any = "skip") -> None:
        with suppress(TimeoutError, InProgressElsewhere):
            effects.once(sessionmaker(engine), key, call, on_unknown=policy)

    with measuring() as measured:
        run("made", lambda: run("made", int))
        run("made", int)
        for key, policy in (("skipped", "skip"), ("repeated", "repeat")):
            run(key, raising(TimeoutError()))
            run(key, int, policy)
        assert measured.of(EFFECTS, "decision") == {
            "made": 1, "busy": 1, "remembered": 1, "failed": 2, "skipped": 1, "repeated": 1
        }  # fmt: skip


def test_the_file_of_the_running_handler_is_refused(engine: Engine):
    refused = pytest.raises(ConfigurationError, match="SQLite has one writer at a time")
    with handling(message(), handler="Send", origin=Origin(Session(engine), "these")), refused:
        effects.once(sessionmaker(engine), "k", int, on_unknown="skip")


def test_a_plain_call_whose_result_is_to_be_awaited_may_have_been_made(engine: Engine):
    class Later:
        def __await__(self) -> Any:
            yield

    with pytest.raises(ConfigurationError, match="the call is async and the sessions are not"):
        effects.once(sessionmaker(engine), "k", Later, on_unknown="skip")
    assert effects.once(sessionmaker(engine), "k", int, on_unknown="skip") == Effect("skipped")


def test_sessions_that_have_an_engine_for_each_table_are_asked_for_the_one_of_effects(engine: Engine):
    assert effects.once(sessionmaker(binds={effect: engine}), "k", int, on_unknown="skip") == Effect("made", 0)


async def test_a_plain_call_that_an_async_caller_gave_was_made(async_engine: AsyncEngine):
    sessions = async_sessionmaker(async_engine)
    assert await effects.once(sessions, "k", lambda: 7, on_unknown="skip") == Effect("made", 7)


async def test_a_cancelled_run_says_so_before_it_ends(async_engine: AsyncEngine):
    started = asyncio.Event()

    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    sessions = async_sessionmaker(async_engine)
    running = asyncio.ensure_future(effects.once(sessions, "k", hang, on_unknown="skip"))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await effects.once(sessions, "k", hang, on_unknown="skip") == Effect("skipped")


async def test_a_run_that_is_thrown_away_leaves_its_lease(engine: Engine, async_engine: AsyncEngine):
    class Never:
        def __await__(self) -> Any:
            yield

    running = effects.once(async_sessionmaker(async_engine), "k", Never, on_unknown="skip")
    context = running.__await__()
    pending = next(context)
    while pending is not None:  # what the database is waited for
        await asyncio.wait([pending])
        pending = context.send(None)
    running.close()
    with engine.connect() as connection:
        found = connection.execute(select(effect)).one()
    assert (found.state, found.locked_until > found.started_at) == ("started", True)
