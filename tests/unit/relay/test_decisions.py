"""`settle`: from the broker's answers to what becomes of the rows, and nothing else."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit.brokers import Answer, Receipt, Verdict
from outboxkit.relay.decisions import (
    BACKOFFS,
    LARGEST_ATTEMPTS,
    TOO_LATE,
    Reason,
    RelayPolicy,
    Settlement,
    settlement_of,
)
from outboxkit.relay.order import Batch, ClaimedRow
from outboxkit.retry import Backoff
from outboxkit.tables import PARKED
from tests.unit.shop import NOW, message

SECOND = timedelta(seconds=1)
SLOW, FAST = Backoff(base=60 * SECOND, jitter=lambda: 1.0), Backoff(base=SECOND, jitter=lambda: 1.0)
DELAYS = {Verdict.UNROUTABLE: SLOW, Verdict.REJECTED: FAST, Verdict.POSTPONED: FAST}
FAILURES = (Verdict.UNROUTABLE, Verdict.REJECTED)
POLICIES = st.builds(
    RelayPolicy,
    max_attempts=st.integers(1, 4),
    unroutable=st.sampled_from(["bury", "discard"]),
    dead_key=st.sampled_from(["park", "continue"]),
    backoffs=st.just(DELAYS),
)
ANSWERED = st.tuples(
    st.builds(
        Receipt,
        st.sampled_from(Verdict),
        st.none() | st.text(max_size=9),
        st.none() | st.timedeltas(timedelta(milliseconds=1), timedelta(minutes=2)),
        st.booleans(),
    ),
    st.integers(0, 4),
    st.sampled_from([None, "a", "b"]),
    st.booleans(),
)
Answered = tuple[Receipt, int, str | None, bool]


def claimed(answers: Sequence[Answered]) -> list[ClaimedRow]:
    return [
        ClaimedRow(position, attempts, message(id=f"m-{position}", key=key), discard_unroutable=discard)
        for position, (_, attempts, key, discard) in enumerate(answers, 1)
    ]


def sent(rows: Sequence[ClaimedRow]) -> Batch:
    no_connection: Any = None
    return Batch(no_connection, rows, send=list(rows))


def settled(answers: Sequence[Answered], policy: RelayPolicy) -> tuple[list[ClaimedRow], Settlement]:
    rows = claimed(answers)
    return rows, settlement_of(sent(rows), [answer[0] for answer in answers], now=NOW, policy=policy)


def answers(*verdicts: Verdict, attempts: int = 0) -> list[Answered]:
    """One key's answers."""
    return [(Receipt(verdict, "why"), attempts, "k", False) for verdict in verdicts]


def fates(settlement: Settlement) -> Counter[int]:
    """How often each position is in a list."""
    waiting = [position for positions in settlement.waiting.values() for position in positions]
    lost = [row.position for row in [*settlement.failed, *settlement.dead]]
    return Counter([*settlement.published, *settlement.discarded, *settlement.parked, *waiting, *lost])


@given(st.lists(ANSWERED, max_size=20), POLICIES)
def test_only_a_confirm_lets_a_row_go_as_published(given_: list[Answered], policy: RelayPolicy):
    rows, settlement = settled(given_, policy)
    confirmed = [
        row.position for row, (receipt, *_) in zip(rows, given_, strict=True) if receipt.verdict == "confirmed"
    ]
    assert settlement.published == confirmed


@given(st.lists(ANSWERED, max_size=20), POLICIES)
def test_every_row_has_one_fate_at_most_and_is_otherwise_as_it_was(given_: list[Answered], policy: RelayPolicy):
    rows, settlement = settled(given_, policy)
    found = fates(settlement)
    assert set(found.values()) <= {1}
    for row, (receipt, *_) in zip(rows, given_, strict=True):
        if receipt.verdict is Verdict.UNKNOWN:
            assert row.position not in found
        elif receipt.verdict is not Verdict.NOT_SENT:
            assert row.position in found
    assert len(settlement.unknown) == sum(receipt.verdict is Verdict.UNKNOWN for receipt, *_ in given_)
    assert settlement.answered is any(
        receipt.verdict not in (Verdict.UNKNOWN, Verdict.NOT_SENT) for receipt, *_ in given_
    )


