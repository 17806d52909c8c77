"""Limits that arguments and policies put on a queue: what drops, expires or takes away messages. Pure."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import TypedDict

from outboxkit.brokers.rabbitmq.topology import UNROUTABLE, dead_queue
from outboxkit.consumer.handle import REQUEUE_FRESH_AFTER
from outboxkit.errors.wording import many, shell_word
from outboxkit.operators.doctor.broker.facts import QueueReport
from outboxkit.operators.doctor.broker.look import Look
from outboxkit.operators.doctor.broker.queues import QUORUM
from outboxkit.operators.doctor.broker.routes import routed
from outboxkit.operators.doctor.diagnosis import problem, warning
from outboxkit.operators.findings import Diagnosis

RABBITMQ_4_DELIVERIES = 20
"""The delivery limit of a quorum queue in RabbitMQ 4, if nobody sets one. Before there is none."""
ENOUGH_DELIVERIES = 100
"""A delivery limit that outboxkit never reaches."""
CONSUMER_TIMEOUT = timedelta(minutes=30)
"""RabbitMQ's own limit for an unacked delivery."""
_LENGTHS = ("max-length", "max-length-bytes")


def of_limits(look: Look) -> Iterator[Diagnosis]:
    """Whether the broker takes messages away by limits of its own."""
    if look.reports is None:
        return
    retries = {name: round(delay.total_seconds() * 1000) for name, delay in look.subject.retry_queues.items()}
    dead = {UNROUTABLE, *(dead_queue(queue.name) for queue in look.subject.known_queues)}
    for report in look.reports.queues.values():
        if report is None:
            continue
        nowhere = _leads_nowhere(report, look)
        is_lost = report.name in dead or report.effective("dead-letter-exchange") is None or nowhere is not None
        if nowhere is not None:
            yield _into_nowhere(report, nowhere, look)
        yield from _expiring(report, look)
        yield from _ageing(report, look, own=retries.get(report.name), is_lost=is_lost)
        yield from _full(report, look, is_lost=is_lost)
        yield from _delivered_too_often(report, look, is_lost=is_lost, is_dead=report.name in dead)


def _expiring(report: QueueReport, look: Look) -> Iterator[Diagnosis]:
    expires = report.effective("expires")
    if isinstance(expires, int):
        yield problem(
            "queue-expires",
            f"Queue {report.name!r} is deleted when it is unused for {_span(expires)}{_whose(report, 'expires')}.",
            why="An outage of its consumer that is longer deletes its messages, and its bindings.",
            **_undo(report, "expires", look),
        )


def _ageing(report: QueueReport, look: Look, *, own: int | None, is_lost: bool) -> Iterator[Diagnosis]:
    ttl = report.effective("message-ttl")
    if not isinstance(ttl, int) or ttl == own:
        return
    whose = _whose(report, "message-ttl")
    if own is not None:
        yield warning(
            "retry-delay-changed",
            f"Messages stay in retry queue {report.name!r} for {_span(ttl)} in place of {_span(own)}{whose}.",
            why="Failed messages are tried again at other times than OUTBOXKIT_RETRY_DELAYS says.",
            **_undo(report, "message-ttl", look),
        )
        return
    yield (problem if is_lost else warning)(
        "queue-ttl",
        f"Messages that wait in queue {report.name!r} for {_span(ttl)} {_become(is_lost)}{whose}.",
        why="An outage of the consumer that is longer takes messages away that nobody has handled.",
        **_undo(report, "message-ttl", look),
    )


def _full(report: QueueReport, look: Look, *, is_lost: bool) -> Iterator[Diagnosis]:
    for name in _LENGTHS:
        limit = report.effective(name)
        unit = "bytes" if name == "max-length-bytes" else "messages"
        if not isinstance(limit, int):
            continue
        if report.effective("overflow") == "reject-publish":
            has = report.message_bytes_ready if unit == "bytes" else report.messages_ready
            if has >= limit:
                yield _refusing(report, name, f"{many(has, unit[:-1])}, and takes no more than {limit}", look)
            continue
        yield (problem if is_lost else warning)(
            "queue-length",
            f"Above {limit} {unit}, the oldest messages of queue {report.name!r} {_become(is_lost)}"
            f"{_whose(report, name)}.",
            why="A consumer that is slow or away for a while loses its place, and messages that nobody has handled.",
            **_undo(report, name, look),
        )


def _refusing(report: QueueReport, name: str, fill: str, look: Look) -> Diagnosis:
    return problem(
        "queue-full",
        f"Queue {report.name!r} is full: it has {fill}{_whose(report, name)}.",
        why="It refuses new messages. Those that are to reach it stay in the outbox: a message leaves once all of its "
        "queues take it. Failed messages that come back to it hold up those of other queues, for minutes each time.",
        cure="Start its consumer, or more of them, and look in its log for what slows it down. Else raise the limit."
        + (" If nobody needs the queue, delete it:" if look.subject.shards_of(report.name) is None else ""),
        commands=(
            look.subject.consume_command(report.name),
            f"rabbitmqctl list_queues -p {shell_word(look.subject.vhost)} name messages consumers",
        ),
    )


