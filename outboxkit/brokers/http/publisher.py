"""The relay's side of an HTTP destination: one POST for each message, some at a time."""

import asyncio
import ssl
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version

import httpx
import structlog

from outboxkit.brokers import Receipt, Verdict
from outboxkit.brokers.http import request, target, verdict
from outboxkit.brokers.http.call import Call, reason_of
from outboxkit.brokers.http.order import Answered, Lost, Outcome, SendOrder, Unreached
from outboxkit.brokers.http.verdict import Response
from outboxkit.errors import BrokerUnavailable, ConfigurationError
from outboxkit.message import Message

KEEPALIVE_SECONDS = 30.0
"""For how long a connection that nobody uses is kept open."""
MAX_ANSWER = 1024 * 1024
REMIND_SECONDS = 60.0
"""How often it is said again that the destination refuses the sender."""


class HttpPublisher:
    """Posts messages to one URL. Which one, and who asks, comes from these arguments alone, never from a message.

    Redirects are not followed, cookies not kept, proxies and passwords not taken from the environment. Certificates are
    verified against the system's store, or what `SSL_CERT_FILE` names.

    Args:
        url: `http://` or `https://`; a user and a password in it are sent as Basic authorization.
        timeout: how long one request may take in all. No request is begun later than that after `publish` was called,
            so that it returns within twice as long.
        concurrency: requests, and connections, that are open at once.
        authorization: the value of the `Authorization` header.
        secret: requests are signed with it (Standard Webhooks): `whsec_` and the base64 of 24 to 64 bytes.
        cloudevents: send the attributes of CloudEvents 1.0 as headers (binary mode).
        source: their `source`.
        max_answer: bytes of an answer that are kept. The receipt of a longer one is a confirm with a reason and
            without an answer.

    Raises:
        ConfigurationError: one of them cannot be used. The text shows no secret.
    """

    slow = True

    def __init__(
        self,
        url: str,
        *,
        timeout: timedelta = timedelta(seconds=10),
        concurrency: int = 8,
        authorization: str | None = None,
        secret: str | None = None,
        cloudevents: bool = False,
        source: str = "outboxkit",
        max_answer: int = MAX_ANSWER,
    ) -> None:
        self._target = target.parse(url, authorization=authorization, secret=secret)
        if cloudevents and not source:
            raise ConfigurationError("CloudEvents need a source: a URI, or a name such as /shop")
        if concurrency < 1 or max_answer < 1 or timeout <= timedelta(0):
            raise ConfigurationError("an HTTP destination needs a concurrency, a limit and a timeout of more than 0")
        self._timeout = timeout.total_seconds()
        self._concurrency = concurrency
        self._source = source if cloudevents else None
        self._max_answer = max_answer
        self._fixed = _fixed_headers(self._target)
        self._transport: httpx.AsyncHTTPTransport | None = None
        self._suspects: frozenset[str] = frozenset()
        self._is_refused = False
        self._told_at: float | None = None
        self._log = structlog.get_logger("outboxkit").bind(destination=self._target.origin)

    def __repr__(self) -> str:
        return f"HttpPublisher({self._target.origin!r})"

    @property
    def address(self) -> str:
        """Scheme, host and port of the destination."""
        return self._target.origin

    async def connect(self) -> None:
        """Be ready; nothing is opened before there is a message to send."""
        if self._transport is None:
            self._transport = _transport(self._target, self._concurrency)

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        """Send every message, in its order among those of its key, and judge each by its response.

        Once the destination has refused the sender (401, 403, 407), one message goes ahead of the others. While that
        is refused as well, the destination is away.

        Raises:
            BrokerUnavailable: it is closed, or there was no connection: no request has left. Or it refuses the sender.
        """
        transport = self._transport
        if transport is None:
            raise BrokerUnavailable(f"not connected to {self._target.origin}")
        lanes = SendOrder(batch, self._suspects)
        until = time.monotonic() + self._timeout

        async def work(most: int) -> None:
            while most and time.monotonic() < until and (index := lanes.next()) is not None:
                lanes.put(index, await self._outcome(transport, batch[index]))
                most -= 1

        if self._is_refused:
            await work(1)
            if lanes.refusal is not None:
                self._suspects = lanes.still_suspect()
                self._tell(lanes.refusal)
                raise BrokerUnavailable(lanes.refusal)
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(self._concurrency, len(batch))):
                workers.create_task(work(len(batch)))
        self._suspects = lanes.still_suspect()
        self._is_refused = lanes.refusal is not None
        if lanes.refusal is not None:
            self._tell(lanes.refusal)
        return lanes.receipts()

    def _tell(self, refusal: str) -> None:
        """Log it, once a minute at most."""
        now = time.monotonic()
        if self._told_at is None or now - self._told_at >= REMIND_SECONDS:
            self._told_at = now
            self._log.error("the destination refuses the sender: look at its credentials", error=refusal)

    async def close(self) -> None:
        """Close the connections; a later `connect` begins anew."""
        gone, self._transport = self._transport, None
        if gone is not None:
            await gone.aclose()

    async def _outcome(self, transport: httpx.AsyncBaseTransport, message: Message) -> Outcome:
        """What came of one message, whatever happened: nothing here ends the others or the process."""
        try:
            if (refusal := request.refusal(message)) is not None:
                return Answered(Receipt(Verdict.UNROUTABLE, refusal), heard=False)
            call = Call(transport, self._request(message), seconds=self._timeout, limit=self._max_answer)
        except Exception as error:  # noqa: BLE001 - it is the message that cannot be written
            return self._unsendable(error)
        try:
            return self._judged(await call.outcome())
        except httpx.LocalProtocolError as error:
            return self._unsendable(error)

    def _judged(self, found: Response | Lost | Unreached) -> Outcome:
        hide = self._target.hide
        match found:
            case Lost(reason):
                return Lost(verdict.shown(reason, hide))
            case Unreached(reason):
                return Unreached(f"cannot connect to {self._target.origin}: {verdict.shown(reason, hide)}")
            case response:
                receipt = verdict.judge(response, limit=self._max_answer, now=datetime.now(UTC), hide=hide)
                return Answered(receipt, unauthorized=response.status in verdict.UNAUTHORIZED)

    def _unsendable(self, error: Exception) -> Answered:
        reason = verdict.shown(reason_of(error), self._target.hide)
        return Answered(Receipt(Verdict.REJECTED, f"it is no HTTP request: {reason}", final=True), heard=False)

    def _request(self, message: Message) -> httpx.Request:
        headers = request.headers_of(message, source=self._source) | self._fixed
        if self._target.key is not None:
            id_, now = request.key_of(message), datetime.now(UTC)
            headers |= request.signed(self._target.key, id=id_, body=message.payload, now=now)
        return httpx.Request("POST", self._target.url, headers=headers, content=message.payload)


def _fixed_headers(of: target.Target) -> dict[str, str]:
    try:
        agent = f"outboxkit/{version('outboxkit')}"
    except PackageNotFoundError:  # run from its sources
        agent = "outboxkit"
    headers = {"user-agent": agent, "accept": "*/*", "accept-encoding": "identity"}
    return headers if of.authorization is None else headers | {"authorization": of.authorization}


def _transport(to: target.Target, concurrency: int) -> httpx.AsyncHTTPTransport:
    """The connections of httpx without its client, whose redirects, cookies, proxies and log of URLs nobody wants."""
    return httpx.AsyncHTTPTransport(
        verify=ssl.create_default_context() if to.url.scheme == "https" else False,
        trust_env=False,
        http1=True,
        http2=False,
        limits=httpx.Limits(
            max_connections=concurrency, max_keepalive_connections=concurrency, keepalive_expiry=KEEPALIVE_SECONDS
        ),
    )
