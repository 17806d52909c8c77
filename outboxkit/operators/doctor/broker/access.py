"""Access to the broker: whether this user gets in, may do its work, and whether the broker takes messages. Pure."""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from outboxkit.brokers.rabbitmq import rights
from outboxkit.brokers.rabbitmq.rights import RightsNeeded
from outboxkit.brokers.rabbitmq.topology import shared_declarations
from outboxkit.errors.wording import shell_word
from outboxkit.operators.doctor.broker.expected import ExpectedBroker
from outboxkit.operators.doctor.broker.inspection import Denied, Obstacle
from outboxkit.operators.doctor.broker.snapshot import Rights, Snapshot
from outboxkit.operators.findings import Diagnosis, finding
from outboxkit.runtime import urls
from outboxkit.runtime.sources import Shards

UNSEEN = "bindings, types that no queue wants, policies, limits of queues, rights of users, alarms"
"""The things that only the management API tells."""


def of_connection(snapshot: Snapshot) -> Iterator[Diagnosis]:
    """Whether a node answers and lets this user in."""
    expected = snapshot.expected
    user = expected.user[0]
    refused = {} if snapshot.is_open else {refusal.kind: (url, refusal) for url, refusal in snapshot.refusals.items()}
    for kind, (url, refusal) in refused.items():
        parts = urlsplit(url)
        host, port = parts.hostname or "localhost", parts.port or (5671 if parts.scheme == "amqps" else 5672)
        rights_there = kind in (Obstacle.VHOST, Obstacle.ACCESS)
        yield finding(
            "broker-away",
            broker=urls.shown(url),
            reason=f"{_REFUSED.get(kind, '')}{refusal.reason.rstrip('.')}".format(user=user, vhost=expected.vhost),
            host=f"{host} {port}" if kind is Obstacle.AWAY else None,
            user=shell_word(user) if kind is Obstacle.LOGIN else None,
            vhost=shell_word(expected.vhost) if kind is Obstacle.VHOST else None,
            grant=rights_to_work(expected).command(expected.vhost, user) if rights_there else None,
            tls=f"{host}:{port}" if kind is Obstacle.CERTIFICATE else None,
        )
    if snapshot.interrupted:
        yield finding("not-checked", check="exchange and queues", reason=snapshot.interrupted)


_REFUSED: dict[object, str] = {
    Obstacle.LOGIN: "it refuses user {user!r} with this password: ",
    Obstacle.VHOST: "it has no virtual host {vhost!r}: ",
    Obstacle.ACCESS: "it does not let user {user!r} into virtual host {vhost!r}: ",
    Obstacle.CERTIFICATE: "it and this machine agree on no encrypted connection: ",
    Obstacle.AWAY: "no broker answers: ",
}


def of_alarms(snapshot: Snapshot) -> Iterator[Diagnosis]:
    """Whether the broker takes no messages because memory or disk are short."""
    if snapshot.reports is not None and snapshot.reports.alarms:
        yield finding("broker-alarm", alarms=snapshot.reports.alarms)


def of_management(snapshot: Snapshot) -> Iterator[Diagnosis]:
    """The things that could not be checked, because the management API cannot be read.

    It is a warning if the API was named. A broker without the plugin works as well: then it is a note.
    """
    expected, reports = snapshot.expected, snapshot.reports
    unseen, silence = UNSEEN, f"{snapshot.silence[:1].upper()}{snapshot.silence[1:]}"
    if reports is not None:
        seen = {"alarms": reports.alarms, "bindings": reports.bindings}
        unseen = ", ".join(name for name, report in seen.items() if report is None)
        silence = "The user of the management API may not see everything"
    if unseen:
        named = expected.management is not None
        yield finding(
            "management-unread", worse=named, silence=silence, unseen=unseen, user=shell_word(expected.user[0])
        )


def of_rights(snapshot: Snapshot) -> Iterator[Diagnosis]:
    """Whether the user may do what is needed. Only an administrator can ask for rights."""
    own = snapshot.reports.rights if snapshot.reports is not None else None
    if lacks := list(_refused(snapshot) if own is None else _lacking(own, snapshot)):
        expected, user = snapshot.expected, snapshot.expected.user[0]
        grant = rights_to_work(expected, is_shared=snapshot.is_shared).command(expected.vhost, user)
        yield finding("broker-rights-missing", user=repr(user), rights="; ".join(lacks), grant=grant)


def _refused(snapshot: Snapshot) -> Iterator[str]:
    """The rights that the broker has refused."""
    if snapshot.exchange is not None and snapshot.exchange.kind is Denied.FORBIDDEN:
        yield snapshot.exchange.reason
    for name, difference in snapshot.differences.items():
        if difference.kind is Denied.FORBIDDEN and name not in shared_declarations(snapshot.expected.delays):
            yield f"queue {name!r}: {difference.reason}"


def _lacking(own: Rights, snapshot: Snapshot) -> Iterator[str]:
    """The rights that are needed and not there."""
    expected = snapshot.expected
    needed = rights_to_work(expected, is_shared=snapshot.is_shared)
    for verb in rights.VERBS:
        lacking = [name for name in getattr(needed, verb) if not allows(own, verb, name)]
        if lacking == [expected.exchange] and verb == "write" and expected.queues and not expected.routes:
            continue  # it is a consumer's user, and another one is the relay's
        if lacking:
            yield f"it may not {verb} {', '.join(map(repr, lacking))}"


def allows(own: Rights, verb: str, name: str) -> bool:
    """Whether a user may configure, write or read this name, as RabbitMQ decides it: the pattern is searched for."""
    pattern = getattr(own, verb) or "^$"
    try:
        return re.search(pattern, name) is not None
    except re.error:  # Erlang's patterns know a few things that Python's do not
        return True


def rights_to_work(expected: ExpectedBroker, *, is_shared: bool = False) -> RightsNeeded:
    """The names that relays and consumers with these settings configure, write and read.

    Args:
        expected: the settings.
        is_shared: the retry queues of the virtual host are there, so that a consumer need not declare them.
    """
    relay, consumers = rights.of_relay(expected.exchange), RightsNeeded()
    for queue in expected.queues:  # an ordered queue may come to be split
        whole = Shards(queue.name, 1) if expected.ordered and expected.is_declared else None
        consumers |= rights.of_consumer(
            [queue.name],
            exchange=expected.exchange if expected.is_declared else None,
            delays=expected.delays,
            sources=[source for source, _ in queue.bindings],
            shards=queue.shards or whole,
            is_shared=is_shared,
        )
    if expected.queues and not expected.is_declared:
        return RightsNeeded(write=(expected.exchange,)) | consumers
    return relay | consumers
