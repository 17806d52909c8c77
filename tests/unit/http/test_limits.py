"""Each limit of docs/reference/wire.md on what an HTTP request or an answer may hold, from below and from above."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from outboxkit import Message
from outboxkit.brokers import LONGEST_WAIT, Receipt
from outboxkit.brokers.http import HttpPublisher
from outboxkit.brokers.http.verdict import LONGEST_TITLE, HttpResponse, receipt_of
from outboxkit.codec.payloads import MAX_PAYLOAD_BYTES
from outboxkit.http.problems import Problem
from outboxkit.http.request import LENGTH, MEBIBYTE, parse_key, read_body
from tests.support.http_destination import Destination, say

PAGE = Path(__file__).parents[3] / "docs/reference/wire.md"
SECTION = PAGE.read_text().partition("### What a request or an answer may hold\n")[2].partition("\n### ")[0]
PROBLEM = {"content-type": "application/problem+json"}


def takes_key(*lines: str) -> bool:
    try:
        return bool(parse_key(lines))
    except Problem:
        return False


async def takes_body(size: int) -> bool:
    async def receive() -> Any:
        return {"type": "http.request", "body": bytes(size)}

    try:
        return await read_body({"headers": []}, receive, MEBIBYTE) is not None
    except Problem:
        return False


async def keeps_answer(size: int) -> bool:
    async with Destination(lambda _: say(200, bytes(size))) as there:
        publisher = HttpPublisher(there.url)
        await publisher.connect()
        (receipt,) = await publisher.publish([Message(id="m", type="T", payload=b"{}")])
        await publisher.close()
    return receipt.answer is not None


def refusal(body: bytes = b"", **headers: str) -> Receipt:
    return receipt_of(HttpResponse(503, headers, body), limit=1, now=datetime.now(UTC))


async def limits() -> dict[str, list[tuple[bool, bool]]]:
    hour = round(LONGEST_WAIT.total_seconds())
    waits = [refusal(**{"retry-after": str(seconds)}).after for seconds in (hour - 1, hour, hour + 1, 10**9)]
    titles = [json.dumps({"title": "t" * size}).encode() for size in (LONGEST_TITLE, LONGEST_TITLE + 1)]
    whole, cut = (f"{refusal(title, **PROBLEM)}".count("t" * LONGEST_TITLE) == 1 for title in titles)
    return {
        "a request's `Idempotency-Key`": [
            (takes_key("k" * LENGTH), takes_key("k" * (LENGTH + 1))),
            (takes_key("!~"), takes_key("k\x7f")),
            (takes_key("k"), takes_key("")),
            (takes_key("k"), takes_key("k", "k")),
        ],
        "a request's body": [(await takes_body(MEBIBYTE), await takes_body(MEBIBYTE + 1))],
        "a 2xx of a destination": [(await keeps_answer(MAX_PAYLOAD_BYTES), await keeps_answer(MAX_PAYLOAD_BYTES + 1))],
        "`Retry-After` of a destination": [
            (waits[0] is not None and waits[0] < LONGEST_WAIT, waits[1:] != [LONGEST_WAIT] * 3)
        ],
        "a problem's `title`": [(whole, cut)],
    }


async def test_each_limit_is_where_the_page_has_it():
    found = await limits()
    assert {place: cases for place, cases in found.items() if cases != [(True, False)] * len(cases)} == {}
    rows = [row.split(" | ")[0].removeprefix("| ") for row in SECTION.splitlines() if row.startswith("| ")][1:]
    assert rows == list(found)


@pytest.mark.parametrize(
    "limit", [LENGTH, MEBIBYTE, MAX_PAYLOAD_BYTES, round(LONGEST_WAIT.total_seconds()), LONGEST_TITLE]
)
def test_the_page_has_each_limit(limit: float):
    assert f"{limit:.0f}" in re.sub(r"(?<=\d) (?=\d{3})", "", SECTION)
