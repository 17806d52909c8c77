"""What the HTTP publisher puts on the wire, and its receipts, at a real server that can be told to do anything."""

from datetime import UTC, datetime

import pytest

from outboxkit import BrokerUnavailable
from outboxkit.brokers import CONFIRMED
from tests.integration.broker.publishing import Make, made, publish, verdicts
from tests.support.http_destination import Destination, Say, say

CREATED = datetime(2026, 3, 4, 5, 6, 7, 890_000, tzinfo=UTC)


async def test_a_message_is_one_post_with_everything_about_it(make: Make, destination: Destination):
    message = made(
        "till-3/8841",
        payload='{"name":"Zoë"}'.encode(),
        key="order 7",
        topic="cards.charge",
        headers={"tenant": "a", "number": 5, "on": True, "none": None, "traceparent": "00-1-2-01", "tracestate": "a=b"},
        correlation_id="story",
        version=2,
        causation_id="cause",
        created_at=CREATED,
        content_encoding="gzip",
    )
    assert await publish(make(), message) == [CONFIRMED]
    (call,) = destination.calls
    assert (call.method, call.target, call.body) == ("POST", "/hooks?of=shop", '{"name":"Zoë"}'.encode())
    headers = dict(call.headers)
    assert headers.pop("user-agent").startswith("outboxkit/0.")
    assert headers == {
        "Host": f"localhost:{destination.port}",
        "Content-Length": "15",
        "content-type": "application/json",
        "content-encoding": "gzip",
        "accept": "*/*",
        "accept-encoding": "identity",
        "idempotency-key": '"till-3/8841"',
        "outboxkit-type": "ChargeCard",
        "outboxkit-key": "order%207",
        "outboxkit-topic": "cards.charge",
        "outboxkit-correlation-id": "story",
        "outboxkit-causation-id": "cause",
        "outboxkit-version": "2",
        "outboxkit-created-at": "2026-03-04T05:06:07.890000Z",
        "tenant": "a",
        "number": "5",
        "on": "true",
        "traceparent": "00-1-2-01",
        "tracestate": "a=b",
    }


async def test_who_cannot_be_reached_blames_no_message(make: Make, destination: Destination):
    publisher = make(url=destination.url.replace("localhost", "user:password@localhost"))
    await destination.refuse()
    with pytest.raises(BrokerUnavailable, match=rf"to http://localhost:{destination.port}: .*Connect call failed"):
        await publish(publisher, made("1"), made("2"))
    with pytest.raises(BrokerUnavailable, match=r"http://nowhere\.invalid: .*not known|resolution|No address"):
        await publish(make(url="http://nowhere.invalid/"), made())
    await destination.listen()
    assert verdicts(await publish(publisher, made("1"), made("2"))) == ["confirmed", "confirmed"]


async def test_what_cannot_be_a_request_is_rejected_alone(make: Make, destination: Destination):
    batch = [made("1"), made("2", key="a", content_type="a/b\r\nx: y"), made("3", key="a"), made("4", key="b")]
    queued = made("5", queue="billing")
    receipts = await publish(make(), *batch, queued)
    assert verdicts(receipts) == ["confirmed", "rejected", "not sent", "confirmed", "unroutable"]
    assert receipts[1].final
    assert "content type" in str(receipts[1].reason)
    assert "'billing'" in str(receipts[4].reason)
    assert sorted(map(str, destination.keys)) == ["1", "4"]


async def test_cookies_are_not_kept(make: Make, destination: Destination):
    destination.answer = lambda _: say(200, set_cookie="session=1; Path=/")
    await publish(make(concurrency=1), made("1"), made("2"))
    assert [call.header("cookie") for call in destination.calls] == [None, None]


async def test_proxies_of_the_environment_are_not_asked(
    make: Make, destination: Destination, monkeypatch: pytest.MonkeyPatch
):
    async with Destination() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://localhost:{proxy.port}")
        assert await publish(make(), made()) == [CONFIRMED]
        assert (proxy.connections, destination.connections) == (0, 1)


async def test_garbage_is_no_answer(make: Make, destination: Destination):
    destination.answer = lambda _: Say(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", hang_up=True)
    assert verdicts(await publish(make(), made())) == ["unknown"]
    destination.answer = lambda call: Say(b"\0" * 100, hang_up=True) if call.key == "2" else say()
    assert verdicts(await publish(make(), made("1"), made("2"))) == ["confirmed", "rejected"]
