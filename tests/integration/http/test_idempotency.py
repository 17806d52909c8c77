"""The ledger on both databases: the request, its answer and its repetitions, at once."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, func, insert, select
from sqlalchemy.orm import Session

from outboxkit.http import ledger
from outboxkit.http.ledger import Fresh, Judgement
from tests.support.ledger_requests import (
    ASKED,
    CREATED,
    IN_STEPS,
    OTHER,
    begun,
    database_time,
    done,
    end_leases,
    expire,
    row,
)

EFFECTS = Table("effect", MetaData(), Column("id", Integer, primary_key=True), Column("what", String))
AT_ONCE = 50


@pytest.fixture
def many(database_url: str) -> Any:
    """An engine with a connection for each of them, where SQLite's wait for each other and never fail."""
    if database_url.startswith("sqlite"):
        made = create_engine(database_url, connect_args={"timeout": 60}, pool_size=AT_ONCE)
    else:
        made = create_engine(database_url, pool_size=AT_ONCE)
    EFFECTS.metadata.create_all(made)
    yield made
    made.dispose()


def effects(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(EFFECTS)).scalar_one()


def serve(engine: Engine, asked: dict[str, Any]) -> Judgement:
    """A request as an integration runs it."""
    with Session(engine) as session:
        outcome = ledger.begin(session, **asked)
        if isinstance(outcome, Fresh):
            session.execute(insert(EFFECTS).values(what=asked["key"]))
            ledger.complete(session, outcome, CREATED)
            session.commit()
        return outcome


def all_at_once(calls: list[Callable[[], Judgement]]) -> list[Judgement]:
    ready = Barrier(len(calls))

    def one(call: Callable[[], Judgement]) -> Judgement:
        ready.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def kinds(outcomes: list[Judgement]) -> Counter[str]:
    return Counter(type(outcome).__name__ for outcome in outcomes)


def test_every_payload_but_one_is_refused(many: Engine):
    asked = [ASKED | {"fingerprint": bytes([number]) * 32} for number in range(AT_ONCE)]
    outcomes = all_at_once([lambda each=each: serve(many, each) for each in asked])
    assert kinds(outcomes) == {"Fresh": 1, "Mismatch": AT_ONCE - 1}
    assert effects(many) == 1


def test_one_of_many_takes_over_what_has_expired(many: Engine):
    done(many)
    expire(many)
    outcomes = all_at_once([lambda: serve(many, OTHER)] * 20)
    assert kinds(outcomes)["Fresh"] == 1
    assert "Mismatch" not in kinds(outcomes)
    assert (effects(many), row(many).fingerprint) == (1, OTHER["fingerprint"])


def test_one_of_many_takes_over_what_has_lost_its_lease(many: Engine):
    begun(many, IN_STEPS)
    end_leases(many)
    outcomes = all_at_once([lambda: begun(many, IN_STEPS)] * 20)
    assert kinds(outcomes) == {"Fresh": 1, "InProgress": 19}


def test_the_clock_is_the_databases(engine: Engine):
    before = database_time(engine)
    done(engine, ASKED | {"retention": timedelta(hours=2)})
    found = row(engine)
    assert before <= found.created_at + timedelta(milliseconds=1)
    assert found.created_at <= database_time(engine)
    assert found.expires_at - found.created_at == timedelta(hours=2)
