"""A snapshot of the broker: what AMQP and the management API tell, read once and within seconds.

It publishes nothing, consumes nothing and changes nothing. A passive declaration tells whether something is there, and
a declaration of what is there whether it is as expected. The broker closes the channel of each one that it refuses.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qs, urlsplit

import aio_pika
import aiormq
import msgspec

from outboxkit.brokers.rabbitmq import connection
from outboxkit.brokers.rabbitmq.topology import dead_queue, shared_declarations
from outboxkit.errors import BrokerRefused, BrokerUnavailable
from outboxkit.errors.failures import printable
from outboxkit.operators.doctor.broker.expected import ExpectedBroker
from outboxkit.operators.doctor.broker.management import PORT, TLS_PORT, UNAUTHORIZED, ApiAnswer, Management
from outboxkit.runtime import urls

T = TypeVar("T")
NAME = "outboxkit doctor"
MOST_QUEUES = 60
"""Queues that are looked at, one by one."""
AT_ONCE = 8
"""Questions to the API at the same time."""

Obstacle = Literal["away", "certificate", "login", "vhost", "access"]
"""A reason for which a broker cannot be used: nobody answers, or it does not let this user in."""
Denied = Literal["missing", "different", "forbidden", "broken"]
"""A reason for which a declaration was refused."""


@dataclass(frozen=True, slots=True)
class BrokerRefusal:
    """The refusal of a connection or of a declaration: its kind, and the words of the broker or of the network."""

    kind: Obstacle | Denied
    reason: str


@dataclass(frozen=True, slots=True)
class Depth:
    """The length of a queue: its ready messages, and its consumers."""

    messages: int
    consumers: int


class Bound(msgspec.Struct, frozen=True):
    """A binding, as the API tells it."""

    source: str
    destination: str
    destination_type: str
    routing_key: str = ""


class ExchangeReport(msgspec.Struct, frozen=True):
    """An exchange, as the API tells it."""

    name: str
    type: str
    arguments: Any = None
    policy: str | None = None

    @property
    def alternate(self) -> str | None:
        """The exchange that gets what this one cannot route."""
        value = _mapping(self.arguments).get("alternate-exchange")
        return value if isinstance(value, str) else None


class QueueReport(msgspec.Struct, frozen=True):
    """A queue, as the API tells it. Most of it is missing for the first seconds of a queue's life."""

    name: str
    type: str = "classic"
    arguments: Any = None
    policy: str | None = None
    operator_policy: str | None = None
    effective_policy_definition: Any = None
    messages_ready: int = 0
    message_bytes_ready: int = 0
    consumers: int = 0

    def effective(self, name: str) -> Any:
        """The value that holds of an argument and of its policies; of two numbers the smaller one. None: there is none.

        Args:
            name: as policies have it, such as `message-ttl`. The argument has an `x-` before it.
        """
        own = _mapping(self.arguments).get(f"x-{name}")
        policy = _mapping(self.effective_policy_definition).get(name)
        if isinstance(own, int) and isinstance(policy, int):
            return min(own, policy)
        return policy if own is None else own

    def is_by_policy(self, name: str) -> bool:
        """Whether a policy has the value that holds."""
        by_policy = _mapping(self.effective_policy_definition).get(name)
        return by_policy is not None and by_policy == self.effective(name)


class Rights(msgspec.Struct, frozen=True):
    """The patterns of names that a user may configure, write and read in a virtual host."""

    user: str
    configure: str
    write: str
    read: str


