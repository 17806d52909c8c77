"""The steps of a run, on SQLite; two runs that meet are in `tests/integration/effects/test_effects.py`."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from outboxkit import Retry, statements
from outboxkit.effects.record import Begun, Effect, EffectRun, begin_effect, give_up, new_run, record
from outboxkit.errors import InProgressElsewhere, LeaseLost
from outboxkit.message import handling
from outboxkit.tables import effect
from tests.unit.shop import message

LEASE = timedelta(minutes=5)


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session, session.begin():
        yield session


def run(policy: str = "skip") -> EffectRun:
    return new_run("k", policy, LEASE, ())


def state(session: Session) -> str | None:
    return session.execute(select(effect.c.state)).scalar()


def fail(session: Session, policy: str = "skip") -> None:
    """A run whose call may have been made."""
    first = run(policy)
    give_up(session, first, begin_effect(session, first), TimeoutError())


def test_a_new_effect_is_to_be_made_and_then_is_known(session: Session):
    first = run()
    begun = begin_effect(session, first)
    assert begun == Begun()
    record(session, first, begun, b"[7]")
    assert state(session) == "done"
    assert begin_effect(session, run()) == Begun(Effect("remembered", [7]))


def test_while_it_is_made_another_run_is_told_for_how_long(session: Session):
    begin_effect(session, run())
    with pytest.raises(InProgressElsewhere, match="'k': another run is busy with it") as raised:
        begin_effect(session, run())
    assert timedelta(minutes=4) < raised.value.after <= LEASE


def test_inside_a_handler_the_message_comes_back_then(session: Session):
    begin_effect(session, run())
    with handling(message(), handler="Send"):
        within = run()
    with pytest.raises(Retry, match="'k': another run is busy with it") as raised:
        begin_effect(session, within)
    assert raised.value.after is not None
    assert timedelta(minutes=4) < raised.value.after <= LEASE


def test_a_handler_that_holds_the_inbox_row_waits_for_no_lease(session: Session):
    begin_effect(session, run())
    begun = begin_effect(session, replace(run(), alone=True))
    assert begun.effect == Effect("skipped")
    assert begun.unknown_since is not None


def test_what_failed_for_certain_was_never_begun(session: Session):
    first = run()
    give_up(session, first, begin_effect(session, first), ConnectionRefusedError())
    assert state(session) is None
    assert begin_effect(session, run()) == Begun()


def test_an_unknown_one_is_skipped_and_stays_so(session: Session):
    fail(session)
    begun = begin_effect(session, run())
    assert begun.effect == Effect("skipped")
    assert begun.unknown_since is not None
    assert begin_effect(session, run("repeat")) == Begun(Effect("skipped"))


def test_an_unknown_one_is_repeated_and_says_so(session: Session):
    fail(session)
    second = run("repeat")
    begun = begin_effect(session, second)
    assert begun.effect is None
    record(session, second, begun, b"7")
    assert state(session) == "repeated"
    assert begin_effect(session, run()) == Begun(Effect("remembered", 7))


def test_after_a_repetition_that_failed_for_certain_the_first_is_still_unknown(session: Session):
    fail(session)
    second = run("repeat")
    give_up(session, second, begin_effect(session, second), ValueError())
    assert state(session) == "started"
    assert begin_effect(session, run("skip")).effect == Effect("skipped")


@pytest.mark.parametrize("policy", ["skip", "repeat"])
def test_a_run_that_was_taken_over_records_nothing(session: Session, policy: str):
    slow = run()
    begun = begin_effect(session, slow)
    session.execute(statements.effects.end_effect_lease("sqlite"), {"at_key": "k", "at_token": slow.token})
    begin_effect(session, run(policy))
    before = session.execute(select(effect)).one()
    with pytest.raises(LeaseLost, match="'k': the call was made, but it took longer than its lease of 0:05:00"):
        record(session, slow, begun, b"7")
    give_up(session, slow, begun, ValueError())
    assert session.execute(select(effect)).one() == before
