"""What a response means for its message."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit.brokers import CONFIRMED, LONGEST_WAIT, Answer, Receipt, Verdict
from outboxkit.brokers.http.verdict import LONGEST_TITLE, HttpResponse, receipt_of, retry_after

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
RETRIED, LATER, DEAD = (Verdict.REJECTED, False), (Verdict.POSTPONED, False), (Verdict.REJECTED, True)


def judged(status: int, **more: object) -> Receipt:
    return receipt_of(HttpResponse(status, **more), limit=100, now=NOW)  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
def test_every_2xx_is_a_confirm(status: int):
    assert judged(status) == CONFIRMED


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((408, 409, 421, 425, 500, 501, 502, 504, 505, 507, 599, 999), RETRIED),
        ((401, 403, 407, 429, 503), LATER),
        ((101, 300, 301, 302, 303, 304, 307, 308, 399), DEAD),
        (
            (400, 402, 404, 405, 406, 410, 411, 412, 414, 415, 416, 417, 422, 423, 424, 426, 428, 431, 451, 499),
            DEAD,
        ),
    ],
)
def test_every_other_status_has_its_verdict(statuses: tuple[int, ...], expected: tuple[Verdict, bool]):
    for status in statuses:
        receipt = judged(status, headers={"retry-after": "5"})
        assert (receipt.verdict, receipt.final) == expected, status
        assert receipt.after == (None if receipt.final else timedelta(seconds=5)), status
        told = "the destination answers " if status in (401, 403, 407) else ""
        assert str(receipt.reason).startswith(f"{told}{status}")
        assert str(receipt.reason).endswith("redirects are not followed") is (300 <= status < 400)


def test_a_body_that_is_too_large_for_now_is_tried_again_when_it_says_so():
    assert judged(413, headers={"retry-after": "5"}).after == timedelta(seconds=5)
    assert judged(413, headers={"retry-after": "soon"}).final
    assert judged(413).final


def test_an_answer_comes_with_its_type():
    assert judged(200, body=b"x") == Receipt(Verdict.CONFIRMED, answer=Answer(b"x", "application/json"))
    headers = {"content-type": " text/plain; charset=utf-8 ", "content-encoding": "identity"}
    assert judged(200, body=b"x", headers=headers).answer == Answer(b"x", "text/plain; charset=utf-8")


def test_an_answer_that_cannot_be_kept_is_a_confirm_that_says_so():
    cut = judged(200, body=b"x" * 100, is_cut=True)
    packed = judged(200, body=b"x", headers={"content-encoding": "br\n"})
    for receipt, reason in ((cut, "100 bytes"), (packed, "its answer has an encoding")):
        assert (receipt.verdict, receipt.answer) == (Verdict.CONFIRMED, None)
        assert reason in str(receipt.reason)


def test_half_a_confirm_is_none():
    receipt = judged(200, body=b"x", trouble="the connection was lost")
    assert (receipt.verdict, receipt.final) == RETRIED
    assert receipt.reason == "200 OK, but the connection was lost in the middle of its answer"


def test_the_status_of_half_an_error_counts():
    receipt = judged(404, body=b"no such", trouble="the connection was lost")
    assert receipt == Receipt(Verdict.REJECTED, "404 Not Found", final=True)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *((None, None), ("", None), ("0", None), ("000", None), ("1", 1), (" 7 ", 7), ("3600", 3600), ("3601", 3600)),
        *(("9" * 5000, 3600), ("-1", None), ("1.5", None), ("1, 2", None), ("soon", None), ("٣", None), ("²", None)),
        ("Wed, 04 Mar 2026 05:06:10 GMT", 3),
        ("Wednesday, 04-Mar-26 05:06:10 GMT", 3),
        ("Wed Mar  4 05:06:10 2026", 3),
        ("Wed, 04 Mar 2026 05:06:07 GMT", None),
        ("Wed, 04 Mar 2020 05:06:10 GMT", None),
        ("Thu, 04 Mar 9999 05:06:10 GMT", 3600),
        ("Wed, 99 Mar 2026 05:06:10 GMT", None),
    ],
)
def test_retry_after_is_bounded_and_garbage_is_nothing(value: str | None, seconds: int | None):
    assert retry_after(value, now=NOW) == (None if seconds is None else timedelta(seconds=seconds))


@given(st.text() | st.integers().map(str) | st.datetimes(timezones=st.just(UTC)).map(format_datetime))
def test_no_retry_after_is_out_of_bounds(value: str):
    found = retry_after(value, now=NOW)
    assert found is None or timedelta(0) < found <= LONGEST_WAIT


def test_the_title_of_a_problem_is_the_reason_and_nothing_else_of_a_body():
    problem = {"content-type": "application/problem+json; charset=utf-8"}
    told = b'{"title": "The card has \\n expired.", "detail": "4242 4242", "status": 402}'
    assert judged(402, body=told, headers=problem).reason == "402 Payment Required: The card has \\n expired."
    assert judged(402, body=told).reason == "402 Payment Required"
    for broken in (b"", b"[]", b'{"title": 1}', b'{"title": "\xff"}', b'{"title"', b"[" * 100_000):
        assert judged(402, body=broken, headers=problem).reason == "402 Payment Required"
    long = judged(402, body=b'{"title": "' + b"x" * 5000 + b'"}', headers=problem)
    assert len(str(long.reason)) == len("402 Payment Required: ") + LONGEST_TITLE
