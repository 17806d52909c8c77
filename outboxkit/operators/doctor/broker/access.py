"""Access to the broker: whether this user gets in, over a safe way, and with the rights that outboxkit needs. Pure."""

import re
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

from outboxkit.brokers.rabbitmq import rights
from outboxkit.brokers.rabbitmq.rights import RightsNeeded
from outboxkit.brokers.rabbitmq.topology import shared_declarations
from outboxkit.errors.wording import shell_word
from outboxkit.operators.doctor.broker.facts import Rights
from outboxkit.operators.doctor.broker.inspection import BrokerRefusal, Denied, Obstacle
from outboxkit.operators.doctor.broker.look import Look
from outboxkit.operators.doctor.broker.subject import GUEST, BrokerSubject, credentials, is_loopback
from outboxkit.operators.doctor.diagnosis import problem, warning
from outboxkit.operators.findings import Diagnosis
from outboxkit.runtime import urls
from outboxkit.runtime.sources import Shards

OLDEST = (3, 10)
"""The oldest RabbitMQ whose quorum queues have all that outboxkit needs of them."""
_STANDS = "Messages wait in the outbox until this is mended. None is lost, and none arrives."
_OTHERS = "outboxkit-doctor-a-name-of-others"
"""A name that nobody has: a user with rights to it has them to the names of others."""


def of_connection(look: Look) -> Iterator[Diagnosis]:
    """Whether the nodes answer, let this user in, and are new enough."""
    refused = {node.url: node.refusal for node in look.nodes if node.refusal is not None}
    if look.is_open:
        for url, refusal in refused.items():
            yield warning(
                "broker-node-away",
                f"One of {len(look.nodes)} nodes, {urls.shown(url)}, cannot be used: {refusal.reason}.",
                why="The others do its work. A cluster of three that loses one more takes no messages.",
                cure="Start that node, or take it out of OUTBOXKIT_BROKER_URL.",
                commands=("rabbitmqctl cluster_status",),
            )
    else:
        for url, refusal in {refusal.kind: (url, refusal) for url, refusal in refused.items()}.values():
            yield _refused(url, refusal, look.subject)
    if look.interrupted:
        yield warning(
            "broker-silent",
            f"The broker let this user in, and then did not answer: {look.interrupted}.",
            why="Exchange and queues were not looked at. A queue without a majority of its members answers so.",
            cure="Read the broker's log, and run doctor again.",
            commands=("rabbitmqctl cluster_status",),
        )
    if look.version and look.version < OLDEST:
        yield problem(
            "broker-version",
            f"The broker is RabbitMQ {'.'.join(map(str, look.version))}; 3.10 or newer is needed.",
            why="Before, quorum queues have neither a TTL nor safe dead lettering, which retries need.",
            cure="Upgrade RabbitMQ.",
        )


def _refused(url: str, refusal: BrokerRefusal, subject: BrokerSubject) -> Diagnosis:
    """The problem of a broker that cannot be used."""
    shown, (user, _) = urls.shown(url), subject.user
    name, vhost, rights = shell_word(user), shell_word(subject.vhost), _grant(subject, user)
    code, text, cure, command = {
        Obstacle.LOGIN: (
            "broker-login",
            f"{shown} refuses user {user!r} with this password",
            "Correct user and password in OUTBOXKIT_BROKER_URL, or give the user this password.",
            f"rabbitmqctl change_password {name}",
        ),
        Obstacle.VHOST: (
            "broker-vhost-missing",
            f"{shown} has no virtual host {subject.vhost!r}",
            "Correct the path of OUTBOXKIT_BROKER_URL, in which / is written %2F, or add the virtual host.",
            f"rabbitmqctl add_vhost {vhost}\n{rights}",
        ),
        Obstacle.ACCESS: (
            "broker-vhost-forbidden",
            f"{shown} does not let user {user!r} into virtual host {subject.vhost!r}",
            "Give the user its rights in that virtual host.",
            rights,
        ),
        Obstacle.CERTIFICATE: (
            "broker-certificate",
            f"{shown} and this machine agree on no encrypted connection",
            "Name the authority that signed the broker's certificate, as ?cafile=/path/ca.pem behind the URL.",
            f"openssl s_client -connect {_host_and_port(url)} -showcerts",
        ),
    }.get(
        refusal.kind,  # type: ignore[arg-type]
        (
            "broker-away",
            f"No broker answers at {shown}",
            "Start it, open the way to it, or correct OUTBOXKIT_BROKER_URL.",
            f"nc -vz {_host_and_port(url).replace(':', ' ')}\nrabbitmq-diagnostics check_running",
        ),
    )
    return problem(
        code, f"{text}: {refusal.reason.rstrip('.')}.", why=_STANDS, cure=cure, commands=tuple(command.split("\n"))
    )