def _delivered_too_often(report: QueueReport, look: Look, *, is_lost: bool, is_dead: bool) -> Iterator[Diagnosis]:
    """A delivery limit below the one of outboxkit, or one behind which messages are lost.

    A dead queue has no place for what it drops, and its consumer renews messages in time.
    """
    own = report.effective("delivery-limit")
    limit = own if isinstance(own, int) else RABBITMQ_4_DELIVERIES if look.version >= (4,) else -1
    if report.type != QUORUM or limit < 0 or not ((is_lost and not is_dead) or limit <= REQUEUE_FRESH_AFTER):
        return
    vhost, name = shell_word(look.subject.vhost), shell_word(f"{report.name}-deliveries")
    pattern = shell_word(f"^{re.escape(report.name)}$")
    definition = shell_word(f'{{"delivery-limit": {ENOUGH_DELIVERIES}}}')
    yield (problem if is_lost else warning)(
        "delivery-limit",
        f"Messages that are delivered more than {limit} times from queue {report.name!r} {_become(is_lost)}"
        f"{_whose(report, 'delivery-limit')}.",
        why="Each consumer that ends with messages in hand counts as a delivery of all of them. outboxkit counts "
        f"crashes itself, and renews a message after {REQUEUE_FRESH_AFTER} deliveries.",
        cure=f"Set a delivery limit above {REQUEUE_FRESH_AFTER}, and let dropped messages go to a queue of their own.",
        commands=(f"rabbitmqctl set_policy -p {vhost} --apply-to queues {name} {pattern} {definition}",),
    )


def _leads_nowhere(report: QueueReport, look: Look) -> str | None:
    """The place, if dropped messages go to one that is not there; None if they do not, or it cannot be told."""
    exchange, key = report.effective("dead-letter-exchange"), report.effective("dead-letter-routing-key")
    reports = look.reports
    if not isinstance(exchange, str) or reports is None or reports.exchanges is None or reports.bindings is None:
        return None
    if exchange not in reports.exchanges:
        return f"exchange {exchange!r}, which is not there"
    if not isinstance(key, str):
        return None
    if not routed(reports, exchange, key):
        return (
            f"queue {key!r}, which is not there"
            if not exchange
            else f"exchange {exchange!r}, which has no queue for {key!r}"
        )
    return None


def _into_nowhere(report: QueueReport, place: str, look: Look) -> Diagnosis:
    is_ours = report.name in {queue.name for queue in look.subject.known_queues}
    return problem(
        "dead-letter-nowhere",
        f"Messages that the broker drops from queue {report.name!r} go to {place}.",
        why="They are lost, or stay in the queue for ever, and nobody is told.",
        cure="Start the consumer again, which declares that queue."
        if is_ours and report.effective("dead-letter-routing-key") == dead_queue(report.name)
        else "Declare what is missing, or correct the queue's dead letter exchange and key.",
        commands=(look.subject.consume_command(report.name),) if is_ours else (),
    )


def of_timeouts(look: Look) -> Iterator[Diagnosis]:
    """Whether a delivery may stay unacked for longer than the broker allows."""
    reports = look.reports.queues if look.reports is not None else {}
    for queue in look.subject.queues:
        report = reports.get(queue.name)
        own = report.effective("consumer-timeout") if report is not None else None
        limit = timedelta(milliseconds=own) if isinstance(own, int) else CONSUMER_TIMEOUT
        doubt = "" if isinstance(own, int) else ", if it has RabbitMQ's own limit, which cannot be asked for"
        longer = {
            each.name: each.timeout for each in queue.handlers if each.timeout is not None and each.timeout >= limit
        }
        endless = [each.name for each in queue.handlers if each.timeout is None]
        if longer or (endless and isinstance(own, int)):
            yield warning(
                "consumer-timeout",
                f"RabbitMQ takes back a delivery of queue {queue.name!r} that is unacked for {_of(limit)}{doubt}. "
                + _slow(longer, endless),
                why="It then closes the channel, and all messages in hand are delivered again, maybe for ever.",
                cure="Give the handlers a shorter timeout, or raise consumer_timeout in rabbitmq.conf (milliseconds).",
                commands=("rabbitmqctl eval 'application:get_env(rabbit, consumer_timeout).'",),
            )


def _slow(longer: dict[str, timedelta], endless: list[str]) -> str:
    parts = [f"handler {name!r} has a timeout of {_of(limit)}" for name, limit in longer.items()]
    parts += [f"handler {name!r} has no timeout" for name in endless]
    text = ", and ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _whose(report: QueueReport, name: str) -> str:
    """The policy that sets a limit, if one does."""
    if not report.is_by_policy(name):
        return " by an argument of the queue"
    names = [each for each in (report.policy, report.operator_policy) if each]
    return f" by policy {' or '.join(map(repr, names))}" if names else " by a policy"


class _Undo(TypedDict):
    cure: str
    commands: tuple[str, ...]


def _undo(report: QueueReport, name: str, look: Look) -> _Undo:
    """The cure of a limit: without the policy, or with another queue."""
    vhost = shell_word(look.subject.vhost)
    if not report.is_by_policy(name):
        return {
            "cure": "Let the queue run empty, delete it, and declare it without that argument.",
            "commands": (f"rabbitmqctl delete_queue -p {vhost} {shell_word(report.name)}",),
        }
    commands = [f"rabbitmqctl clear_policy -p {vhost} {shell_word(report.policy)}"] if report.policy else []
    if report.operator_policy:
        commands.append(f"rabbitmqctl clear_operator_policy -p {vhost} {shell_word(report.operator_policy)}")
    return {
        "cure": f"Take {name} out of the policy, have its pattern leave this queue alone, or clear it.",
        "commands": tuple(commands),
    }


def _become(is_lost: bool) -> str:  # noqa: FBT001 - of one module
    """The end of messages, in words."""
    return "are deleted for good" if is_lost else "become dead letters"


def _span(milliseconds: int) -> str:
    return _of(timedelta(milliseconds=milliseconds))


def _of(span: timedelta) -> str:
    seconds = span.total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
