"""The HTTP publisher at a destination that is slow, drops connections or goes away; and its concurrency."""

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from outboxkit.brokers import Verdict
from tests.integration.broker.publishing import Make, made, publish, verdicts
from tests.support.http_destination import DROP, Call, Destination, Say, ok, say

SHORT = timedelta(seconds=1)
"""Enough for what a machine under load does at once, and not too long for what never happens."""


class Barrier:
    """Answers nobody before so many are waiting."""

    def __init__(self, count: int) -> None:
        self.barrier = asyncio.Barrier(count)

    async def __call__(self, _: Call) -> Say:
        await self.barrier.wait()
        return say()


async def test_as_many_at_once_as_were_asked_for_on_connections_that_stay(make: Make, destination: Destination):
    destination.answer = Barrier(4)
    publisher = make(concurrency=4)
    for _ in range(3):
        assert set(verdicts(await publish(publisher, *map(made, range(40))))) == {"confirmed"}
    assert (destination.most_at_once, destination.connections, len(destination.calls)) == (4, 4, 120)


async def never(_: Call) -> Say:
    await asyncio.Event().wait()
    return DROP


async def test_who_answers_nobody_blames_nobody(make: Make, destination: Destination):
    destination.answer = never
    publisher = make(timeout=SHORT, concurrency=2)
    receipts = await publish(publisher, *map(made, range(5)))
    assert verdicts(receipts) == ["unknown", "unknown", "not sent", "not sent", "not sent"]
    assert "time was up after 1 s" in str(receipts[0].reason)
    assert [receipt.reason for receipt in receipts[2:]] == ["there was no time left to send it"] * 3
    publisher = make(timeout=timedelta(seconds=30), concurrency=2)
    destination.answer = lambda _: DROP
    assert set(verdicts(await publish(publisher, *map(made, range(5))))) == {"unknown"}


async def test_who_takes_the_destination_down_is_to_blame_the_second_time(make: Make, destination: Destination):
    def answer(call: Call) -> Say:
        if call.key != "bad":
            return say()
        destination.go_down()
        return DROP

    destination.answer = answer
    publisher = make(concurrency=1)
    came = list[list[str]]()
    for number in range(2):
        came.append(verdicts(await publish(publisher, made(number), made("bad"))))
        await destination.listen()
    assert came == [["confirmed", "unknown"], ["confirmed", "rejected"]]


async def test_no_request_begins_after_the_timeout_and_each_may_take_as_long(make: Make, destination: Destination):
    slow = timedelta(seconds=2)

    async def answer(_: Call) -> Say:
        await asyncio.sleep(1.2)
        return say()

    destination.answer = answer
    publisher = make(timeout=slow, concurrency=1)
    assert verdicts(await publish(publisher, *map(made, range(3)))) == ["confirmed", "confirmed", "not sent"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            Say(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345", hang_up=True),
            "200 OK, but the connection was lost",
        ),
        (replace(say(200, b"1" * 100), drip=0.02), "200 OK, but time was up after 1 s"),
        (Say(b"HTTP/1.1 500 No\r\ncontent-length: 10\r\n\r\n12345"), "500 Internal Server Error"),
        (Say(b"HTTP/1.1 400 No\r\ncontent-length: 10\r\n\r\n12345", hang_up=True), "400 Bad Request"),
    ],
)
async def test_half_an_answer_is_none_but_its_status_counts(
    make: Make, destination: Destination, said: Say, reason: str
):
    destination.answer = lambda _: said
    publisher = make(timeout=SHORT)
    (receipt,) = await publish(publisher, made(1))
    assert (receipt.verdict, receipt.final) == (Verdict.REJECTED, reason.startswith("400"))
    assert str(receipt.reason).startswith(reason)


async def test_connections_that_the_server_closed_while_idle_cost_nothing(make: Make, destination: Destination):
    publisher = make(concurrency=3)
    for number in range(5):
        assert verdicts(await publish(publisher, *map(made, range(3)))) == ["confirmed"] * 3, number
        destination.hang_up()
    assert Counter(destination.keys) == {"0": 5, "1": 5, "2": 5}


async def test_a_connection_that_ends_under_a_request_is_tried_anew_once(make: Make, destination: Destination):
    """As where the server closes an idle one at the moment at which the next request leaves."""
    seen: Counter[int] = Counter()

    def answer(call: Call) -> Say:
        seen[call.connection] += 1
        return say() if seen[call.connection] == 1 else DROP

    destination.answer = answer
    publisher = make(concurrency=1)
    assert verdicts(await publish(publisher, *map(made, range(4)))) == ["confirmed"] * 4
    assert destination.keys == ["0", "1", "1", "2", "2", "3", "3"], "under the same key"
    destination.answer = lambda _: DROP
    destination.calls.clear()
    assert verdicts(await publish(publisher, made("a"))) == ["unknown"]
    assert destination.keys == ["a", "a"], "once on the old connection, once on a new one, and that was it"
    assert verdicts(await publish(publisher, made("b"))) == ["unknown"]
    assert destination.keys == ["a", "a", "b"], "a new connection that is lost is not tried anew"


async def test_a_publish_that_is_cancelled_leaves_nothing_behind(make: Make, destination: Destination):
    destination.answer = never
    publisher = make()
    await publisher.connect()
    publishing = asyncio.create_task(publisher.publish([made(1), made(2)]))
    while destination.open_now < 2:
        await asyncio.sleep(0.01)
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    destination.answer = ok
    assert verdicts(await publish(publisher, made(1))) == ["confirmed"]
