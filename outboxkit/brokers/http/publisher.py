"""Publisher to an HTTP destination: one POST for each message, several at a time."""

import asyncio
import ssl
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

import httpx
import structlog

from outboxkit import defaults
from outboxkit.brokers import Publisher, Receipt, Verdict
from outboxkit.brokers.http import request, verdict
from outboxkit.brokers.http.call import Call, reason_of
from outboxkit.brokers.http.order import Answered, CallOutcome, Lost, SendOrder, Unreached
from outboxkit.brokers.http.verdict import HttpResponse
from outboxkit.codec.payloads import MAX_PAYLOAD_BYTES
from outboxkit.errors import BrokerUnavailable, ConfigurationError
from outboxkit.message import Message
from outboxkit.telemetry import tracing

KEEPALIVE_SECONDS = 30.0
"""The time after which an idle connection is closed."""
ROUNDS = 8
"""A batch has so many times the requests that may be open at once."""


class HttpPublisher(Publisher):
    """A publisher that posts messages to one URL. URL and credentials come from its arguments, never from a message.

    It follows no redirects, keeps no cookies, and takes no proxies or passwords from the environment. Certificates are
    verified against the system's store, or the one that `SSL_CERT_FILE` names.

    Args:
        url: `http://` or `https://`. A user and a password in it are sent as Basic authorization.
        timeout: the limit for one request. `publish` starts none after this time and so returns within twice as long.
        concurrency: the limit of open requests and of connections.
        authorization: the value of the `Authorization` header.
        secret: the key for signatures (Standard Webhooks): `whsec_` and the base64 of 24 to 64 bytes.
        cloudevents_source: messages are CloudEvents 1.0 of this `source`; None: they are none.
        max_answer: bytes of an answer that are kept. The receipt of a longer one is a confirm with a reason and
            without an answer.

    Raises:
        ConfigurationError: an argument is invalid. The text shows no secret.
    """

    slow = True
    peer = "destination"

    def __init__(
        self,
        url: str,
        *,
        timeout: timedelta = defaults.PUBLISH_TIMEOUT,
        concurrency: int = defaults.CONCURRENCY,
        authorization: str | None = None,
        secret: str | None = None,
        cloudevents_source: str | None = None,
        max_answer: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self._target = request.parse(url, authorization=authorization, secret=secret)
        if concurrency < 1 or max_answer < 1 or timeout <= timedelta(0):
            raise ConfigurationError("an HTTP destination needs a concurrency, a limit and a timeout of more than 0")
        self._timeout = timeout.total_seconds()
        self._concurrency, self.batch_limit = concurrency, ROUNDS * concurrency
        self._source, self._max_answer = cloudevents_source, max_answer
        self._fixed = _fixed_headers(self._target)
        self._transport: httpx.AsyncHTTPTransport | None = None
        self._unclear: frozenset[str] = frozenset()
        self._trouble: str | None = None
        self._is_refused = False
        self._warned_at: float | None = None
        self._log = structlog.get_logger("outboxkit").bind(destination=self._target.origin)

    def __repr__(self) -> str:
        return f"HttpPublisher({self._target.origin!r})"

    @property
    def address(self) -> str:
        """Scheme, host and port of the destination."""
        return self._target.origin

    @property
    def trouble(self) -> str | None:
        """The reason for which the latest requests got no response, or a refusal of the sender."""
        return self._trouble

    async def connect(self) -> None:
        """Make the publisher ready. A connection is opened when there is a message to send."""
        if self._transport is None:
            self._transport = _transport(self._target, self._concurrency)

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        """Send every message, those of one key in order, and return the receipts for the responses.

        After a refusal of the sender (401, 403, 407), one message of the next batch is sent ahead of the others. If it
        is refused as well, the destination counts as away.

        Raises:
            BrokerUnavailable: no request was sent, because the publisher is closed or there is no connection. Or the
                destination refuses the sender.
        """
        transport = self._transport
        if transport is None:
            raise BrokerUnavailable(f"not connected to {self._target.origin}")
        order = SendOrder(batch, self._unclear)
        until = time.monotonic() + self._timeout

        async def work(limit: int) -> None:
            while limit and time.monotonic() < until and (index := order.next()) is not None:
                order.put(index, await self._outcome(transport, batch[index]))
                limit -= 1

        if self._is_refused:
            await work(1)
            self._trouble = order.trouble(self._trouble)
            if order.refusal is not None:
                self._unclear = order.unclear()
                self._warn(order.refusal)
                raise BrokerUnavailable(order.refusal)
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(self._concurrency, len(batch))):
                workers.create_task(work(len(batch)))
        self._unclear, self._trouble = order.unclear(), order.trouble(self._trouble)
        self._is_refused = order.refusal is not None
        if order.refusal is not None:
            self._warn(order.refusal)
        return order.receipts()

    def _warn(self, refusal: str) -> None:
        """Log the refusal, at most once a minute."""
        now = time.monotonic()
        if self._warned_at is None or now - self._warned_at >= defaults.REMIND_SECONDS:
            self._warned_at = now
            self._log.error("the destination refuses the sender: look at its credentials", error=refusal)

    async def close(self) -> None:
        """Close the connections. After a later `connect` new ones are opened."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def _outcome(self, transport: httpx.AsyncBaseTransport, message: Message) -> CallOutcome:
        """The outcome of one message. No error of one message ends the others or the process."""
        try:
            if (refusal := request.refusal_of(message)) is not None:
                return Answered(Receipt(Verdict.UNROUTABLE, refusal), responded=False)
            call = Call(transport, self._request(message), seconds=self._timeout, limit=self._max_answer)
        except Exception as error:  # noqa: BLE001 - the message cannot be written as a request
            return self._unsendable(error)
        try:
            with tracing.carrying(message):  # an instrumented httpx continues it
                return self._outcome_of(await call.outcome())
        except httpx.LocalProtocolError as error:
            return self._unsendable(error)

    def _outcome_of(self, result: HttpResponse | Lost | Unreached) -> CallOutcome:
        match result:
            case Lost():
                return result
            case Unreached(reason, was_sent):
                return Unreached(f"cannot connect to {self._target.origin}: {reason}", was_sent)
            case response:
                receipt = verdict.receipt_of(response, limit=self._max_answer, now=datetime.now(UTC))
                return Answered(receipt, unauthorized=response.status in verdict.UNAUTHORIZED)

    def _unsendable(self, error: Exception) -> Answered:
        receipt = Receipt(Verdict.REJECTED, f"it cannot be written as an HTTP request: {reason_of(error)}", final=True)
        return Answered(receipt, responded=False)

    def _request(self, message: Message) -> httpx.Request:
        headers = request.headers_of(message, source=self._source) | self._fixed
        if self._target.key is not None:
            id_, now = request.key_of(message), datetime.now(UTC)
            headers |= request.signature_headers(self._target.key, id=id_, body=message.payload, now=now)
        return httpx.Request("POST", self._target.url, headers=headers, content=message.payload)


def _fixed_headers(destination: request.RequestTarget) -> dict[str, str]:
    headers = {"user-agent": f"outboxkit/{version('outboxkit')}", "accept": "*/*", "accept-encoding": "identity"}
    if destination.authorization is not None:
        headers["authorization"] = destination.authorization
    return headers


def _transport(destination: request.RequestTarget, concurrency: int) -> httpx.AsyncHTTPTransport:
    """The connection pool of httpx alone: no redirects, cookies, proxies or logged URLs."""
    return httpx.AsyncHTTPTransport(
        verify=ssl.create_default_context() if destination.url.scheme == "https" else False,
        trust_env=False,
        http1=True,
        http2=False,
        limits=httpx.Limits(
            max_connections=concurrency, max_keepalive_connections=concurrency, keepalive_expiry=KEEPALIVE_SECONDS
        ),
    )
