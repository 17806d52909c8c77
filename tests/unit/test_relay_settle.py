"""`settle`: from the broker's answers to what becomes of the rows, and nothing else."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit.brokers import Receipt, Verdict
from outboxkit.relay import Claimed, settle
from outboxkit.retry import Backoff
from tests.unit.shop import NOW, message

BACKOFF = Backoff(base=timedelta(seconds=1), cap=timedelta(seconds=60), jitter=lambda: 1.0)
ANSWERS = st.lists(
    st.tuples(st.builds(Receipt, st.sampled_from(Verdict), st.none() | st.text(max_size=9)), st.integers(0, 10**6)),
    max_size=20,
)


def claimed(answers: list[tuple[Receipt, int]]) -> list[Claimed]:
    return [
        Claimed(position, attempts, message(id=f"m-{position}")) for position, (_, attempts) in enumerate(answers, 1)
    ]


@given(ANSWERS)
def test_only_a_confirm_lets_a_row_go(answers: list[tuple[Receipt, int]]):
    receipts = [receipt for receipt, _ in answers]
    settlement = settle(claimed(answers), receipts, now=NOW, backoff=BACKOFF)
    confirmed = [position for position, receipt in enumerate(receipts, 1) if receipt.verdict is Verdict.CONFIRMED]
    assert settlement.published == confirmed


@given(ANSWERS)
def test_every_row_is_settled_once(answers: list[tuple[Receipt, int]]):
    receipts = [receipt for receipt, _ in answers]
    settlement = settle(claimed(answers), receipts, now=NOW, backoff=BACKOFF)
    failed = [failure.position for failure in settlement.failed]
    assert len(settlement.published) + len(failed) + len(settlement.unknown) == len(answers)
    assert not set(settlement.published) & set(failed)


@given(ANSWERS)
def test_only_what_the_broker_refused_counts_an_attempt(answers: list[tuple[Receipt, int]]):
    receipts = [receipt for receipt, _ in answers]
    settlement = settle(claimed(answers), receipts, now=NOW, backoff=BACKOFF)
    refused = [
        (position, attempts + 1)
        for position, (receipt, attempts) in enumerate(answers, 1)
        if receipt.verdict in (Verdict.UNROUTABLE, Verdict.REJECTED)
    ]
    assert [(failure.position, failure.attempts) for failure in settlement.failed] == refused
    for failure in settlement.failed:
        assert failure.due_at == NOW + BACKOFF.after(failure.attempts) > NOW
        assert failure.message.id == f"m-{failure.position}"
        assert failure.reason.startswith(("unroutable: ", "rejected: "))


def test_a_missing_answer_is_an_error_and_settles_nothing():
    rows = [Claimed(1, 0, message()), Claimed(2, 0, message())]
    with pytest.raises(ValueError, match="shorter"):
        settle(rows, [Receipt(Verdict.CONFIRMED)], now=NOW, backoff=BACKOFF)
    with pytest.raises(ValueError, match="longer"):
        settle(rows[:1], [Receipt(Verdict.CONFIRMED)] * 2, now=NOW, backoff=BACKOFF)


def test_an_unanswered_row_always_has_a_reason():
    settlement = settle([Claimed(1, 0, message())], [Receipt(Verdict.UNKNOWN)], now=NOW, backoff=BACKOFF)
    assert settlement.unknown == ["the broker did not answer"]
