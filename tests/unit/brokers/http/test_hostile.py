"""Whatever a destination answers, there is a receipt within its bounds."""

import random
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from outboxkit.brokers import LONGEST_WAIT, Verdict
from outboxkit.brokers.http.verdict import LONGEST_TITLE, HttpResponse, receipt_of
from tests.support.grammar import Grammar
from tests.support.night import by_night

STATUSES = (100, 199, 200, 204, 299, 301, 400, 401, 404, 409, 413, 425, 429, 500, 503, 599, 999)
NAMES = ("retry-after", "content-type", "content-encoding", "location")
VALUES = ("application/problem+json", "identity", "9" * 5000, "-1", "Wed, 21 Oct 2099 07:28:00 +2400", "\x00")


@settings(max_examples=by_night(5000, else_=200))
@given(st.randoms(use_true_random=False))
def test_any_answer_has_a_receipt(chance: random.Random):
    grammar = Grammar(chance)
    headers = {chance.choice(NAMES): chance.choice((*VALUES, grammar.text())) for _ in range(4)}
    title = b'{"title": "%s"}' % (b"<b>\\u0000\\n\\u202e" * chance.choice((1, 100)))
    body = chance.choice((grammar.body()[:100_000], title))
    trouble = chance.choice((None, None, "time was up"))
    response = HttpResponse(chance.choice(STATUSES), headers, body, grammar.one_in(3), trouble)
    receipt = receipt_of(response, limit=100_000, now=datetime(2026, 3, 1, tzinfo=UTC))
    if receipt.verdict is Verdict.CONFIRMED:
        assert 200 <= response.status < 300
    assert len(receipt.reason or "") <= LONGEST_TITLE + 100
    assert (receipt.reason or "").isprintable()
    assert receipt.after is None or timedelta(0) < receipt.after <= LONGEST_WAIT
