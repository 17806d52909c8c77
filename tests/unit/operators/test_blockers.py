"""Who blocks outboxkit's sessions: the roots of the chains, and what is said of each."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from outboxkit.operators.blockers import PATIENCE, Blocker, blocker_of, roots_of

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
CONSUMER = "outboxkit consumer billing"


def row(pid: int, *blockers: int, name: str | None = CONSUMER, waits: timedelta = PATIENCE) -> Any:
    return SimpleNamespace(
        pid=pid,
        blockers=list(blockers),
        backend=pid or None,
        name=name,
        role="ann",
        address=None,
        state="active" if blockers else "idle in transaction",
        query_start=NOW - waits,
        since=NOW - timedelta(minutes=9),
    )


def roots(*rows: Any) -> list[Blocker]:
    return list(roots_of(rows, NOW, patience=PATIENCE))


def waiting(blocker: Blocker) -> list[int]:
    return [each.pid for each in blocker.waiting]


def test_a_chain_ends_at_the_session_that_waits_for_nobody():
    (root,) = roots(row(1, 9), row(2, 1, 9), row(3, 2), row(9, name="psql"))
    assert (root.pid, waiting(root)) == (9, [1, 2, 3])
    assert (blocker_of([root], 3), blocker_of([root], 9)) == (root, None)


def test_a_session_in_the_middle_may_be_anybody_s():
    (root,) = roots(row(1, 5), row(5, 9, name="web"), row(9, name="psql"))
    assert (root.pid, waiting(root)) == (9, [1])


def test_a_session_that_waits_for_two_waits_for_both():
    assert [
        (each.pid, waiting(each)) for each in roots(row(1, 8, 9), row(2, 9), row(8, name="a"), row(9, name="b"))
    ] == [
        (9, [1, 2]),
        (8, [1]),
    ]


def test_a_wait_that_is_short_a_circle_and_a_session_that_has_gone_are_none():
    assert roots(row(1, 9, waits=PATIENCE - timedelta(seconds=1)), row(9, name="psql")) == []
    assert roots(row(1, 2), row(2, 1)) == []
    gone = row(9, name=None)
    gone.backend = None
    assert roots(row(1, 9), gone) == []


def test_one_line_names_the_culprit_and_ends_it():
    other = row(3, 9, name="outboxkit relay")
    (root,) = roots(row(1, 9), row(2, 9), other, row(9, name="psql"))
    assert str(root) == (
        "2 sessions of consumer billing and 1 session of relay wait for session 9 (psql), idle in transaction since "
        "2026-03-01 11:51:00 UTC"
    )
    assert root.cure == "end that one: SELECT pg_terminate_backend(9)"
    assert root.blocks_queue("billing")
    assert not root.blocks_queue("mail")


def test_a_handler_and_a_prepared_transaction_have_cures_of_their_own():
    (handler,) = roots(row(1, 9), row(9))
    assert handler.cure.startswith("if its handler hangs, restart that consumer")
    assert not handler.is_idle
    (prepared,) = roots(row(1, 0), row(0, name=None))
    assert str(prepared).endswith(
        "1 session of consumer billing waits for a prepared transaction that is neither committed nor rolled back"
    )
    assert "FROM pg_prepared_xacts" in prepared.cure
