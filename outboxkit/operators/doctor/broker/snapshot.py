"""A snapshot of the broker: what AMQP and the management API tell, read once and within seconds."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from outboxkit.brokers.rabbitmq.topology import dead_queue, shared_declarations
from outboxkit.errors import BrokerUnavailable
from outboxkit.operators.doctor.broker.expected import ExpectedBroker
from outboxkit.operators.doctor.broker.inspection import BrokerRefusal, Depth, Inspection, inspect
from outboxkit.operators.doctor.broker.management import PORT, TLS_PORT, UNAUTHORIZED, ApiAnswer, Management

MOST_QUEUES = 60
"""Queues that are looked at, one by one."""
AT_ONCE = 8
"""Questions to the API at the same time."""


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
    messages_unacknowledged: int = 0
    message_stats: Any = None
    consumers: int = 0

    @property
    def is_stalled(self) -> bool:
        """Whether messages wait, others are with consumers, and none was acked in the last seconds."""
        rate = _mapping(_mapping(self.message_stats).get("ack_details")).get("rate", 0)
        return bool(self.messages_ready and self.messages_unacknowledged and self.consumers and not rate)

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
        expected: what is expected of it.
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


def numbers_of(version: str) -> tuple[int, ...]:
    """The numbers of a version, such as 3, 10 and 8."""
    parts = version.split("-", maxsplit=1)[0].split("+", maxsplit=1)[0].split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()


async def take_snapshot(expected: ExpectedBroker) -> Snapshot:
    """The snapshot of this broker, over AMQP and through its management API at the same time."""
    amqp, (reports, silence) = await asyncio.gather(_over_amqp(expected), _over_api(expected))
    return replace(amqp, reports=reports, silence=silence)


async def _over_amqp(expected: ExpectedBroker) -> Snapshot:
    refusals, versions = dict[str, BrokerRefusal](), dict[str, tuple[int, ...]]()

    async def connect(url: str) -> None:
        async with inspect(url, timeout=expected.timeout) as inspection:
            if isinstance(inspection, BrokerRefusal):
                refusals[url] = inspection
            else:
                versions[url] = numbers_of(inspection.version)

    await asyncio.gather(*map(connect, expected.urls))
    snapshot = Snapshot(expected, refusals, min(filter(None, versions.values()), default=()), bool(versions))
    if not versions:
        return snapshot
    depths: dict[str, Depth | BrokerRefusal] = {}
    differences: dict[str, BrokerRefusal] = {}
    try:
        async with asyncio.timeout(expected.timeout), inspect(next(iter(versions)), timeout=expected.timeout) as opened:
            if isinstance(opened, BrokerRefusal):
                return replace(snapshot, interrupted=opened.reason)
            snapshot = replace(snapshot, exchange=await opened.exchange(expected.exchange))
            await _ask_queues(opened, expected, depths, differences)
    except (BrokerUnavailable, TimeoutError) as error:
        snapshot = replace(snapshot, interrupted=str(error) or "no answer in time")
    return replace(snapshot, depths=depths, differences=differences)


async def _ask_queues(
    inspection: Inspection,
    expected: ExpectedBroker,
    depths: dict[str, Depth | BrokerRefusal],
    differences: dict[str, BrokerRefusal],
) -> None:
    """Ask for each queue, and compare it with the declaration of a consumer if it is there."""
    draining = (name for move in expected.moves.values() for name in move.draining)
    for name in (*(queue.name for queue in expected.registered), *draining):
        depths[name] = await inspection.queue(name)
    for name, arguments in expected.declarations.items():
        depths[name] = await inspection.queue(name)
        if isinstance(depths[name], Depth) and expected.is_declared:
            difference = await inspection.difference(name, arguments)
            if difference is not None:
                differences[name] = difference


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
        query, is_plain = parse_qs(parts.query), parts.scheme == "amqp"
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or "localhost"
        scheme, port = ("http", PORT) if is_plain else ("https", TLS_PORT)
        apis.append(
            Management(
                f"{scheme}://{host}:{port}",
                expected.user,
                timeout=expected.timeout / 2,
                verify=query.get("no_verify_ssl", ["0"])[0] == "0",
                cafile=query.get("cafile", [None])[0],
            )
        )
    return apis


async def read_reports(api: Management, expected: ExpectedBroker) -> ApiReports:
    """The reports that the API's user may see.

    Raises:
        BrokerUnavailable: nothing answers there, or it does not let this user in.
    """
    user = await api.get("whoami")
    if user.status in UNAUTHORIZED or not isinstance(user.content, dict):
        raise BrokerUnavailable(
            f"the management API at {api.address} does not let user {api.user!r} in"
            if user.status in UNAUTHORIZED
            else f"there is no management API at {api.address}: status {user.status}"
        )
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