class ApiReports(msgspec.Struct, frozen=True):
    """The reports of the API. None: it is not there, or this user may not see it.

    Attributes:
        alarms: what is in alarm, such as `memory on rabbit@a`.
        queues: by name, those that were looked at; None for one that is not there.
    """

    alarms: tuple[str, ...] | None = None
    rights: Rights | None = None
    bindings: tuple[Bound, ...] | None = None
    exchanges: Mapping[str, ExchangeReport] | None = None
    queues: Mapping[str, QueueReport | None] = {}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is known about a broker.

    Attributes:
        refusals: why each of its URLs cannot be used.
        version: the lowest of the nodes that can be used; empty if none can, or if it is not known.
        is_open: whether a node let this user in.
        exchange: why the exchange is not as it should be; None if it is.
        depths: of our queues and those beside them, by name.
        differences: why a queue that is there is not as it should be, by name.
        interrupted: why AMQP ended in the middle; empty if it did not.
        reports: of the management API; None if it cannot be read.
        silence: why it cannot be read; empty if it can.
    """

    expected: ExpectedBroker
    refusals: Mapping[str, BrokerRefusal] = field(default_factory=dict)
    version: tuple[int, ...] = ()
    is_open: bool = False
    exchange: BrokerRefusal | None = None
    depths: Mapping[str, Depth | BrokerRefusal] = field(default_factory=dict)
    differences: Mapping[str, BrokerRefusal] = field(default_factory=dict)
    interrupted: str = ""
    reports: ApiReports | None = None
    silence: str = ""

    @property
    def bound(self) -> list[Bound]:
        """The bindings of the exchange to which relays publish."""
        bindings = (self.reports.bindings if self.reports is not None else None) or ()
        return [each for each in bindings if each.source == self.expected.exchange]

    @property
    def queues(self) -> list[QueueReport]:
        """The reports of the queues that are there."""
        return [each for each in (self.reports.queues if self.reports is not None else {}).values() if each is not None]

    @property
    def is_shared(self) -> bool:
        """Whether the retry queues that the virtual host's consumers share are all there."""
        return all(isinstance(self.depths.get(name), Depth) for name in shared_declarations(self.expected.delays))


async def take_snapshot(expected: ExpectedBroker) -> Snapshot:
    """The snapshot of this broker, over AMQP and through its management API at the same time."""
    amqp, (reports, silence) = await asyncio.gather(_over_amqp(expected), _over_api(expected))
    return replace(amqp, reports=reports, silence=silence)


async def _over_amqp(expected: ExpectedBroker) -> Snapshot:
    refusals, opened = dict[str, BrokerRefusal](), list[aio_pika.abc.AbstractConnection]()
    depths, differences = dict[str, Depth | BrokerRefusal](), dict[str, BrokerRefusal]()

    async def connect(url: str) -> None:
        try:
            opened.append(await connection.connect(url, name=NAME, timeout=expected.timeout))
        except BrokerUnavailable as error:
            reason = str(error).removeprefix(f"cannot connect to {urls.shown(url)}: ")
            refusals[url] = BrokerRefusal(_obstacle(error), printable(reason))

    try:
        await asyncio.gather(*map(connect, expected.urls))
        version = min(filter(None, map(_version, opened)), default=())
        snapshot = Snapshot(expected, refusals, version, bool(opened), depths=depths, differences=differences)
        if opened:
            try:
                async with asyncio.timeout(expected.timeout):
                    exchange = await _exchange(opened[0], expected.exchange)
                    snapshot = replace(snapshot, exchange=exchange)
                    await _ask_queues(opened[0], expected, depths, differences)
            except (BrokerUnavailable, TimeoutError) as error:
                snapshot = replace(snapshot, interrupted=str(error) or "no answer in time")
        return snapshot
    finally:
        await asyncio.gather(*map(connection.close, opened))


def _version(opened: aio_pika.abc.AbstractConnection) -> tuple[int, ...]:
    wire: Any = opened.transport and opened.transport.connection
    version = wire.server_properties.get("version") if wire is not None else b""
    return numbers_of(version.decode(errors="replace") if isinstance(version, bytes | bytearray) else str(version))


def numbers_of(version: str) -> tuple[int, ...]:
    """The numbers of a version, such as 3, 10 and 8."""
    parts = version.split("-", maxsplit=1)[0].split("+", maxsplit=1)[0].split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()


