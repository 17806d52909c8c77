"""What becomes of a message: decided from what happened alone."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from outboxkit import ConfigurationError, DecodeError, NewerVersion, Outcome, Reject, Retry, inbox_handler
from outboxkit.codec.envelopes.envelope import Malformed
from outboxkit.codec.rows import decode_headers
from outboxkit.consumer import ConsumerPolicy, decisions
from outboxkit.consumer.decisions import Decision, decide
from outboxkit.errors.failures import class_of
from outboxkit.inbox import handler_of
from outboxkit.retry import Retries
from tests.unit.codec.envelopes import samples
from tests.unit.shop import NOW, OrderConfirmed, message

ATTEMPTS = st.integers(1, 100)


@inbox_handler("Plain")
def plain(session: Session, event: OrderConfirmed) -> None: ...


def decide_for(error: Exception, *, attempt: int, max_attempts: int, handler: Callable[..., Any] = plain) -> Decision:
    return decide(error, handler_of(handler), attempt=attempt, max_attempts=max_attempts)


FAILED = Decision(Outcome.DEAD, "failed", "ValueError: boom")


@given(ATTEMPTS, ATTEMPTS)
def test_a_failure_is_retried_until_the_last_attempt(attempt: int, max_attempts: int):
    found = decide_for(ValueError("boom"), attempt=attempt, max_attempts=max_attempts)
    assert found.outcome is (Outcome.RETRIED if attempt < max_attempts else Outcome.DEAD)
    assert (found.reason, found.error, found.after) == ("failed", "ValueError: boom", None)


@given(ATTEMPTS, ATTEMPTS, st.none() | st.timedeltas(timedelta(0), timedelta(days=9)))
def test_a_retry_chooses_its_delay_but_not_more_attempts(attempt: int, max_attempts: int, after: timedelta | None):
    found = decide_for(Retry("the bank is closed", after=after), attempt=attempt, max_attempts=max_attempts)
    assert found.error == "Retry: the bank is closed"
    if attempt < max_attempts:
        assert (found.outcome, found.after) == (Outcome.RETRIED, after)
    else:
        assert (found.outcome, found.after) == (Outcome.DEAD, None)


@given(ATTEMPTS, ATTEMPTS)
def test_what_cannot_get_better_is_not_tried_again(attempt: int, max_attempts: int):
    for error, reason in ((Reject("no such order"), "rejected"), (DecodeError("no total"), "undecodable")):
        found = decide_for(error, attempt=attempt, max_attempts=max_attempts)
        assert found == Decision(Outcome.DEAD, reason, f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("kind", [Reject, Retry, DecodeError, NewerVersion])
@pytest.mark.parametrize("text", ["DE89370400440532013000", "jane_doe: is blocked", "KeyError: 'jane'"])
def test_only_the_class_of_what_a_handler_raises_is_shown_to_those_who_may_not_see_payloads(kind: Any, text: str):
    found = decide_for(kind(text), attempt=1, max_attempts=1)
    assert found.error == f"{kind.__name__}: {text}"
    assert class_of(found.error) == f"{kind.__name__}: …"


def test_an_error_of_the_database_is_told_without_its_values():
    error = IntegrityError("INSERT INTO cards", {"card": "4111"}, ValueError("duplicate key\nDETAIL: secret"))
    assert decide_for(error, attempt=1, max_attempts=2).error == "ValueError: duplicate key"
    assert "4111" not in str(error), "the error itself goes to the hooks of the application"


def test_a_handler_may_subclass_the_signals():
    class Closed(Retry):
        pass

    class Gone(Reject):
        pass

    assert decide_for(Closed(after=5), attempt=1, max_attempts=2).after == timedelta(seconds=5)
    assert decide_for(Gone("x"), attempt=1, max_attempts=2).reason == "rejected"


def test_other_reasons():
    assert decisions.malformed(Malformed(b"", reason="the message has no type")) == Decision(
        Outcome.DEAD, "malformed", "the message has no type"
    )
    sent = samples.DAPR
    known = Malformed.of(sent, "no id")
    for incomplete in (known, replace(known, message_id="1")):
        assert decisions.malformed(incomplete).error == (
            "no id; the reader 'cloudevents' knows its envelope (--readers), and then it can be replayed"
        )
    for other in (replace(known, message_id="1", type="T"), replace(known, kind="undecodable")):
        assert decisions.malformed(other).error == "no id"
    assert (
        decisions.malformed(Malformed(b"{}", reason="no id", kind="undecodable", headers={"id": "1"})).error == "no id"
    )
    assert decisions.no_handler(message(), ["A"], attempt=2, max_attempts=3).outcome is Outcome.RETRIED
    unknown = decisions.no_handler(message(type="Unknown"), ["A", "B"], attempt=3, max_attempts=3)
    assert (unknown.outcome, unknown.reason) == (Outcome.DEAD, "no handler")
    assert unknown.error == "no handler here takes 'Unknown'; this consumer has handlers for A, B"


@pytest.mark.parametrize(
    ("decided", "reason", "text"),
    [
        (partial(decisions.too_large, 7), "undecodable", "the payload is larger than 7 bytes"),
        (partial(decisions.crash, 4), "crash", "4 times it was started"),
        (decisions.dropped, "dropped", "the broker gave it up"),
        (partial(decisions.given_up, ValueError("boom")), "failed", "ValueError: boom"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_message_that_gets_no_handler_is_dead(decided: Callable[[], Decision], reason: str, text: str):
    decision = decided()
    assert (decision.outcome, decision.reason, decision.after) == (Outcome.DEAD, reason, None)
    assert decision.error.startswith(text)


def test_what_is_given_up_keeps_its_exception_and_its_traceback():
    error = ValueError("boom")
    found = decisions.given_up(error)
    assert (found.cause, found.traceback) == (error, "Traceback (most recent call last):\nValueError: boom")


STEP, SHORT, LONG = (timedelta(seconds=seconds) for seconds in (5, 3, 9))


@pytest.mark.parametrize(
    ("asked", "shortest"),
    [([], None), ([None, None], None), ([LONG, SHORT], SHORT), ([SHORT, None], SHORT), ([None, LONG], STEP)],
)
def test_handlers_that_failed_together_are_tried_again_after_the_shortest_delay(
    asked: list[timedelta | None], shortest: timedelta | None
):
    retried = [Decision(Outcome.RETRIED, "failed", "", after) for after in asked]
    assert decisions.shortest_delay(retried, STEP) == shortest


def test_a_stale_message_says_when_it_was_made_and_what_to_do():
    decision = decisions.stale_message(NOW, ConsumerPolicy())
    assert (decision.outcome, decision.reason) == (Outcome.STALE, "stale")
    assert decision.error == (
        "made at 2026-03-01 12:00 UTC, longer ago than the inbox is sure to remember (14d less 5m); "
        "`dead replay --accept-stale` has it handled anyway"
    )
    brief = ConsumerPolicy(retention=timedelta(seconds=50), skew=timedelta(seconds=10), delays=(timedelta(seconds=1),))
    assert "is sure to remember (50s less 10s)" in decisions.stale_message(NOW, brief).error


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (59, "59s"), (60, "1m"), (61, "61s"), (119, "119s"), (121, "3m"), (3600, "1h"), (5400, "90m"), (7201, "3h"),
        (86_400, "1d"), (129_600, "36h"), (172_801, "3d"),
    ],
)  # fmt: skip
def test_a_duration_is_shown_in_the_largest_unit_that_tells_it(seconds: int, shown: str):
    policy = ConsumerPolicy(retention=timedelta(seconds=seconds))
    assert f"is sure to remember ({shown} less" in decisions.stale_message(NOW, policy).error


def test_a_handler_has_rules_of_its_own():
    rule = Retries(max_attempts=2, delays=(timedelta(seconds=3), timedelta(seconds=9)), never=(KeyError,))

    @inbox_handler("Strict", retry=rule)
    def strict(session: Session, event: OrderConfirmed) -> None: ...

    first = decide_for(ValueError("boom"), attempt=1, max_attempts=10, handler=strict)
    assert (first.outcome, first.after) == (Outcome.RETRIED, timedelta(seconds=3))
    asked = decide_for(Retry(after=1), attempt=1, max_attempts=10, handler=strict)
    assert (asked.outcome, asked.after) == (Outcome.RETRIED, timedelta(seconds=1))
    assert decide_for(ValueError("boom"), attempt=2, max_attempts=10, handler=strict).outcome is Outcome.DEAD
    assert decide_for(KeyError("boom"), attempt=1, max_attempts=10, handler=strict).outcome is Outcome.DEAD


def test_the_inbox_must_remember_for_as_long_as_a_message_may_be_tried_again():
    delays, skew = (timedelta(seconds=1), timedelta(minutes=10)), timedelta(minutes=5)
    handlers = [handler_of(plain)]
    window = timedelta(minutes=10) * 3 + timedelta(seconds=1) + skew
    ConsumerPolicy(max_attempts=5, retention=window, skew=skew, delays=delays).check(handlers)
    short = ConsumerPolicy(max_attempts=5, retention=window - timedelta(seconds=1), skew=skew, delays=delays)
    with pytest.raises(ConfigurationError) as raised:
        short.check(handlers)
    assert str(raised.value) == (
        "OUTBOXKIT_INBOX_RETENTION is 35m, but a message may be tried again for 36m (5 attempts with "
        "OUTBOXKIT_RETRY_DELAYS, and 5m for clocks that differ). It would be forgotten meanwhile. retention = longest "
        "retry window times 2, for outages to come: set it to 71m or more"
    )


def test_a_handlers_own_attempts_count_for_what_the_inbox_must_remember():
    @inbox_handler("Stubborn", retry=Retries(max_attempts=2, delays=(timedelta(days=15),)))
    def stubborn(session: Session, event: OrderConfirmed) -> None: ...

    delays = (timedelta(seconds=1), timedelta(seconds=1), timedelta(days=15))
    for attempts in (1, 3):
        with pytest.raises(ConfigurationError, match=r"tried again for 16d \(2 attempts"):
            ConsumerPolicy(max_attempts=attempts, delays=delays).check([handler_of(stubborn)])


def test_more_crashes_than_can_be_counted_are_refused():
    ConsumerPolicy(max_crashes=8).check([])
    with pytest.raises(ConfigurationError, match="max_crashes is 9: up to 8 can be counted"):
        ConsumerPolicy(max_crashes=9).check([])


def test_a_dead_letter_keeps_the_whole_message():
    sent = message(key="k", topic="t", headers={"a": 1}, correlation_id="c", causation_id="d", content_encoding="gzip")
    sent = replace(sent, version=3)
    row = decisions.dead_letter_row(
        sent, FAILED, queue="billing", handler="SendReceipt", attempts=3, first_failed_at=NOW
    )
    assert decode_headers(row.pop("headers")) == {"a": 1}
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
        "version": 3,
        "created_at": NOW,
        "reason": "failed",
        "error": "ValueError: boom",
        "attempts": 3,
        "first_failed_at": NOW,
        "traceback": None,
    }


def test_a_dead_letter_that_the_database_refuses_is_kept_without_what_can_be_missed():
    sent = replace(message(key="k", topic="t", headers={"a": 1}, correlation_id="c"), version=3)
    row = decisions.dead_letter_row(sent, FAILED, queue="billing", handler="SendReceipt", attempts=3)
    kept = decisions.bare(row, ValueError("too long"))
    assert kept.keys() == row.keys()
    assert {name: value for name, value in kept.items() if value is not None} == {
        "side": "inbox",
        "queue": "billing",
        "handler": "SendReceipt",
        "message_id": "m-1",
        "type": "OrderConfirmed",
        "payload": sent.payload,
        "headers": b"{}",
        "content_type": "application/octet-stream",
        "version": 3,
        "reason": "failed",
        "error": "ValueError: boom (kept without its headers and other properties: ValueError: too long)",
        "attempts": 3,
    }


def test_a_dead_letter_of_something_malformed_keeps_what_there_is():
    found = Malformed(b"\x00\xff", routing_key="orders", reason="no id")
    row = decisions.dead_letter_row(found, FAILED, queue="q", handler=None, attempts=0)
    assert (row["message_id"], row["type"], row["handler"], row["created_at"]) == (None, None, None, None)
    assert (row["payload"], row["content_type"], row["topic"]) == (b"\x00\xff", "application/octet-stream", "orders")
    assert (row["version"], row["attempts"]) == (1, 1)


def test_the_first_names_without_a_handler_are_shown():
    names = ["a" * 99, "b", "c", "d"]
    found = decisions.no_handler(message(), ["T"], names, attempt=1, max_attempts=2)
    assert f"it is for {'a' * 20}" in found.error
    assert "a" * 61 not in found.error
    assert ", b, c, …, and no handler" in found.error
    assert "…, and" not in decisions.no_handler(message(), ["T"], names[1:], attempt=1, max_attempts=2).error


@pytest.mark.parametrize("error", [ValueError("boom"), DecodeError("no event")], ids=["failed", "undecodable"])
@pytest.mark.parametrize("attempt", [1, 2], ids=["again", "last"])
def test_a_failure_keeps_its_exception_and_its_traceback(error: Exception, attempt: int):
    found = decide_for(error, attempt=attempt, max_attempts=2)
    assert found.cause is error
    assert type(error).__name__ in str(found.traceback)


@pytest.mark.parametrize("signal", [Retry("later"), Reject("no")])
def test_a_signal_is_kept_and_has_no_traceback(signal: Exception):
    found = decide_for(signal, attempt=1, max_attempts=2)
    assert (found.cause, found.traceback) == (signal, None)


def test_a_dead_letter_keeps_the_handlers_that_its_message_requires():
    row = decisions.dead_letter_row(message(), FAILED, queue="q", handler=None, attempts=1, required=("Mailer",))
    assert json.loads(row["headers"])["outboxkit-handlers"] == ["Mailer"]
    row = decisions.dead_letter_row(message(), FAILED, queue="q", handler="Biller", attempts=1, required=("Mailer",))
    assert "outboxkit-handlers" not in json.loads(row["headers"])


@given(ATTEMPTS, ATTEMPTS)
def test_a_newer_version_waits_for_a_newer_release_whatever_the_handlers_rule_is(attempt: int, max_attempts: int):
    @inbox_handler("Impatient", retry=Retries(max_attempts=1, never=(Exception,)))
    def impatient(session: Session, event: OrderConfirmed) -> None: ...

    found = decide_for(NewerVersion("it has version 2"), attempt=attempt, max_attempts=max_attempts, handler=impatient)
    outcome = Outcome.RETRIED if attempt < max_attempts else Outcome.DEAD
    assert found == Decision(outcome, "newer version", "NewerVersion: it has version 2")
    assert (found.cause, found.traceback) == (None, None)


@pytest.mark.parametrize(("starts", "is_killer"), [(1, False), (3, False), (4, True)])
def test_a_message_may_end_the_process_as_often_as_the_policy_says(starts: int, is_killer: bool):
    assert decisions.is_killer(starts, ConsumerPolicy(max_crashes=3)) is is_killer
