"""What the HTTP publisher puts on the wire, and its receipts, at a real server that can be told to do anything."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from outboxkit import BrokerUnavailable
from outboxkit.brokers import CONFIRMED, Answer, Receipt
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


async def test_every_message_goes_to_the_one_url(make: Make, destination: Destination):
    async with Destination() as evil:
        elsewhere = f"localhost:{evil.port}"
        batch = [
            made("1", topic=f"//{elsewhere}/"),
            made("2", topic=f"http://{elsewhere}/", key="../../admin"),
            made(
                "3", headers={"Host": elsewhere, "hOsT": elsewhere, "X-Original-URL": "/admin", "Forwarded": "host=x"}
            ),
            made("4", headers={"tenant": f"a\r\nHost: {elsewhere}\r\n\r\nGET / HTTP/1.1"}),
            made("5", headers={"a\r\nHost": elsewhere, "Transfer-Encoding": "chunked", "Content-Length": 0}),
            made(
                "6", headers={"Authorization": "Basic eDp5", "Cookie": "a=b", "Connection": "close", "TE": "trailers"}
            ),
        ]
        assert verdicts(await publish(make(concurrency=1), *batch)) == ["confirmed"] * 6
        assert evil.connections == 0
    assert destination.connections == 1
    assert {(call.target, call.header("host")) for call in destination.calls} == {
        ("/hooks?of=shop", f"localhost:{destination.port}")
    }
    assert all(call.body == b"{}" for call in destination.calls)
    unwanted = {"authorization", "cookie", "transfer-encoding", "te", "connection", "x-original-url", "forwarded"}
    assert not unwanted & {name.lower() for call in destination.calls for name, _ in call.headers}
    assert (
        destination.calls[3].header("tenant") == f"a%0D%0AHost:%20localhost:{evil.port}%0D%0A%0D%0AGET%20/%20HTTP/1.1"
    )


@pytest.mark.parametrize(
    ("said", "receipt"),
    [
        (say(200, b'{"ok":1}', content_type="application/json; charset=utf-8"), ("confirmed", None, None, False)),
        (say(409, b"busy", retry_after="7"), ("rejected", "409 Conflict", 7, False)),
        (say(502, retry_after="86400"), ("rejected", "502 Bad Gateway", 3600, False)),
        (say(429, retry_after="3"), ("postponed", "429 Too Many Requests", 3, False)),
        (say(400, b"x" * 3000), ("rejected", "400 Bad Request", None, True)),
        (say(307, location="/x"), ("rejected", "307 Temporary Redirect: redirects are not followed", None, True)),
    ],
    ids=lambda value: value[1] or value[0] if isinstance(value, tuple) else "",
)
async def test_what_a_response_means(make: Make, destination: Destination, said: Say, receipt: tuple[Any, ...]):
    destination.answer = lambda _: said
    (found,) = await publish(make(), made())
    after = None if found.after is None else found.after.total_seconds()
    assert (str(found.verdict), found.reason, after, found.final) == receipt
    assert len(destination.calls) == 1, "redirects are not followed, and nothing is repeated here"


async def test_an_answer_is_kept_up_to_its_limit(make: Make, destination: Destination):
    destination.answer = lambda call: say(200, call.body, content_type="text/x-charged")
    publisher = make(max_answer=10)
    fits, empty, longer = await publish(
        publisher, made("1", payload=b"0123456789"), made("2", payload=b""), made("3", payload=b"01234567890")
    )
    assert fits == Receipt(CONFIRMED.verdict, answer=Answer(b"0123456789", "text/x-charged"))
    assert empty == CONFIRMED
    assert longer == Receipt(CONFIRMED.verdict, "its answer is longer than 10 bytes and was not kept")
    destination.answer = lambda _: say(200, b"\x1f\x8b", content_encoding="gzip")
    (packed,) = await publish(publisher, made())
    assert (packed.verdict, packed.answer) == (CONFIRMED.verdict, None)
    assert "an encoding that was not asked for" in str(packed.reason)
    assert "accept-encoding" in dict(destination.calls[0].headers)


async def test_no_secret_is_shown(make: Make, destination: Destination, caplog: pytest.LogCaptureFixture):
    caplog.set_level("DEBUG")
    destination.answer = lambda call: say(400, json.dumps(dict(call.headers)).encode() + call.body)
    url = destination.url.replace("localhost", "user:p%2Fw@localhost").replace("of=shop", "token=swordfish")
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    for publisher, secrets in (
        (make(url=url, secret=secret), ["dXNlcjpwL3c=", "p/w", "p%2Fw", "p\\/w", secret, secret[6:]]),
        (make(authorization="Bearer hunter2", secret=secret), ["hunter2", secret, secret[6:]]),
    ):
        (receipt,) = await publish(publisher, made(payload=" ".join(secrets).encode()))
        for each in secrets:
            assert each not in f"{receipt!r} {publisher!r} {publisher._target!r} {caplog.text}"
        assert "swordfish" not in f"{publisher!r} {publisher._target!r} {caplog.text}"
    destination.answer = lambda call: Say(f"{call.header('authorization')}\r\n\r\n".encode(), hang_up=True)
    (receipt,) = await publish(make(authorization="Bearer hunter2"), made())
    assert "hunter2" not in str(receipt.reason)
    assert repr(make(url=url)) == f"HttpPublisher('http://localhost:{destination.port}')"
    await destination.refuse()
    with pytest.raises(BrokerUnavailable) as raised:
        await publish(make(url=url), made())
    assert not [each for each in ("p/w", "p%2Fw", "swordfish", "user") if each in str(raised.value)]


async def test_who_cannot_be_reached_blames_no_message(make: Make, destination: Destination):
    publisher = make()
    await destination.refuse()
    with pytest.raises(BrokerUnavailable, match=rf"localhost:{destination.port}: .*Connect call failed"):
        await publish(publisher, made("1"), made("2"))
    with pytest.raises(BrokerUnavailable, match=r"http://nowhere\.invalid: .*not known|resolution|No address"):
        await publish(make(url="http://nowhere.invalid/"), made())
    await destination.listen()
    assert verdicts(await publish(publisher, made("1"), made("2"))) == ["confirmed", "confirmed"]


async def test_a_closed_publisher_is_no_connection(make: Make, destination: Destination):
    publisher = make()
    with pytest.raises(BrokerUnavailable, match="not connected"):
        await publisher.publish([made()])
    assert await publish(publisher) == []
    await publisher.close()
    await publisher.close()
    with pytest.raises(BrokerUnavailable):
        await publisher.publish([made()])
    assert await publish(publisher, made()) == [CONFIRMED]


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