@given(st.lists(ANSWERED, max_size=20), POLICIES)
def test_only_what_the_broker_refused_counts_an_attempt_until_there_are_too_many(
    given_: list[Answered], policy: RelayPolicy
):
    rows, settlement = settled(given_, policy)
    failed, dead = ({row.position: row for row in rows_} for rows_ in (settlement.failed, settlement.dead))
    for row, (receipt, attempts, key, discard) in zip(rows, given_, strict=True):
        unwanted = receipt.verdict is Verdict.UNROUTABLE and (discard or policy.unroutable == "discard")
        counts = receipt.verdict in FAILURES and not unwanted
        postponed = receipt.verdict is Verdict.POSTPONED
        hopeless = receipt.final and receipt.verdict is Verdict.REJECTED
        too_many = attempts + 1 >= policy.max_attempts or hopeless
        assert (row.position in settlement.discarded) is unwanted
        assert (row.position in failed) is (postponed or (counts and not too_many))
        assert (row.position in dead) is (counts and too_many)
        if found := failed.get(row.position):
            assert (found.attempts, found.failures) == (attempts + (not postponed), not postponed)
            usual = DELAYS[receipt.verdict].after(attempts + 1)
            asked = receipt.after or usual
            assert found.due_at == NOW + (asked if postponed else max(asked, usual)) > NOW
            assert (found.message, found.reason) == (row.message, f"{receipt.verdict}: {receipt.reason}")
        if gone := dead.get(row.position):
            rejected = receipt.verdict is Verdict.REJECTED
            assert (gone.failures, gone.message) == (1, row.message)
            assert gone.reason is (Reason.REJECTED if rejected else Reason.UNROUTABLE)
            assert gone.parked is (rejected and key is not None and policy.dead_key == "park")


@given(st.lists(ANSWERED, max_size=20), POLICIES)
def test_a_key_is_stuck_from_its_first_row_that_stays(given_: list[Answered], policy: RelayPolicy):
    rows, settlement = settled(given_, policy)
    out_of_the_way = {*settlement.published, *settlement.discarded} | {
        row.position for row in settlement.dead if not row.parked
    }
    stay = {row.message.key for row in rows if row.position not in out_of_the_way} - {None}
    assert settlement.blocked_until.keys() == stay
    for key, until in settlement.blocked_until.items():
        first = next(row for row in rows if row.message.key == key and row.position not in out_of_the_way)
        due = {row.position: row.due_at for row in settlement.failed} | {
            row.position: PARKED for row in settlement.dead
        }
        assert until == due.get(first.position)


@pytest.mark.parametrize(
    ("first", "attempts", "waiting", "parked"),
    [
        (Verdict.UNROUTABLE, 0, {NOW + 60 * SECOND: [2, 3]}, []),
        (Verdict.REJECTED, 2, {NOW + 4 * SECOND: [2, 3]}, []),
        (Verdict.REJECTED, 9, {}, [2, 3]),
        (Verdict.UNROUTABLE, 9, {}, []),
        (Verdict.UNKNOWN, 0, {}, []),
    ],
    ids=["behind a retry", "behind a later retry", "behind a parked one", "behind a dead one", "behind an unknown one"],
)
def test_what_was_held_back_waits_as_long_as_what_it_stands_behind(first, attempts, waiting, parked):
    given_ = answers(first, Verdict.NOT_SENT, Verdict.NOT_SENT, attempts=attempts)
    _, settlement = settled(given_, RelayPolicy(backoffs=DELAYS))
    assert (settlement.waiting, settlement.parked) == (waiting, parked)


def test_an_unanswered_row_always_has_a_reason():
    _, settlement = settled([(Receipt(Verdict.UNKNOWN), 0, None, False)], RelayPolicy())
    assert settlement.unknown == ["the broker did not answer"]


def test_what_was_decided_before_is_taken_over():
    soon = NOW + SECOND
    late = [ClaimedRow(position, 3, message(key="k"), expires_at=NOW) for position in (8, 9)]
    failed = [ClaimedRow(1, 0, message(key="f")), ClaimedRow(2, 0, message(key="f"))]
    batch = sent(failed)
    batch.expired, batch.waiting, batch.parked, batch.blocked_rows = late, {soon: [3], NOW: [4]}, [5], Counter("k")
    policy = RelayPolicy(backoffs={Verdict.REJECTED: Backoff(base=SECOND, jitter=lambda: 1.0)})
    settlement = settlement_of(batch, [Receipt(Verdict.REJECTED), Receipt(Verdict.NOT_SENT)], now=NOW, policy=policy)
    assert settlement.waiting == {soon: [2, 3], NOW: [4]}
    assert settlement.parked == [5]
    assert [(dead.position, dead.message, dead.reason, dead.error) for dead in settlement.dead] == [
        (8, late[0].message, Reason.EXPIRED, TOO_LATE),
        (9, late[1].message, Reason.EXPIRED, TOO_LATE),
    ]
    assert {(dead.failures, dead.parked) for dead in settlement.dead} == {(0, False)}
    assert settlement.blocked_until == {"f": soon}, "the other keys go on"


