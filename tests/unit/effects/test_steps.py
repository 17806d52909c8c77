"""The steps of a run, on SQLite; two runs that meet are in `tests/integration/effects/test_effects.py`."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from outboxkit.effects.record import Effect, EffectRun, begin_effect, new_run
from outboxkit.tables import effect

LEASE = timedelta(minutes=5)


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session, session.begin():
        yield session


def run(policy: str = "skip") -> EffectRun:
    return new_run("k", policy, LEASE, ())


def state(session: Session) -> str | None:
    return session.execute(select(effect.c.state)).scalar()


def test_a_handler_that_holds_the_inbox_row_waits_for_no_lease(session: Session):
    begin_effect(session, run())
    begun = begin_effect(session, replace(run(), alone=True))
    assert begun.effect == Effect("skipped")
    assert begun.unknown_since is not None