async def _exchange(opened: aio_pika.abc.AbstractConnection, name: str) -> BrokerRefusal | None:
    """The reason why there is no durable topic exchange of this name; None if there is one."""

    async def look(channel: aiormq.abc.AbstractChannel) -> None:
        await channel.exchange_declare(name, passive=True)

    async def compare(channel: aiormq.abc.AbstractChannel) -> None:
        await channel.exchange_declare(name, exchange_type="topic", durable=True)

    return await _ask(opened, f"exchange {name!r}", look) or await _ask(opened, f"exchange {name!r}", compare)


async def _ask_queues(
    opened: aio_pika.abc.AbstractConnection,
    expected: ExpectedBroker,
    depths: dict[str, Depth | BrokerRefusal],
    differences: dict[str, BrokerRefusal],
) -> None:
    """Ask for each queue, and compare it with the declaration of a consumer if it is there."""
    draining = (name for move in expected.moves.values() for name in move.draining)
    named: dict[str, dict[str, Any] | None] = dict.fromkeys((*(each.name for each in expected.registered), *draining))
    for name, arguments in (named | expected.declarations).items():

        async def look(channel: aiormq.abc.AbstractChannel, name: str = name) -> Depth:
            answer = await channel.queue_declare(name, passive=True)
            return Depth(answer.message_count or 0, answer.consumer_count or 0)

        async def compare(channel: aiormq.abc.AbstractChannel, name: str = name, own: Any = arguments) -> None:
            await channel.queue_declare(name, durable=True, arguments=own)

        depths[name] = depth = await _ask(opened, f"queue {name!r}", look)
        if isinstance(depth, Depth) and expected.is_declared and arguments is not None:
            difference = await _ask(opened, f"queue {name!r}", compare)
            if difference is not None:
                differences[name] = difference


async def _ask(
    opened: aio_pika.abc.AbstractConnection, what: str, ask: Callable[[aiormq.abc.AbstractChannel], Awaitable[T]]
) -> T | BrokerRefusal:
    """The answer on a channel of its own, or the refusal."""
    try:
        with connection.convert_errors(f"cannot look at {what}"):
            channel = await opened.channel(publisher_confirms=False)
            answer = await ask(await channel.get_underlay_channel())
            await channel.close()
            return answer
    except BrokerUnavailable as error:
        cause = error.__cause__
        if not isinstance(cause, aiormq.exceptions.AMQPChannelError):
            raise
        return BrokerRefusal(_denied(cause), printable(connection.describe(cause)))


def _obstacle(error: BrokerUnavailable) -> Obstacle:
    if isinstance(error, BrokerRefused):
        kinds: dict[str, Obstacle] = {"login": "login", "vhost": "vhost", "access": "access"}
        return kinds.get(error.kind, "certificate")
    cause = error.__cause__
    is_tls = cause is not None and isinstance(cause.__cause__ or cause, ssl.SSLError)
    return "certificate" if is_tls else "away"


def _denied(cause: aiormq.exceptions.AMQPChannelError) -> Denied:
    if isinstance(cause, aiormq.exceptions.ChannelAccessRefused):
        return "forbidden"
    if isinstance(cause, aiormq.exceptions.ChannelPreconditionFailed):
        return "different"
    return "missing" if "no queue" in str(cause) or "no exchange" in str(cause) else "broken"


async def _over_api(expected: ExpectedBroker) -> tuple[ApiReports | None, str]:
    """The reports of the first node whose API answers, or the reason of the last one."""
    silence = ""
    for api in _apis(expected):
        try:
            async with asyncio.timeout(expected.timeout):
                return await read_reports(api, expected), ""
        except (BrokerUnavailable, TimeoutError) as error:
            silence = str(error) or f"the management API at {api.address} gave no answer in time"
    return None, silence


