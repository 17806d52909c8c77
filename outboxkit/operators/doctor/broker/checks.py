"""The judgements of a broker's snapshot: access, exchange and queues, routes, limits. Pure."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote, urlsplit

from outboxkit.brokers.memory import matches
from outboxkit.brokers.rabbitmq import rights
from outboxkit.brokers.rabbitmq.rights import RightsNeeded
from outboxkit.brokers.rabbitmq.topology import RETRY_EXCHANGE, UNROUTABLE, dead_queue, shared_declarations
from outboxkit.consumer.decisions import REQUEUE_FRESH_AFTER
from outboxkit.errors.failures import printable
from outboxkit.errors.figures import many, shell_word, span
from outboxkit.operators.doctor.broker.expected import ExpectedBroker
from outboxkit.operators.doctor.broker.snapshot import (
    ApiReports,
    Bound,
    BrokerRefusal,
    Depth,
    ExchangeReport,
    QueueReport,
    Rights,
    Snapshot,
)
from outboxkit.operators.findings import Diagnosis, finding
from outboxkit.runtime import known_handlers, urls
from outboxkit.runtime.sources import Shards

LONGEST = 4_000
"""The longest line of a finding."""
SHOWN = 10
"""Names that a finding lists, at most."""


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
        rights_there = kind in ("vhost", "access")
        refused_by = _REFUSED.get(kind, "").format(user=user, vhost=expected.vhost)
        yield finding(
            "broker-away",
            broker=urls.shown(url),
            reason=f"{refused_by}{refusal.reason.rstrip('.')}",
            host=f"{host} {port}" if kind == "away" else None,
            user=shell_word(user) if kind == "login" else None,
            vhost=shell_word(expected.vhost) if kind == "vhost" else None,
            grant=rights_to_work(expected).command(expected.vhost, user) if rights_there else None,
            tls=f"{host}:{port}" if kind == "certificate" else None,
        )
    if snapshot.interrupted:
        yield finding("not-checked", check="exchange and queues", reason=snapshot.interrupted)


_REFUSED = {
    "login": "it refuses user {user!r} with this password: ",
    "vhost": "it has no virtual host {vhost!r}: ",
    "access": "it does not let user {user!r} into virtual host {vhost!r}: ",
    "certificate": "it and this machine agree on no encrypted connection: ",
    "away": "no broker answers: ",
}


def _knows_names(snapshot: Snapshot) -> bool:
    return snapshot.is_open and not snapshot.interrupted


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
        limits = True if _knows_limits(snapshot) else None
        seen = {"alarms": reports.alarms, "bindings": reports.bindings, "limits of queues": limits}
        unseen = ", ".join(name for name, report in seen.items() if report is None)
        silence = "The user of the management API may not see everything"
    if unseen:
        named = expected.management is not None
        has_user = urlsplit(expected.management or "").username is not None
        user = rights.user_of(expected.management or "") if has_user else expected.user[0]
        is_whole = reports is None and expected.queues  # without queues it would be a relay's rights alone
        grant = rights_to_work(expected).command(expected.vhost, expected.user[0]) if is_whole else None
        facts = {"silence": silence, "unseen": unseen, "user": shell_word(user), "grant": grant}
        yield finding("management-unread", worse=named, **facts)


def of_rights(snapshot: Snapshot) -> Iterator[Diagnosis]:
    """Whether the user may do what is needed. Only an administrator can ask for rights."""
    own = snapshot.reports.rights if snapshot.reports is not None else None
    if lacks := list(_refused(snapshot) if own is None else _lacking(own, snapshot)):
        expected, user = snapshot.expected, snapshot.expected.user[0]
        grant = rights_to_work(expected, is_shared=snapshot.is_shared).command(expected.vhost, user)
        yield finding("broker-rights-missing", user=repr(user), rights="; ".join(lacks), grant=grant)


def _knows_rights(snapshot: Snapshot) -> bool:
    is_told = snapshot.reports is not None and snapshot.reports.rights is not None
    return snapshot.is_open and (is_told or any(_refused(snapshot)))


def _refused(snapshot: Snapshot) -> Iterator[str]:
    """The rights that the broker has refused."""
    if snapshot.exchange is not None and snapshot.exchange.kind == "forbidden":
        yield snapshot.exchange.reason
    for name, difference in snapshot.differences.items():
        if difference.kind == "forbidden" and name not in shared_declarations(snapshot.expected.delays):
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


def of_exchange(snapshot: Snapshot) -> Iterator[Diagnosis]:
    """Whether the exchange is there, and is a durable topic exchange."""
    expected, refusal = snapshot.expected, snapshot.exchange
    if refusal is not None and refusal.kind != "forbidden":
        yield finding(
            "exchange-missing", exchange=repr(expected.exchange), vhost=repr(expected.vhost), reason=refusal.reason
        )


def of_queues(snapshot: Snapshot) -> Iterator[Diagnosis]:
    """Whether our queues are there, as consumers declare them."""
    yield from _missing(snapshot)
    yield from _different(snapshot)
    yield from _lost_their_queue(snapshot)


def _missing(snapshot: Snapshot) -> Iterator[Diagnosis]:
    """The queues that are not there, or cannot be used, and those that a consumer needs beside its own."""
    expected, missing = snapshot.expected, dict[str, list[str]]()
    for queue in expected.known_queues:
        depth, owner = snapshot.depths.get(queue.name), _owner(queue.name, snapshot)
        if isinstance(depth, BrokerRefusal) and depth.kind != "missing":
            yield _of_missing(owner, [queue.name], f" that can be used: {depth.reason}", snapshot)
        elif depth is not None:
            beside = [queue.name] if isinstance(depth, BrokerRefusal) else _beside(queue.name, snapshot)
            names = [name for name in beside if getattr(snapshot.depths.get(name), "kind", None) == "missing"]
            missing.setdefault(owner, []).extend(name for name in names if name not in missing.get(owner, ()))
    for owner, names in missing.items():
        if names:
            yield _of_missing(owner, names, "", snapshot)


def _beside(queue: str, snapshot: Snapshot) -> list[str]:
    expected = snapshot.expected
    if queue not in {each.name for each in expected.queues}:
        return []
    if expected.is_declared:
        return [*expected.retry_queues, dead_queue(queue), UNROUTABLE]
    return [name for name in expected.retry_queues if name.startswith(f"{queue}.")]


def _of_missing(owner: str, names: Sequence[str], reason: str, snapshot: Snapshot) -> Diagnosis:
    expected = snapshot.expected
    shards = expected.shards_of(owner)
    is_whole = {owner} <= set(names) if shards is None else set(shards.consumed) <= set(names)
    return finding(
        "queue-missing",
        vhost=repr(expected.vhost),
        queues=_listed(names),
        reason=reason,
        consume=expected.consume_command(owner) if expected.is_declared else None,
        forget=known_handlers.forget_command(owner) if is_whole and not reason else None,
    )


def _owner(queue: str, snapshot: Snapshot) -> str:
    """The queue whose consumers consume this one: the queue that is split, if it is a shard."""
    shards = snapshot.expected.shards_of(queue)
    return queue if shards is None else shards.queue


def _different(snapshot: Snapshot) -> Iterator[Diagnosis]:
    """The queues that are not as their consumer declares them, or cannot take as they are."""
    expected, different = snapshot.expected, dict[str, tuple[list[str], str]]()
    for name, refusal in snapshot.differences.items():
        if refusal.kind != "forbidden":
            names, _ = different.setdefault(_owner(name, snapshot), ([], refusal.reason))
            names.append(name)
    for owner, (names, reason) in different.items():
        yield _of_kind(names, owner, reason, snapshot, worse=True)
    ours = {queue.name for queue in expected.queues}
    for report in snapshot.queues:
        if report.name in different or any(report.name in names for names, _ in different.values()):
            continue
        is_taken = report.name in ours and not expected.is_declared
        is_single = bool(report.effective("single-active-consumer"))
        if is_taken and report.type == "stream":
            yield _of_kind([report.name], report.name, "it is a stream", snapshot, worse=True)
        elif is_taken and is_single != expected.ordered and expected.shards_of(report.name) is None:
            has = "it has a single active consumer" if is_single else "it lets many consumers work at once"
            reason = f"{has}, and OUTBOXKIT_ORDERED is {str(expected.ordered).lower()}"
            yield _of_kind([report.name], report.name, reason, snapshot, worse=True)
        elif report.type == "classic":
            yield _of_kind([report.name], report.name, "it is a classic queue", snapshot, worse=False)


def _of_kind(names: Sequence[str], owner: str, reason: str, snapshot: Snapshot, *, worse: bool) -> Diagnosis:
    is_ours = owner in {queue.name for queue in snapshot.expected.known_queues}
    is_split = snapshot.expected.shards_of(owner) is not None
    return finding(
        "queue-kind",
        worse=worse,
        queue=_listed(names),
        reason=reason,
        consume=snapshot.expected.consume_command(owner) if is_ours else None,
        delete=delete_command(names[0], snapshot) if is_ours and not is_split else None,
    )


def _lost_their_queue(snapshot: Snapshot) -> Iterator[Diagnosis]:
    """The copies of failed messages whose queue was deleted while they waited."""
    depth, vhost = snapshot.depths.get(UNROUTABLE), snapshot.expected.vhost
    if isinstance(depth, Depth) and depth.messages:
        address = f"amqp:///{quote(vhost, safe='')}"
        back = {"src-uri": address, "src-queue": UNROUTABLE, "dest-uri": address, "dest-exchange": RETRY_EXCHANGE}
        values = shell_word(json.dumps(back | {"src-delete-after": "queue-length"}))
        shovel = f"rabbitmqctl set_parameter -p {shell_word(vhost)} shovel outboxkit-return {values}"
        messages = many(depth.messages, "failed message")
        yield finding("retries-unroutable", queue=repr(UNROUTABLE), messages=messages, shovel=shovel)


def of_consumers(snapshot: Snapshot) -> Iterator[Diagnosis]:
    """Whether somebody consumes the queues. New shards need nobody before the keys in the old ones are known."""
    expected, idle = snapshot.expected, dict[str, dict[str, int]]()
    resting = {name for name, move in expected.moves.items() if not move.is_open}
    names = [(_owner(queue.name, snapshot), queue.name) for queue in expected.known_queues]
    names = [(owner, name) for owner, name in names if owner not in resting]
    names += [(owner, name) for owner, move in expected.moves.items() for name in move.draining]
    for owner, name in names:
        depth = snapshot.depths.get(name)
        if isinstance(depth, Depth) and not depth.consumers and not {owner, name} & expected.paused:
            idle.setdefault(owner, {})[name] = depth.messages
    for owner, messages in idle.items():
        count = sum(messages.values())
        may_go = not count and list(messages) == [owner] and expected.shards_of(owner) is None
        yield finding(
            "queue-unconsumed",
            worse=count > 0,
            queues=f"{'queue' if len(messages) == 1 else 'queues'} {_listed(list(messages))}",
            messages=_waiting(count),
            bound=_twin(owner, snapshot),
            consume=expected.consume_command(owner),
            delete=delete_command(owner, snapshot) if may_go else None,
            forget=known_handlers.forget_command(owner) if may_go else None,
        )
    ours = {queue.name for queue in expected.known_queues}
    others = {each.destination for each in snapshot.bound if each.destination_type == "queue"} - ours
    for report in snapshot.queues:
        if report.name in others and report.messages_ready and not report.consumers:
            yield _of_another(report, snapshot)


def _twin(owner: str, snapshot: Snapshot) -> str:
    """The sentence that the name may be a typo: another queue has handlers of the same types."""
    queues = {queue.name: queue.types for queue in snapshot.expected.known_queues if not queue.shards}
    types = queues.pop(owner, ())
    twin = next((name for name, others in queues.items() if types and others == types), None)
    return "" if twin is None else f" Queue {twin!r} has handlers of the same types: is one of the two a mistake?"


def _waiting(messages: int) -> str:
    return f"{many(messages, 'message waits', 'messages wait')} there" if messages else "nothing waits there"


_UNREAD = "Whose it is, the database tells, which could not be read."


def _of_another(report: QueueReport, snapshot: Snapshot) -> Diagnosis:
    """The finding about a queue that gets messages of the exchange, and that no consumer here knows."""
    keys = sorted({each.routing_key for each in snapshot.bound if each.destination == report.name})
    types = sorted({type_ for queue in snapshot.expected.known_queues for type_ in queue.types})
    taken = any(matches(key.split("."), type_.split(".")) for key in keys for type_ in types)
    handled = "of which another queue has a handler" if taken else f"and handlers here take {_listed(types)}"
    unknown = "No consumer on this database knows it." if snapshot.expected.are_tables_known else _UNREAD
    bound = f" It is bound for {_listed(keys)}, {handled}." if types else f" {unknown}"
    queues, messages = f"queue {report.name!r}", _waiting(report.messages_ready)
    return finding("queue-unconsumed", queues=queues, messages=messages, bound=bound)


def _listed(names: Sequence[str]) -> str:
    return _joined(list(map(repr, names)))


def _joined(texts: Sequence[str]) -> str:
    return ", ".join(texts[:SHOWN]) + (f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else "")


def delete_command(queue: str, snapshot: Snapshot) -> str:
    """The command that deletes a queue."""
    return f"rabbitmqctl delete_queue -p {shell_word(snapshot.expected.vhost)} {shell_word(queue)}"


UNASKED = ("", RETRY_EXCHANGE)
"""The exchanges to which a queue is bound by itself, or for its own retries."""


def routed(reports: ApiReports, exchange: str, key: str, visited: frozenset[str] = frozenset()) -> set[str]:
    """The queues that get a message which is published to this exchange with this routing key.

    What the routing key alone does not tell, such as a headers exchange, counts as routed.
    """
    report = (reports.exchanges or {}).get(exchange)
    if exchange in visited or report is None:
        return set()
    queues = set[str]()
    for bound in reports.bindings or ():
        if bound.source != exchange or not _accepts(report, bound, key):
            continue
        if bound.destination_type == "queue":
            queues.add(bound.destination)
        else:
            queues |= routed(reports, bound.destination, key, visited | {exchange})
    if not queues and report.alternate is not None:
        return routed(reports, report.alternate, key, visited | {exchange})
    return queues


def _accepts(exchange: ExchangeReport, bound: Bound, key: str) -> bool:
    if exchange.type == "topic":
        return matches(bound.routing_key.split("."), key.split("."))
    return bound.routing_key == key if exchange.type == "direct" else True


def _knows_routes(snapshot: Snapshot) -> bool:
    reports = snapshot.reports
    is_told = reports is not None and reports.bindings is not None and reports.exchanges is not None
    return is_told and snapshot.exchange is None


def of_routes(snapshot: Snapshot) -> Iterator[Diagnosis]:
    """Whether every message has a queue, and every handler gets its messages."""
    reports, expected = snapshot.reports, snapshot.expected
    if reports is None or reports.exchanges is None or not _knows_routes(snapshot):
        return
    exchange = expected.exchange
    unwanted = {key: count for key, count in sorted(expected.routes.items()) if not routed(reports, exchange, key)}
    if unwanted:
        report = reports.exchanges.get(exchange)
        yield finding(
            "type-unwanted",
            worse=report is None or not report.policy,
            exchange=repr(exchange),
            types=_joined([f"{count} of {key!r}" for key, count in unwanted.items()]),
            binds=tuple(_bind("QUEUE", key, snapshot) for key in list(unwanted)[:3]),
        )
    for queue in expected.known_queues:
        if reports.queues.get(queue.name) is None or queue.is_split:
            continue
        bound = [
            each for each in reports.bindings or () if each.destination == queue.name and each.source not in UNASKED
        ]
        missing = [type_ for type_ in queue.types if queue.name not in routed(reports, exchange, type_)]
        if missing or not bound:
            yield finding(
                "queue-unbound",
                queue=repr(queue.name),
                exchange=repr(exchange),
                types=_listed(missing) if missing else "any type",
                binds=tuple(_bind(queue.name, type_, snapshot) for type_ in missing[:SHOWN] or ("TYPE",)),
            )


def _bind(queue: str, key: str, snapshot: Snapshot) -> str:
    return (
        f"rabbitmqadmin -V {shell_word(snapshot.expected.vhost)} declare binding "
        f"source={shell_word(snapshot.expected.exchange)} destination={shell_word(queue)} routing_key={shell_word(key)}"
    )


RABBITMQ_4_DELIVERIES = 20
"""The delivery limit of a quorum queue in RabbitMQ 4, if nobody sets one. Earlier versions have none."""
ENOUGH_DELIVERIES = 100
"""The lowest delivery limit of an ordered queue without a finding. Its messages are never replaced by fresh copies, so
that all of their deliveries count."""


def _knows_limits(snapshot: Snapshot) -> bool:
    reports, ours = snapshot.reports, snapshot.expected.known_queues  # of many the API is asked for some
    return reports is not None and (not ours or any(queue.name in reports.queues for queue in ours))


def of_limits(snapshot: Snapshot) -> Iterator[Diagnosis]:
    """Whether the broker takes messages away, or refuses them, by limits of its own."""
    dead = {UNROUTABLE, *(dead_queue(queue.name) for queue in snapshot.expected.known_queues)}
    for report in snapshot.queues:
        yield from _full(report, snapshot)
        nowhere = _leads_nowhere(report, snapshot)
        is_lost = report.name in dead or report.effective("dead-letter-exchange") is None or nowhere is not None
        limits = dict(_limits(report, snapshot, is_lost=is_lost and report.name not in dead))
        if nowhere is not None:
            limits["dead-letter-exchange"] = f"dropped ones go to {nowhere}"
        if limits:
            yield finding(
                "queue-drops",
                worse=is_lost or "expires" in limits,
                queue=repr(report.name),
                limits="; ".join(f"{text}{_whose(report, name)}" for name, text in limits.items()),
                end="are deleted for good" if is_lost or "expires" in limits else "become dead letters",
                undo=tuple(dict.fromkeys(_undo(report, limits, snapshot))),
            )


def _limits(report: QueueReport, snapshot: Snapshot, *, is_lost: bool) -> Iterator[tuple[str, str]]:
    """Each limit of a queue, by its name, and what it does to messages."""
    expires, ttl = report.effective("expires"), report.effective("message-ttl")
    if isinstance(expires, int):
        yield "expires", f"it is deleted when it is unused for {span(expires / 1000)}"
    if isinstance(ttl, int) and report.name not in snapshot.expected.retry_queues:
        yield "message-ttl", f"messages that wait for {span(ttl / 1000)} expire"
    for name, unit in (("max-length", "messages"), ("max-length-bytes", "bytes")):
        limit = report.effective(name)
        if isinstance(limit, int) and report.effective("overflow") != "reject-publish":
            yield name, f"above {limit} {unit}, the oldest ones go"
    own = report.effective("delivery-limit")
    deliveries = own if isinstance(own, int) else RABBITMQ_4_DELIVERIES if snapshot.version >= (4,) else -1
    is_ordered = bool(report.effective("single-active-consumer"))
    is_reached = deliveries < ENOUGH_DELIVERIES if is_ordered else deliveries <= REQUEUE_FRESH_AFTER
    if report.type == "quorum" and deliveries >= 0 and (is_lost or is_reached):
        yield "delivery-limit", f"messages that are delivered more than {deliveries} times go"


def _full(report: QueueReport, snapshot: Snapshot) -> Iterator[Diagnosis]:
    for name, unit in (("max-length", "message"), ("max-length-bytes", "byte")):
        limit = report.effective(name)
        has = report.message_bytes_ready if unit == "byte" else report.messages_ready
        if isinstance(limit, int) and report.effective("overflow") == "reject-publish" and has >= limit:
            yield finding(
                "queue-full",
                queue=repr(report.name),
                fill=f"{many(has, unit)}, and takes no more than {limit}",
                whose=_whose(report, name),
                consume=snapshot.expected.consume_command(report.name),
                vhost=shell_word(snapshot.expected.vhost),
            )


def _leads_nowhere(report: QueueReport, snapshot: Snapshot) -> str | None:
    """The place that dropped messages go to, if it does not exist; None: it does, or cannot be seen."""
    exchange, key = report.effective("dead-letter-exchange"), report.effective("dead-letter-routing-key")
    reports = snapshot.reports
    if not isinstance(exchange, str) or reports is None or reports.exchanges is None or reports.bindings is None:
        return None
    if exchange not in reports.exchanges:
        return f"exchange {exchange!r}, which is not there"
    if not isinstance(key, str) or routed(reports, exchange, key):
        return None
    return (
        f"queue {key!r}, which is not there" if not exchange else f"exchange {exchange!r} without a queue for {key!r}"
    )


def _whose(report: QueueReport, name: str) -> str:
    """The policy that sets a limit, if one does."""
    if report.is_by_policy(name):
        names = [each for each in (report.policy, report.operator_policy) if each]
        return f" by policy {' or '.join(map(repr, names))}" if names else " by a policy"
    return "" if report.effective(name) is None else " by an argument of the queue"


def _undo(report: QueueReport, limits: dict[str, str], snapshot: Snapshot) -> Iterator[str]:
    """The commands that take away policies; for the delivery limit of RabbitMQ itself, one that sets a higher one."""
    vhost = shell_word(snapshot.expected.vhost)
    if any(report.is_by_policy(name) for name in limits):
        if report.policy:
            yield f"rabbitmqctl clear_policy -p {vhost} {shell_word(report.policy)}"
        if report.operator_policy:
            yield f"rabbitmqctl clear_operator_policy -p {vhost} {shell_word(report.operator_policy)}"
    elif "delivery-limit" in limits:
        name, pattern = shell_word(f"{report.name}-deliveries"), shell_word(f"^{re.escape(report.name)}$")
        definition = shell_word(f'{{"delivery-limit": {ENOUGH_DELIVERIES}}}')
        yield f"rabbitmqctl set_policy -p {vhost} --apply-to queues {name} {pattern} {definition}"


@dataclass(frozen=True)
class BrokerCheck:
    """A check of the broker.

    Attributes:
        is_known: whether the snapshot has what it judges; otherwise it is left out.
    """

    name: str
    judge: Callable[[Snapshot], Iterator[Diagnosis]]
    is_known: Callable[[Snapshot], bool] = lambda _: True

    def find(self, snapshot: Snapshot) -> Iterator[Diagnosis]:
        """The findings, printable: names in the broker are others' texts."""
        for each in self.judge(snapshot):
            what, commands = printable(each.what, LONGEST), tuple(printable(line, LONGEST) for line in each.commands)
            yield replace(each, what=what, commands=commands)


CHECKS = (
    BrokerCheck("connection", of_connection),
    BrokerCheck("rights", of_rights, _knows_rights),
    BrokerCheck(
        "alarms", of_alarms, lambda snapshot: snapshot.reports is not None and snapshot.reports.alarms is not None
    ),
    BrokerCheck("exchange", of_exchange, _knows_names),
    BrokerCheck("queues", of_queues, _knows_names),
    BrokerCheck("routes", of_routes, _knows_routes),
    BrokerCheck("limits", of_limits, _knows_limits),
    BrokerCheck("consumers", of_consumers, _knows_names),
    BrokerCheck("management", of_management, lambda snapshot: snapshot.is_open),
)
"""The checks in the order of the report."""
