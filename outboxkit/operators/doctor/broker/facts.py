"""Facts about a broker, as the management API tells them. Pure, but for `read`."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from outboxkit.brokers.rabbitmq.topology import dead_queue
from outboxkit.errors import BrokerUnavailable
from outboxkit.operators.doctor.broker.management import UNAUTHORIZED, ApiAnswer, Management
from outboxkit.operators.doctor.broker.subject import BrokerSubject

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
    members: tuple[str, ...] = ()
    online: tuple[str, ...] = ()

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


class NodeReport(msgspec.Struct, frozen=True):
    """A node of the cluster, as the API tells it to users with the tag `monitoring`."""

    name: str
    running: bool = False
    mem_alarm: bool = False
    disk_free_alarm: bool = False
    fd_used: int = 0
    fd_total: int = 0
    sockets_used: int = 0
    partitions: tuple[str, ...] = ()


class Rights(msgspec.Struct, frozen=True):
    """The patterns of names that a user may configure, write and read in a virtual host."""

    user: str
    configure: str
    write: str
    read: str


class ApiReports(msgspec.Struct, frozen=True):
    """The reports of the API. None: it is not there, or this user may not see it.

    Attributes:
        tags: of the API's user.
        alarms: what is in alarm, such as `memory on rabbit@a`.
        all_queues: the number of queues in all virtual hosts that this user may see.
        ahead: the seconds by which the server's clock is ahead.
        queues: by name, those that were looked at; None for one that is not there.
    """

    tags: tuple[str, ...] = ()
    alarms: tuple[str, ...] | None = None
    nodes: tuple[NodeReport, ...] | None = None
    rights: Rights | None = None
    bindings: tuple[Bound, ...] | None = None
    exchanges: Mapping[str, ExchangeReport] | None = None
    queues: Mapping[str, QueueReport | None] = {}
    all_queues: int = 0
    ahead: float | None = None

    @property
    def is_cluster(self) -> bool:
        """Whether there are several nodes."""
        return self.nodes is not None and len(self.nodes) > 1


async def read_reports(api: Management, subject: BrokerSubject) -> ApiReports:
    """The reports that the API's user may see.

    Raises:
        BrokerUnavailable: nothing answers there, or it does not let this user in.
    """
    who = await api.get("whoami")
    if who.status in UNAUTHORIZED or not isinstance(who.content, dict):
        raise BrokerUnavailable(
            f"the management API at {api.address} does not let user {api.user!r} in"
            if who.status in UNAUTHORIZED
            else f"there is no management API at {api.address}: status {who.status}"
        )
    vhost = subject.vhost
    paths = (("health", "checks", "alarms"), ("nodes",), ("permissions", vhost, subject.user[0]),
             ("bindings", vhost), ("exchanges", vhost), ("overview",))  # fmt: skip
    alarms, nodes, rights, bindings, exchanges, overview = await _all(api, paths)
    bound = _as(bindings, tuple[Bound, ...])
    names = _queues_of(subject, bound)
    answers = await _all(api, [("queues", vhost, name) for name in names])
    listed = _as(exchanges, tuple[ExchangeReport, ...])
    return ApiReports(
        tags=_tags(who.content.get("tags")),
        alarms=_alarms(alarms),
        nodes=_as(nodes, tuple[NodeReport, ...]),
        rights=_as(rights, Rights),
        bindings=bound,
        exchanges=None if listed is None else {each.name: each for each in listed},
        queues={
            name: _as(answer, QueueReport)
            for name, answer in zip(names, answers, strict=True)
            if answer.status in (200, 404)
        },
        all_queues=_count(_mapping(_mapping(overview.content).get("object_totals")).get("queues")),
        ahead=who.ahead,
    )


def _queues_of(subject: BrokerSubject, bound: Iterable[Bound] | None) -> list[str]:
    """Our queues with those beside them, then others that get our messages."""
    ours = list(subject.declarations)
    ours += [name for queue in subject.registered for name in (queue.name, dead_queue(queue.name))]
    sources = {subject.exchange}
    others = [each.destination for each in bound or () if each.source in sources and each.destination_type == "queue"]
    return list(dict.fromkeys([*ours, *sorted(others)]))[:MOST_QUEUES]


async def _all(api: Management, paths: Iterable[tuple[str, ...]]) -> list[ApiAnswer]:
    """The answers, in the order of the paths. One that fails has the status 0."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(path: tuple[str, ...]) -> ApiAnswer:
        async with turns:
            try:
                return await api.get(*path)
            except BrokerUnavailable:
                return ApiAnswer(0, None, None)

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


def _tags(value: object) -> tuple[str, ...]:
    """The tags: a list from RabbitMQ 3.9 on, a text with commas before."""
    tags = value.split(",") if isinstance(value, str) else value
    return tuple(map(str, tags)) if isinstance(tags, list) else ()


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _mapping(value: object) -> Mapping[str, Any]:
    """The value, if it has names; the API has an empty list in place of an empty object."""
    return value if isinstance(value, dict) else {}