def of_encryption(look: Look) -> Iterator[Diagnosis]:
    """Whether passwords and messages travel in the open."""
    parts = [urlsplit(url) for url in look.subject.urls]
    plain = [urls.shown(part.geturl()) for part in parts if part.scheme == "amqp" and not is_loopback(part.hostname)]
    if plain:
        yield warning(
            "broker-plain",
            f"The password and all messages travel unencrypted to {', '.join(plain)}.",
            why="Anybody on the network between can read them, and sign in as this user.",
            cure="Have the broker listen with TLS, and write amqps:// with port 5671 in OUTBOXKIT_BROKER_URL.",
            commands=("rabbitmq-diagnostics listeners",),
        )
    if any(part.scheme == "amqps" and parse_qs(part.query).get("no_verify_ssl", ["0"])[0] != "0" for part in parts):
        yield warning(
            "broker-unverified",
            "OUTBOXKIT_BROKER_URL has no_verify_ssl: the broker's certificate is not verified.",
            why="Anybody between can pose as the broker, and gets the password and all messages.",
            cure="Write cafile=/path/ca.pem in place of no_verify_ssl=1.",
        )
    management = look.subject.management
    if management is not None and look.reports is not None:
        part = urlsplit(management)
        if part.scheme == "http" and not is_loopback(part.hostname):
            yield warning(
                "management-plain",
                f"The password of the management API travels unencrypted to {look.api}.",
                why="Anybody on the network between can sign in with it.",
                cure="Have the management plugin listen with TLS, and write https:// in OUTBOXKIT_MANAGEMENT_URL.",
            )


def of_account(look: Look) -> Iterator[Diagnosis]:
    """Whether the user is one of its own, with no more rights than it needs."""
    user = look.subject.user[0]
    if any(credentials(url) == (GUEST, GUEST) for url in look.subject.urls) and look.is_open:
        yield warning(
            "broker-guest",
            "The user is 'guest' with the password that everybody knows.",
            why="Every program that reaches the broker from its own machine is an administrator with it.",
            cure="Add a user for relays and one for consumers, name them in OUTBOXKIT_BROKER_URL, and delete guest."
            + ("" if look.subject.known_queues else " With --queue, doctor prints the rights of a consumer, too."),
            commands=tuple(_own_users(look.subject)),
        )
    if look.reports is not None and "administrator" in look.reports.tags and _is_same_user(look):
        yield warning(
            "broker-administrator",
            f"User {user!r} is an administrator of the whole broker.",
            why="With its password every queue of everybody can be deleted. Relays and consumers need no tag.",
            cure="Give the tag to another user, and put that one into OUTBOXKIT_MANAGEMENT_URL for doctor.",
            commands=(f"rabbitmqctl set_user_tags {shell_word(user)}",),
        )


def _own_users(subject: BrokerSubject) -> Iterator[str]:
    """The commands that replace guest by a user for each work."""
    known = replace(subject, queues=subject.known_queues)
    yield "rabbitmqctl add_user outboxkit-relay"
    yield rights.of_relay(subject.exchange).command(subject.vhost, "outboxkit-relay")
    if known.queues:
        yield "rabbitmqctl add_user outboxkit-consumer"
        yield _of_consumers(known).command(subject.vhost, "outboxkit-consumer")
    yield "rabbitmqctl delete_user guest"


