"""Steps of a run: called once, kept, and the same for the first run and for the next."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from outboxkit.errors import ConfigurationError, EncodeError
from outboxkit.http.ledger import Fresh, Mismatch, release
from outboxkit.http.steps import RESULTS_LIMIT, Steps
from tests.support.ledger_requests import IN_STEPS, begun, end_leases, row

Sessions = async_sessionmaker[AsyncSession]


@pytest.fixture
async def sessions(sqlite_url: str) -> AsyncIterator[Sessions]:
    made = create_async_engine(sqlite_url.replace("sqlite:", "sqlite+aiosqlite:"))
    yield async_sessionmaker(made)
    await made.dispose()


@dataclass
class Charge:
    id: int
    amount: Decimal


class Outside:
    """A system that counts its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def call(self, name: str, result: Any = None) -> Callable[[], Awaitable[Any]]:
        async def called() -> Any:
            self.calls.append(name)
            if isinstance(result, Exception):
                raise result
            return result

        return called


async def test_the_next_run_goes_on_behind_what_is_finished(engine: Engine, sessions: Sessions):
    outside = Outside()
    steps = Steps(sessions, begun(engine, IN_STEPS))
    first = [await steps.step(name, outside.call(name, {"id": name})) for name in ("charge", "ship")]
    assert steps.finished == {"charge", "ship"}
    with pytest.raises(OSError, match="gone"):
        await steps.step("mail", outside.call("mail", OSError("gone")))
    end_leases(engine)
    again = Steps(sessions, begun(engine, IN_STEPS))
    assert again.finished == {"charge", "ship"}
    second = [await again.step(name, outside.call(name, {"id": "?"})) for name in ("charge", "ship")]
    assert first == second == [{"id": "charge"}, {"id": "ship"}]
    assert await again.step("mail", outside.call("mail", 7)) == 7
    assert outside.calls == ["charge", "ship", "mail", "mail"]


@pytest.mark.parametrize(
    ("result", "given_back"),
    [
        (None, None),
        ("Zoë\0", "Zoë\0"),
        ((1, [2.5, True]), [1, [2.5, True]]),
        (Charge(7, Decimal("1.10")), {"id": 7, "amount": "1.10"}),
        ({"a": {"b": [None]}}, {"a": {"b": [None]}}),
        (10**30, 10**30),
    ],
)
async def test_the_first_run_sees_what_the_next_one_will(
    engine: Engine, sessions: Sessions, result: object, given_back: object
):
    first = await Steps(sessions, begun(engine, IN_STEPS)).step("a", Outside().call("a", result))
    end_leases(engine)
    second = await Steps(sessions, begun(engine, IN_STEPS)).step("a", Outside().call("a", "never"))
    assert first == second == given_back
    assert type(first) is type(second)


async def test_a_record_lengthens_the_lease(engine: Engine, sessions: Sessions):
    steps = Steps(sessions, begun(engine, IN_STEPS))
    end_leases(engine)
    ended = row(engine).locked_until
    await steps.step("a", Outside().call("a"))
    assert row(engine).locked_until > ended
    assert row(engine).locked_until - ended >= IN_STEPS["lease"]


async def test_steps_side_by_side_are_all_kept(engine: Engine, sessions: Sessions):
    steps = Steps(sessions, begun(engine, IN_STEPS))
    outside = Outside()
    names = [f"s{number}" for number in range(8)]
    await asyncio.gather(*(steps.step(name, outside.call(name, name)) for name in names))
    end_leases(engine)
    again = Steps(sessions, begun(engine, IN_STEPS))
    assert [await again.step(name, outside.call(name)) for name in names] == names
    assert sorted(outside.calls) == names


async def test_a_name_is_for_one_step_of_a_run(engine: Engine, sessions: Sessions):
    outside = Outside()
    steps = Steps(sessions, begun(engine, IN_STEPS))
    await steps.step("a", outside.call("a"))
    for name, error in (("a", ConfigurationError), ("", ValueError), ("x" * 256, ValueError), ("a\0", ValueError)):
        with pytest.raises(error, match="step"):
            await steps.step(name, outside.call(name))
    assert outside.calls == ["a"]


@pytest.mark.parametrize("result", [object(), float("nan"), {1: {2, object()}}, "\ud800"])
async def test_a_result_without_a_json_form_is_refused(engine: Engine, sessions: Sessions, result: object):
    with pytest.raises(EncodeError, match="step 'a' was called, but its result cannot be kept: "):
        await Steps(sessions, begun(engine, IN_STEPS)).step("a", Outside().call("a", result))
    assert row(engine).steps is None


async def test_all_results_of_a_run_have_one_limit(engine: Engine, sessions: Sessions):
    steps = Steps(sessions, begun(engine, IN_STEPS))
    await steps.step("a", Outside().call("a", "x" * (RESULTS_LIMIT - 100)))
    with pytest.raises(EncodeError, match=rf"step 'b' was called, but .* at most {RESULTS_LIMIT} are accepted"):
        await steps.step("b", Outside().call("b", "y" * 100))
    assert await steps.step("c", Outside().call("c", "z")) == "z"


async def test_the_key_of_a_step_is_the_same_in_every_run_and_for_nothing_else(engine: Engine, sessions: Sessions):
    first = begun(engine, IN_STEPS)
    end_leases(engine)
    second = begun(engine, IN_STEPS)
    assert first.token != second.token
    assert Steps(sessions, first).key("charge") == Steps(sessions, second).key("charge")
    others = [
        begun(engine, IN_STEPS | changed)
        for changed in ({"key": "k-2"}, {"principal": "bob"}, {"principal": None}, {"scope": "POST /payments"})
    ]
    keys = {Steps(sessions, fresh).key("charge") for fresh in [first, *others]}
    assert len(keys | {Steps(sessions, first).key("mail")}) == 6


async def test_another_request_under_a_key_that_was_forgotten_has_other_keys_outside(
    engine: Engine, sessions: Sessions
):
    """The first may have made its call; the answer to that must not be taken for the answer to this."""
    first = begun(engine, IN_STEPS)
    assert isinstance(first, Fresh)
    with Session(engine) as session, session.begin():
        release(session, first, forget=True)
    second, same = (begun(engine, IN_STEPS | changed) for changed in ({"fingerprint": b"b" * 32}, {}))
    assert isinstance(second, Fresh)
    assert same == Mismatch()
    assert Steps(sessions, first).key("charge") != Steps(sessions, second).key("charge")
    with Session(engine) as session, session.begin():
        release(session, second, forget=True)
    again = begun(engine, IN_STEPS)
    assert isinstance(again, Fresh)
    assert Steps(sessions, first).key("charge") == Steps(sessions, again).key("charge")


async def test_a_run_without_a_lease_has_no_steps(engine: Engine, sessions: Sessions):
    fresh = begun(engine, IN_STEPS)
    with pytest.raises(ConfigurationError, match="with a lease"):
        Steps(sessions, Fresh(fresh.scope, fresh.principal, fresh.key, fresh.token, fresh.expires_at))
