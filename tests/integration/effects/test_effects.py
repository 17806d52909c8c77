"""Runs of one effect that meet: threads on real databases."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, select, update
from sqlalchemy.orm import sessionmaker

from outboxkit import effects
from outboxkit.effects import Effect
from outboxkit.errors import InProgressElsewhere, LeaseLost
from outboxkit.tables import effect
from tests.support.polling import eventually

MANY = 20
SHORT = timedelta(milliseconds=300)


@pytest.fixture
def sessions(database_url: str) -> Iterator[sessionmaker[Any]]:
    options = {"connect_args": {"timeout": 60}} if database_url.startswith("sqlite") else {"pool_size": MANY}
    engine = create_engine(database_url, **options)
    yield sessionmaker(engine)
    engine.dispose()


class Call:
    """A call that counts how often it is made, and waits until it is let go."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.may_end = threading.Event()

    def __call__(self) -> int:
        self.made.append(1)
        assert self.may_end.wait(60)
        return len(self.made)


def outcome(run: Callable[[], Effect]) -> str:
    try:
        return run().outcome
    except (InProgressElsewhere, LeaseLost) as error:
        return type(error).__name__


def state(engine: Engine) -> str | None:
    with engine.connect() as connection:
        return connection.execute(select(effect.c.state)).scalar()


def test_of_many_runs_at_once_one_makes_the_call(sessions: sessionmaker[Any]):
    call, together = Call(), threading.Barrier(MANY)

    def run() -> str:
        together.wait()
        return outcome(lambda: effects.once(sessions, "k", call, on_unknown="repeat"))

    with ThreadPoolExecutor(MANY) as pool:
        running = [pool.submit(run) for _ in range(MANY)]
        eventually(lambda: sum(one.done() for one in running), lambda done: done == MANY - 1)
        call.may_end.set()
    assert Counter(one.result() for one in running) == {"made": 1, "InProgressElsewhere": MANY - 1}
    assert outcome(lambda: effects.once(sessions, "k", call, on_unknown="repeat")) == "remembered"
    assert len(call.made) == 1


@pytest.mark.parametrize(
    ("policy", "outcomes", "calls"),
    [("repeat", {"repeated": 1, "InProgressElsewhere": MANY - 1}, 1), ("skip", {"skipped": MANY}, 0)],
)
def test_of_many_runs_that_find_it_unknown_one_decides(
    sessions: sessionmaker[Any], engine: Engine, policy: Any, outcomes: dict[str, int], calls: int
):
    def fail() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        effects.once(sessions, "k", fail, on_unknown=policy)
    call, together = Call(), threading.Barrier(MANY)

    def run() -> str:
        together.wait()
        return outcome(lambda: effects.once(sessions, "k", call, on_unknown=policy))

    with ThreadPoolExecutor(MANY) as pool:
        running = [pool.submit(run) for _ in range(MANY)]
        eventually(lambda: sum(one.done() for one in running), lambda done: done == MANY - calls)
        call.may_end.set()
    assert Counter(one.result() for one in running) == outcomes
    assert len(call.made) == calls


@pytest.mark.parametrize(("policy", "decided"), [("skip", "skipped"), ("repeat", "repeated")])
def test_a_run_that_outlives_its_lease_records_nothing(
    sessions: sessionmaker[Any], engine: Engine, policy: Any, decided: str
):
    slow = Call()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(outcome, lambda: effects.once(sessions, "k", slow, on_unknown=policy, lease=SHORT))
        eventually(lambda: slow.made)
        second = eventually(
            lambda: outcome(lambda: effects.once(sessions, "k", lambda: "second", on_unknown=policy)),
            lambda found: found != "InProgressElsewhere",
        )
        slow.may_end.set()
    assert (second, first.result()) == (decided, "LeaseLost")
    assert state(engine) == decided
    known = effects.once(sessions, "k", slow, on_unknown=policy)
    assert known == (Effect("skipped") if policy == "skip" else Effect("remembered", "second"))


def test_a_run_that_outlives_its_lease_records_nothing_while_the_next_one_makes_its_call(sessions: sessionmaker[Any]):
    slow, following = Call(), Call()

    def take_over() -> str:
        return outcome(lambda: effects.once(sessions, "k", following, on_unknown="repeat"))

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(outcome, lambda: effects.once(sessions, "k", slow, on_unknown="repeat", lease=SHORT))
        eventually(lambda: slow.made)
        second = pool.submit(eventually, take_over, lambda found: found != "InProgressElsewhere")
        eventually(lambda: following.made)
        slow.may_end.set()
        ended = first.result()
        following.may_end.set()
    assert (ended, second.result()) == ("LeaseLost", "repeated")


def test_the_lease_is_the_databases_time_and_not_the_callers(sessions: sessionmaker[Any], engine: Engine):
    """A row whose lease is over by the database's clock alone is unknown, whatever time it is here."""
    call = Call()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(outcome, lambda: effects.once(sessions, "k", call, on_unknown="skip"))
        eventually(lambda: call.made)
        with pytest.raises(InProgressElsewhere) as raised:
            effects.once(sessions, "k", call, on_unknown="skip")
        assert timedelta(0) < raised.value.after <= timedelta(minutes=1)
        with engine.begin() as connection:
            connection.execute(update(effect).values(locked_until=effect.c.started_at))
        assert outcome(lambda: effects.once(sessions, "k", call, on_unknown="skip")) == "skipped"
        call.may_end.set()
    assert first.result() == "LeaseLost"


def test_two_effects_recorded_at_once_end_each_other_under_no_default_isolation(
    database_url: str, sessions: sessionmaker[Any], engine: Engine
):
    """Both have read the same small table when they commit: under SERIALIZABLE one of them would be refused."""
    strict = create_engine(database_url, isolation_level="SERIALIZABLE")
    together, commits = threading.Barrier(2, timeout=30), threading.local()
    factory = sessionmaker(strict)

    @event.listens_for(factory, "before_commit")
    def wait_for_the_other_record(session: Any) -> None:
        commits.count = getattr(commits, "count", 0) + 1
        if commits.count == 2 and strict.dialect.name == "postgresql":  # SQLite has one writer at a time
            together.wait()

    def run(key: str) -> str:
        return effects.once(factory, key, lambda: key, on_unknown="skip").outcome

    effects.once(sessions, "first", lambda: 1, on_unknown="skip")
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, ["a", "b"])) == ["made", "made"]
    strict.dispose()
