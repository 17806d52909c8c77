"""The fence of a transaction in a thread: whichever of its ends comes first counts, and a later one changes nothing."""

import socket
from types import SimpleNamespace

import pytest
from sqlalchemy import Engine, event, insert
from sqlalchemy.orm import Session, sessionmaker

from outboxkit.consumer import threads
from outboxkit.consumer.threads import FencedRun
from tests.unit.shop import count, effects


def work(session: Session) -> str:
    session.execute(insert(effects).values(what="done"))
    return "result"


@pytest.fixture
async def run(engine: Engine) -> FencedRun[str]:
    return FencedRun(work, sessionmaker(engine))


async def test_the_timeout_of_a_handler_that_has_ended_gives_up_nothing(run: FencedRun[str], database_url: str):
    run._expire(object(), "it took too long")
    assert run.transact() == ("result", None)
    assert count(database_url, effects) == 1


async def test_what_was_given_up_commits_nothing_however_often_it_is(run: FencedRun[str], database_url: str):
    run.give_up()
    refusal = run._refusal
    run.give_up()
    run._expire(run._limited, "it took too long")
    assert (run._refusal, run._timer) == (refusal, None)
    assert run.transact() == (None, refusal)
    assert count(database_url, effects) == 0


async def test_what_commits_already_cannot_be_given_up(run: FencedRun[str]):
    run._step(None, commits=True)
    run.give_up()
    assert run._refusal is None


async def test_a_failed_run_lets_go_of_its_connection_before_another_one_may_have_it(engine: Engine):
    drivers: list[object] = []

    def fails(session: Session) -> None:
        work(session)
        raise ValueError("no")

    run = FencedRun(fails, sessionmaker(engine))
    event.listen(engine, "checkin", lambda *_: drivers.append(run._driver))
    assert str(run.transact()[1]) == "no"
    assert drivers == [None]


async def test_the_first_ending_counts(run: FencedRun[str], engine: Engine):
    run.end(("result", None))
    run._leave("it took too long")
    assert run.done.result() == ("result", None)
    other = FencedRun(work, sessionmaker(engine))
    other._leave("it took too long")
    other.end(("result", None))
    result, error = other.done.result()
    assert (result, str(error)) == (None, "it took too long; its thread still runs, and can commit nothing")
    assert other.has_ended


async def test_a_run_without_a_connection_has_nothing_to_hang_up(run: FencedRun[str]):
    run._hang_up()
    assert not run._cut


def test_a_driver_is_cancelled_in_its_own_way():
    asked: list[str] = []
    threads._cancel(SimpleNamespace(cancel_safe=lambda timeout: asked.append(f"within {timeout:g} s")))
    threads._cancel(SimpleNamespace(interrupt=lambda: asked.append("interrupt")))
    threads._cancel(SimpleNamespace(cancel=lambda: asked.append("cancel")))
    assert asked == ["within 2 s", "interrupt", "cancel"]


@pytest.mark.parametrize("closed", [False, True])
def test_only_a_connection_that_is_open_loses_its_socket(closed: bool):
    """The number of a closed one may be another's by now."""
    ours, peer = socket.socketpair()
    with ours, peer:
        threads._shut(SimpleNamespace(fileno=ours.fileno, closed=closed))
        if closed:
            ours.sendall(b"alive")
        assert peer.recv(10) == (b"alive" if closed else b"")