def _apis(expected: ExpectedBroker) -> list[Management]:
    if expected.management is not None:
        return [Management(expected.management, expected.user, timeout=expected.timeout)]
    apis = []
    for url in expected.urls[:2]:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or "localhost"
        address = f"http://{host}:{PORT}" if parts.scheme == "amqp" else f"https://{host}:{TLS_PORT}"
        verify, cafile = query.get("no_verify_ssl", ["0"])[0] == "0", query.get("cafile", [None])[0]
        apis.append(Management(address, expected.user, timeout=expected.timeout / 2, verify=verify, cafile=cafile))
    return apis


async def read_reports(api: Management, expected: ExpectedBroker) -> ApiReports:
    """The reports that the API's user may see.

    Raises:
        BrokerUnavailable: nothing answers there, or it does not let this user in.
    """
    user = await api.get("whoami")
    if user.status in UNAUTHORIZED:
        why = "the password is another one, or the user lacks the tag “monitoring”"
        raise BrokerUnavailable(f"the management API at {api.address} does not let user {api.user!r} in: {why}")
    if not isinstance(user.content, dict):
        raise BrokerUnavailable(f"there is no management API at {api.address}: status {user.status}")
    vhost = expected.vhost
    paths = (("health", "checks", "alarms"), ("permissions", vhost, expected.user[0]), ("bindings", vhost),
             ("exchanges", vhost))  # fmt: skip
    alarms, rights, bindings, exchanges = await _all(api, paths)
    bound = _as(bindings, tuple[Bound, ...])
    names = _queues_of(expected, bound)
    answers = await _all(api, [("queues", vhost, name) for name in names])
    listed = _as(exchanges, tuple[ExchangeReport, ...])
    return ApiReports(
        alarms=_alarms(alarms),
        rights=_as(rights, Rights),
        bindings=bound,
        exchanges=None if listed is None else {each.name: each for each in listed},
        queues={
            name: _as(answer, QueueReport)
            for name, answer in zip(names, answers, strict=True)
            if answer.status in (200, 404)
        },
    )


def _queues_of(expected: ExpectedBroker, bound: Iterable[Bound] | None) -> list[str]:
    """Our queues with those beside them, then others that get our messages."""
    ours = list(expected.declarations)
    ours += [name for queue in expected.registered for name in (queue.name, dead_queue(queue.name))]
    others = [each for each in bound or () if each.source == expected.exchange and each.destination_type == "queue"]
    return list(dict.fromkeys([*ours, *sorted(each.destination for each in others)]))[:MOST_QUEUES]


async def _all(api: Management, paths: Sequence[tuple[str, ...]]) -> list[ApiAnswer]:
    """The answers, in the order of the paths. One that fails has the status 0."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(path: tuple[str, ...]) -> ApiAnswer:
        async with turns:
            try:
                return await api.get(*path)
            except BrokerUnavailable:
                return ApiAnswer(0, None)

    return await asyncio.gather(*map(one, paths))


def _as(answer: ApiAnswer, kind: Any) -> Any:
    """The answer as this kind of report; None if it is another one."""
    if answer.status != 200:
        return None
    try:
        return msgspec.convert(answer.content, kind, strict=False)
    except msgspec.ValidationError:
        return None


def _alarms(answer: ApiAnswer) -> tuple[str, ...] | None:
    if answer.status not in (200, 503) or not isinstance(answer.content, dict):
        return None
    alarms = answer.content.get("alarms") or ()
    named = [each for each in alarms if isinstance(each, dict)] if isinstance(alarms, list) else []
    return tuple(f"{each.get('resource')} on {each.get('node')}" for each in named) or (
        () if answer.status == 200 else (str(answer.content.get("reason")),)
    )


def _mapping(value: object) -> Mapping[str, Any]:
    """The value, if it has names; the API has an empty list in place of an empty object."""
    return value if isinstance(value, dict) else {}