@pytest.mark.parametrize("verdict", FAILURES)
def test_every_failure_has_a_backoff_that_never_brings_it_straight_back(verdict: Verdict):
    assert RelayPolicy().backoffs is BACKOFFS
    assert min(BACKOFFS[verdict].after(failures) for failures in (1, 2, 10, 1000)) >= timedelta(milliseconds=100)
    assert max(BACKOFFS[verdict].after(failures) for failures in (1, 2, 10, 1000)) <= 60 * SECOND


def test_what_was_replayed_to_a_queue_that_is_gone_is_never_discarded():
    row = ClaimedRow(1, 0, message(id="m-1", queue="billing"), discard_unroutable=True)
    found = settlement_of(
        sent([row]), [Receipt(FAILURES[0])], now=NOW, policy=RelayPolicy(max_attempts=1, unroutable="discard")
    )
    assert not found.discarded
    assert [dead.position for dead in found.dead] == [1]


@pytest.mark.parametrize(("attempts", "failures"), [(LARGEST_ATTEMPTS - 1, 1), (LARGEST_ATTEMPTS, 0)])
def test_attempts_grow_to_what_their_column_holds(attempts: int, failures: int):
    _, found = settled([(Receipt(Verdict.REJECTED, "no"), attempts, None, False)], RelayPolicy())
    assert [row.failures for row in found.dead] == [failures]


def test_a_kind_of_failure_without_a_backoff_has_the_built_in_one():
    _, found = settled([(Receipt(Verdict.POSTPONED), 0, None, False)], RelayPolicy(backoffs={}))
    assert NOW + SECOND <= found.failed[0].due_at <= NOW + 10 * SECOND


WANTED = {"reply": "CardCharged"}


def test_an_answer_becomes_a_reply_where_one_is_wanted():
    answer = Answer(b'{"ok":1}')
    rows = [
        ClaimedRow(1, 0, message(id="a"), reply="CardCharged"),
        ClaimedRow(2, 0, message(id="b")),
        claimed_wanting("c"),
    ]
    found = settlement_of(sent(rows), [Receipt(Verdict.CONFIRMED, answer=answer)] * 3, now=NOW, policy=RelayPolicy())
    assert found.published == [1, 2, 3]
    assert [(reply.at_position, reply.message.causation_id, reply.message.payload) for reply in found.replies] == [
        (1, "a", answer.payload),
        (3, "c", answer.payload),
    ]
    assert {reply.message.created_at for reply in found.replies} == {NOW}


def claimed_wanting(id_: str, position: int = 3) -> ClaimedRow:
    return ClaimedRow(position, 0, message(id=id_, key="k"), **WANTED)


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.CONFIRMED])
def test_nothing_but_a_confirm_has_a_reply(verdict: Verdict):
    receipt = Receipt(verdict, "why", answer=Answer(b"{}"))
    assert settlement_of(sent([claimed_wanting("a")]), [receipt], now=NOW, policy=RelayPolicy()).replies == []


def test_an_answer_that_could_not_be_kept_is_for_an_operator_where_it_is_wanted():
    receipt = Receipt(Verdict.CONFIRMED, "the answer is longer than 9 bytes")
    rows = [ClaimedRow(1, 0, message(id="a")), claimed_wanting("b"), ClaimedRow(4, 0, message(id="c"))]
    found = settlement_of(sent(rows), [receipt] * 3, now=NOW, policy=RelayPolicy())
    assert (found.published, found.replies) == ([1, 4], []), "those behind it are published, too"
    assert [(row.position, row.reason, row.error, row.parked) for row in found.dead] == [
        (3, Reason.REJECTED, "confirmed: the answer is longer than 9 bytes", True)
    ]
