"""Look at a broker: all that AMQP and the management API tell about a subject, read once and within seconds."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

from outboxkit.brokers.rabbitmq.topology import shared_declarations
from outboxkit.errors import BrokerUnavailable
from outboxkit.operators.doctor.broker.facts import ApiReports, Bound, read_reports
from outboxkit.operators.doctor.broker.inspection import BrokerRefusal, Depth, Inspection, inspect
from outboxkit.operators.doctor.broker.management import PORT, TLS_PORT, Management
from outboxkit.operators.doctor.broker.subject import BrokerSubject
from outboxkit.runtime.outage import Clock


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the broker, as AMQP shows it.

    Attributes:
        url: its URL.
        refusal: why it cannot be used; None if it can.
        version: of its server.
    """

    url: str
    refusal: BrokerRefusal | None
    version: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """All that is known about a broker.

    Attributes:
        subject: what is expected of it.
        nodes: one for each URL.
        exchange: why the exchange is not as it should be; None if it is.
        depths: of our queues and those beside them, by name.
        differences: why a queue that is there is not as it should be, by name.
        interrupted: why AMQP ended in the middle; empty if it did not.
        reports: of the management API; None if it cannot be read.
        silence: why it cannot be read; empty if it can.
        api: its address.
        skew: how far the clocks of the broker and this machine may be apart.
    """

    subject: BrokerSubject
    nodes: Sequence[Node] = ()
    exchange: BrokerRefusal | None = None
    depths: Mapping[str, Depth | BrokerRefusal] = field(default_factory=dict)
    differences: Mapping[str, BrokerRefusal] = field(default_factory=dict)
    interrupted: str = ""
    reports: ApiReports | None = None
    silence: str = ""
    api: str = ""
    skew: timedelta = timedelta(seconds=30)

    @property
    def bound(self) -> list[Bound]:
        """The bindings of the exchange to which relays publish."""
        bindings = (self.reports.bindings if self.reports is not None else None) or ()
        return [each for each in bindings if each.source == self.subject.exchange]

    @property
    def is_open(self) -> bool:
        """Whether a node let this user in."""
        return any(node.refusal is None for node in self.nodes)

    @property
    def is_shared(self) -> bool:
        """Whether the retry queues that the virtual host's consumers share are all there."""
        return all(isinstance(self.depths.get(name), Depth) for name in shared_declarations(self.subject.delays))

    @property
    def version(self) -> tuple[int, ...]:
        """The lowest version of the nodes; empty if it is not known."""
        return min((numbers for node in self.nodes if (numbers := numbers_of(node.version))), default=())


def numbers_of(version: str) -> tuple[int, ...]:
    """The numbers of a version, such as 3, 10 and 8."""
    parts = version.split("-", maxsplit=1)[0].split("+", maxsplit=1)[0].split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()


async def look_at(subject: BrokerSubject, *, clock: Clock) -> Look:
    """The look at this broker, over AMQP and through its management API at the same time."""
    amqp, api = await asyncio.gather(_over_amqp(subject), _over_api(subject, clock))
    return replace(amqp, reports=api.reports, silence=api.silence, api=api.api)


async def _over_amqp(subject: BrokerSubject) -> Look:
    nodes = await asyncio.gather(*(_node(url, subject.timeout) for url in subject.urls))
    look = Look(subject, nodes)
    usable = next((node.url for node in nodes if node.refusal is None), None)
    if usable is None:
        return look
    depths: dict[str, Depth | BrokerRefusal] = {}
    differences: dict[str, BrokerRefusal] = {}
    try:
        async with asyncio.timeout(subject.timeout), inspect(usable, timeout=subject.timeout) as inspection:
            if isinstance(inspection, BrokerRefusal):
                return replace(look, interrupted=inspection.reason)
            look = replace(look, exchange=await inspection.exchange(subject.exchange))
            await _look_at_queues(inspection, subject, depths, differences)
    except (BrokerUnavailable, TimeoutError) as error:
        look = replace(look, interrupted=str(error) or "no answer in time")
    return replace(look, depths=depths, differences=differences)


async def _node(url: str, timeout: float) -> Node:
    async with inspect(url, timeout=timeout) as inspection:
        if isinstance(inspection, BrokerRefusal):
            return Node(url, inspection)
        return Node(url, None, inspection.version)


async def _look_at_queues(
    inspection: Inspection,
    subject: BrokerSubject,
    depths: dict[str, Depth | BrokerRefusal],
    differences: dict[str, BrokerRefusal],
) -> None:
    """Look for each queue, and compare it with the declaration of a consumer if it is there."""
    for queue in subject.registered:
        depths[queue.name] = await inspection.queue(queue.name)
    for name in (*subject.left_over, *(name for move in subject.moves.values() for name in move.draining)):
        depths[name] = await inspection.queue(name)
    for name, arguments in subject.declarations.items():
        depths[name] = await inspection.queue(name)
        if isinstance(depths[name], Depth) and subject.is_declared:
            difference = await inspection.difference(name, arguments)
            if difference is not None:
                differences[name] = difference


async def _over_api(subject: BrokerSubject, clock: Clock) -> Look:
    """The reports of the first node whose API answers, or the reason of the last one."""
    look = Look(subject)
    for api in _apis(subject, clock):
        try:
            async with asyncio.timeout(subject.timeout):
                return Look(subject, reports=await read_reports(api, subject), api=api.address)
        except (BrokerUnavailable, TimeoutError) as error:
            look = Look(
                subject,
                silence=str(error) or f"the management API at {api.address} gave no answer in time",
                api=api.address,
            )
    return look


def _apis(subject: BrokerSubject, clock: Clock) -> list[Management]:
    if subject.management is not None:
        return [Management(subject.management, subject.user, timeout=subject.timeout, clock=clock)]
    apis = []
    for url in subject.urls[:2]:
        parts = urlsplit(url)
        query, is_plain = parse_qs(parts.query), parts.scheme == "amqp"
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or "localhost"
        scheme, port = ("http", PORT) if is_plain else ("https", TLS_PORT)
        apis.append(
            Management(
                f"{scheme}://{host}:{port}",
                subject.user,
                timeout=subject.timeout / 2,
                verify=query.get("no_verify_ssl", ["0"])[0] == "0",
                cafile=query.get("cafile", [None])[0],
                clock=clock,
            )
        )
    return apis
