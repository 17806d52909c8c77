"""What becomes of a message: decided from what happened alone."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError

from outboxkit import BrokerUnavailable, DecodeError, Outcome, Reject, Retry, codec, ids
from outboxkit.brokers import Malformed
from outboxkit.consumer import Decision, Policy, decide
from outboxkit.consumer import decision as decisions
from outboxkit.tables import dead_letter
from tests.unit.shop import NOW, message

ATTEMPTS = st.integers(1, 100)
FAILED = Decision(Outcome.DEAD, "failed", "ValueError: boom")


@given(ATTEMPTS, ATTEMPTS)
def test_a_failure_is_retried_until_the_last_attempt(attempt: int, max_attempts: int):
    found = decide(ValueError("boom"), attempt=attempt, max_attempts=max_attempts)
    assert found.outcome is (Outcome.RETRIED if attempt < max_attempts else Outcome.DEAD)
    assert (found.reason, found.error, found.after) == ("failed", "ValueError: boom", None)


@given(ATTEMPTS, ATTEMPTS, st.none() | st.timedeltas(timedelta(0), timedelta(days=9)))
def test_a_retry_chooses_its_delay_but_not_more_attempts(attempt: int, max_attempts: int, after: timedelta | None):
    found = decide(Retry("the bank is closed", after=after), attempt=attempt, max_attempts=max_attempts)
    assert found.error == "the bank is closed"
    if attempt < max_attempts:
        assert (found.outcome, found.after) == (Outcome.RETRIED, after)
    else:
        assert (found.outcome, found.after) == (Outcome.DEAD, None)


@given(ATTEMPTS, ATTEMPTS)
def test_what_cannot_get_better_is_not_tried_again(attempt: int, max_attempts: int):
    for error, reason in ((Reject("no such order"), "rejected"), (DecodeError("no total"), "undecodable")):
        found = decide(error, attempt=attempt, max_attempts=max_attempts)
        assert found == Decision(Outcome.DEAD, reason, str(error))


def test_a_failing_broker_in_a_handler_is_a_failure_like_any_other():
    assert decide(BrokerUnavailable("away"), attempt=1, max_attempts=2).outcome is Outcome.RETRIED


def test_an_error_of_the_database_is_told_without_its_values():
    error = IntegrityError("INSERT INTO cards", {"card": "4111"}, ValueError("duplicate key\nDETAIL: secret"))
    assert decide(error, attempt=1, max_attempts=2).error == "ValueError: duplicate key"


def test_a_handler_may_subclass_the_signals():
    class Closed(Retry):
        pass

    class Gone(Reject):
        pass

    assert decide(Closed(after=5), attempt=1, max_attempts=2).after == timedelta(seconds=5)
    assert decide(Gone("x"), attempt=1, max_attempts=2).reason == "rejected"


def test_the_defaults_of_the_policy():
    assert Policy() == Policy(max_attempts=10, retention=timedelta(days=14))


def test_other_reasons():
    assert decisions.malformed(Malformed("the message has no type", b"")) == Decision(
        Outcome.DEAD, "malformed", "the message has no type"
    )
    unknown = decisions.no_handler(message(type="Unknown"), ["A", "B"])
    assert (unknown.outcome, unknown.reason) == (Outcome.DEAD, "no handler")
    assert unknown.error == "no handler here takes 'Unknown'; this consumer has handlers for A, B"


@pytest.mark.parametrize("found", [message(id=ids.new(at=NOW), created_at=None), message(created_at=NOW)])
def test_a_stale_message_says_when_it_was_made(found):
    decision = decisions.stale(found, timedelta(days=14))
    assert (decision.outcome, decision.reason) == (Outcome.STALE, "stale")
    assert decision.error == "made at 2026-03-01 12:00 UTC, longer ago than the inbox remembers (14 days)"


def test_every_reason_fits_its_column():
    reasons = ["failed", "rejected", "undecodable", "malformed", "no handler", "stale"]
    assert max(map(len, reasons)) <= dead_letter.c.reason.type.length
    assert all(f"`{reason}`" in (Decision.__doc__ or "") for reason in reasons)


def test_a_dead_letter_keeps_the_whole_message():
    sent = message(key="k", topic="t", headers={"a": 1}, correlation_id="c", causation_id="d", content_encoding="gzip")
    row = decisions.dead_letter(sent, FAILED, queue="billing", handler="SendReceipt", attempts=3)
    assert codec.decode_headers(row.pop("headers")) == {"a": 1}
    assert row == {
        "side": "inbox",
        "queue": "billing",
        "handler": "SendReceipt",
        "message_id": "m-1",
        "type": "OrderConfirmed",
        "topic": "t",
        "key": "k",
        "payload": sent.payload,
        "correlation_id": "c",
        "causation_id": "d",
        "content_type": "application/json",
        "content_encoding": "gzip",
        "created_at": NOW,
        "reason": "failed",
        "error": "ValueError: boom",
        "attempts": 3,
    }


def test_a_dead_letter_of_something_malformed_keeps_what_there_is():
    row = decisions.dead_letter(Malformed("no id", b"\x00\xff"), FAILED, queue="q", handler=None, attempts=1)
    assert (row["message_id"], row["type"], row["handler"], row["created_at"]) == (None, None, None, None)
    assert (row["payload"], row["content_type"]) == (b"\x00\xff", "application/octet-stream")


NASTY = st.text(alphabet=st.sampled_from(["a", "\0", "\ud800", "é", "\n"]), max_size=300)


@given(NASTY, NASTY, NASTY, NASTY)
def test_a_dead_letter_can_always_be_stored(id_: str, type_: str, mime: str, error: str):
    found = Malformed("?", b"", id_, type_, {"h": b"\xff"}, mime, id_)
    row = decisions.dead_letter(found, Decision(Outcome.DEAD, "failed", error), queue="q", handler=None, attempts=1)
    for name, value in row.items():
        if isinstance(value, str):
            value.encode()
            assert "\0" not in value
            assert len(value) <= (dead_letter.c[name].type.length or len(value))


def test_a_dead_letter_has_only_columns_of_the_table():
    row = decisions.dead_letter(message(), FAILED, queue="q", handler=None, attempts=1)
    of_the_relay = {"position", "parked", "first_failed_at", "discard_unroutable"}
    later = {"id", "dead_at", "resolution", "resolved_at", "resolved_by"}
    assert row.keys() | of_the_relay | later == set(dead_letter.c.keys())