def _is_same_user(look: Look) -> bool:
    """Whether the management API was asked as the user of the broker's URL."""
    own = urlsplit(look.subject.management or "").username
    return own is None or own == look.subject.user[0]


def of_rights(look: Look) -> Iterator[Diagnosis]:
    """Whether the user may do what is needed, and no more. Only an administrator can ask for rights."""
    own = look.reports.rights if look.reports is not None else None
    lacks = list(_lacks(look) if own is None else _lacks_of(own, look))
    if lacks:
        yield problem(
            "broker-rights-missing",
            f"User {look.subject.user[0]!r} lacks rights: {'; '.join(lacks)}.",
            why="The relay or the consumer ends at its start, or waits if the right was taken away later.",
            cure="Give the user the rights that these settings need.",
            commands=(_grant(look.subject, look.subject.user[0], is_shared=look.is_shared),),
        )
    if own is not None and any(allows(own, verb, _OTHERS) for verb in ("configure", "write", "read")):
        patterns = f"configure {own.configure!r}, write {own.write!r}, read {own.read!r}"
        yield warning(
            "broker-rights-wide",
            f"User {look.subject.user[0]!r} has rights to the exchanges and queues of others: {patterns}.",
            why="A mistake or a stolen password reaches everything in this virtual host.",
            cure="Narrow them to these settings and the queues that this database knows; add what else uses this user.",
            commands=(
                _grant(
                    replace(look.subject, queues=look.subject.known_queues),
                    look.subject.user[0],
                    is_shared=look.is_shared,
                ),
            ),
        )


def _lacks(look: Look) -> Iterator[str]:
    """The rights that the broker has refused."""
    if look.exchange is not None and look.exchange.kind is Denied.FORBIDDEN:
        yield look.exchange.reason
    for name, difference in look.differences.items():
        if difference.kind is Denied.FORBIDDEN and name not in shared_declarations(look.subject.delays):
            yield f"queue {name!r}: {difference.reason}"


def _lacks_of(own: Rights, look: Look) -> Iterator[str]:
    """The rights that are needed and not there."""
    subject = look.subject
    needed = rights_to_work(subject, is_shared=look.is_shared)
    for verb in rights.VERBS:
        lacking = [name for name in getattr(needed, verb) if not allows(own, verb, name)]
        if lacking == [subject.exchange] and verb == "write" and subject.queues and not subject.routes:
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


def rights_to_work(subject: BrokerSubject, *, is_shared: bool = False) -> RightsNeeded:
    """The names that relays and consumers with these settings configure, write and read.

    Args:
        subject: the settings.
        is_shared: the retry queues of the virtual host are there, so that a consumer need not declare them.
    """
    relay, names = rights.of_relay(subject.exchange), [queue.name for queue in subject.queues]
    if not names:
        return relay
    if not subject.is_declared:
        return RightsNeeded(write=(subject.exchange,)) | _of_consumers(subject)
    return relay | _of_consumers(subject, is_shared=is_shared)


def _of_consumers(subject: BrokerSubject, *, is_shared: bool = False) -> RightsNeeded:
    """The rights of consumers; an ordered queue may come to be split."""
    needed = RightsNeeded()
    for queue in subject.queues:
        whole = Shards(queue.name, 1) if subject.ordered and subject.is_declared else None
        needed |= rights.of_consumer(
            [queue.name],
            exchange=subject.exchange if subject.is_declared else None,
            delays=subject.delays,
            sources=[source for source, _ in queue.bindings],
            shards=queue.shards or whole,
            is_shared=is_shared,
        )
    return needed


def _grant(subject: BrokerSubject, user: str, *, is_shared: bool = False) -> str:
    """The command that gives a user the rights that are needed."""
    return rights_to_work(subject, is_shared=is_shared).command(subject.vhost, user)


def _host_and_port(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname or 'localhost'}:{parts.port or (5671 if parts.scheme == 'amqps' else 5672)}"
