"""Limits that arguments and policies put on a queue: what drops, expires or refuses messages. Pure."""

import re
from collections.abc import Iterator

from outboxkit.brokers.rabbitmq.topology import UNROUTABLE, dead_queue
from outboxkit.consumer.handle import REQUEUE_FRESH_AFTER
from outboxkit.errors.wording import many, shell_word, span
from outboxkit.operators.doctor.broker.queues import QUORUM
from outboxkit.operators.doctor.broker.routes import routed
from outboxkit.operators.doctor.broker.snapshot import QueueReport, Snapshot
from outboxkit.operators.findings import Diagnosis, finding

RABBITMQ_4_DELIVERIES = 20
"""The delivery limit of a quorum queue in RabbitMQ 4, if nobody sets one. Before there is none."""
ENOUGH_DELIVERIES = 100
"""A delivery limit that outboxkit never reaches."""


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
    if report.type == QUORUM and deliveries >= 0 and (is_lost or deliveries <= REQUEUE_FRESH_AFTER):
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
    """The place, if dropped messages go to one that is not there; None if they do not, or it cannot be told."""
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
