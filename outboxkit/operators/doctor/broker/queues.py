"""Queues of the broker: whether they are there, of the right kind, and consumed. Pure."""

import json
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote

from outboxkit.brokers.memory import matches
from outboxkit.brokers.rabbitmq.topology import RETRY_EXCHANGE, SINGLE_ACTIVE_CONSUMER, UNROUTABLE, dead_queue
from outboxkit.consumer.membership import Agreement
from outboxkit.errors.wording import many, shell_word
from outboxkit.operators.doctor.broker.facts import QueueReport
from outboxkit.operators.doctor.broker.inspection import BrokerRefusal, Denied, Depth
from outboxkit.operators.doctor.broker.look import Look
from outboxkit.operators.doctor.broker.subject import ExpectedQueue
from outboxkit.operators.doctor.diagnosis import note, problem, warning
from outboxkit.operators.findings import Diagnosis
from outboxkit.runtime import known_handlers
from outboxkit.runtime.sources import Shards

QUORUM, CLASSIC, STREAM = "quorum", "classic", "stream"
SHOWN = 10
"""Names that a finding lists, at most."""
_GROWS = "The queue grows until the broker's memory or disk is full, and then nobody can publish."


def of_exchange(look: Look) -> Iterator[Diagnosis]:
    """Whether the exchange is there, and is a durable topic exchange."""
    exchange, refusal = look.subject.exchange, look.exchange
    if refusal is None or refusal.kind is Denied.FORBIDDEN:
        return
    if refusal.kind is Denied.MISSING:
        yield problem(
            "exchange-missing",
            f"There is no exchange {exchange!r} in virtual host {look.subject.vhost!r}.",
            why="If it was deleted, all bindings went with it, and messages are unroutable until they are back.",
            cure="Start a relay, which declares it, and start the consumers again, which bind their queues.",
            commands=("outboxkit relay",),
        )
    else:
        yield problem(
            "exchange-kind",
            f"Exchange {exchange!r} is not a durable topic exchange: {refusal.reason}.",
            why="Relays and consumers declare it so, and end at their start. Other kinds route otherwise.",
            cure="Choose another OUTBOXKIT_EXCHANGE, or delete this one if it is not used otherwise.",
            commands=(_delete("exchange", exchange, look),),
        )


def of_queues(look: Look) -> Iterator[Diagnosis]:
    """Whether our queues are there, as consumers declare them."""
    yield from _all_absent(look)
    yield from _shards_out_of_order(look)
    names = [queue.name for queue in look.subject.queues]
    yield from _lost_their_queue(look)
    yield from _left_over(look)
    if any(isinstance(look.depths.get(name), Depth) for name in names):
        yield from _different(names[0], look.subject.retry_queues, look)
    for queue in look.subject.queues:
        depth = look.depths.get(queue.name)
        if isinstance(depth, BrokerRefusal):
            continue
        yield from _different(queue.name, (queue.name, dead_queue(queue.name)), look)
        if depth is not None:
            yield from _beside(queue, look)
        report = look.reports.queues.get(queue.name) if look.reports is not None else None
        if report is not None and not look.subject.is_declared:
            yield from _taken_as_it_is(report, look)
    yield from _classic_queues(look)
    yield from _members(look)


def _all_absent(look: Look) -> Iterator[Diagnosis]:
    """The queues that are not there, or cannot be used. A queue that is split has one finding for its missing parts."""
    missing: dict[Shards, list[str]] = {}
    for queue in look.subject.known_queues:
        refusal = look.depths.get(queue.name)
        if isinstance(refusal, BrokerRefusal):
            if queue.shards is None or refusal.kind is not Denied.MISSING:
                yield _absent(queue, refusal, look)
            else:
                missing.setdefault(queue.shards, []).append(queue.name)
    for shards, names in missing.items():
        is_all = len(names) == len(shards.consumed)
        yield problem(
            "queue-missing",
            f"Queue {shards.queue!r} is split into {shards.count} shards. In virtual host {look.subject.vhost!r} there "
            f"is no {_listed(names)}.",
            why=f"Exchange {shards.exchange!r} gives the messages of a missing shard to the others, out of order with "
            "those that follow once it is back. Without any shard messages are unroutable.",
            cure="Start its consumer, or start it again: it declares and binds all of them."
            + (" If the queue is given up, or was a mistake, forget its handlers." if is_all else ""),
            commands=(
                look.subject.consume_command(shards.queue),
                *([known_handlers.forget_command(shards.queue)] if is_all else []),
            ),
        )


def _absent(queue: ExpectedQueue, refusal: BrokerRefusal, look: Look) -> Diagnosis:
    if refusal.kind is not Denied.MISSING:
        return problem(
            "queue-unusable",
            f"Queue {queue.name!r} cannot be used: {refusal.reason}.",
            why="Nothing is consumed from it, and publishes to it may be refused.",
            cure="Start the nodes that have its members.",
            commands=(f"rabbitmq-queues quorum_status -p {shell_word(look.subject.vhost)} {shell_word(queue.name)}",),
        )
    consume = look.subject.consume_command(queue.name)
    return problem(
        "queue-missing",
        f"There is no queue {queue.name!r} in virtual host {look.subject.vhost!r}.",
        why="Messages of its types reach nobody: they stay in the outbox as unroutable, if no other queue wants them.",
        cure=(
            "Start its consumer, which declares and binds it, or correct OUTBOXKIT_QUEUE."
            if look.subject.is_declared
            else "Correct OUTBOXKIT_QUEUE, or declare and bind that queue: OUTBOXKIT_DECLARE=false declares none."
        )
        + " If the queue is given up, or was a mistake, forget its handlers.",
        commands=(*([consume] if look.subject.is_declared else []), known_handlers.forget_command(queue.name)),
    )


def _different(queue: str, names: Iterable[str], look: Look) -> Iterator[Diagnosis]:
    """The differences of a queue, or of others that its consumer needs, from what it declares."""
    for name in names:
        refusal = look.differences.get(name)
        if refusal is None or refusal.kind is Denied.FORBIDDEN:
            continue
        shards = look.subject.shards_of(name)
        if SINGLE_ACTIVE_CONSUMER in refusal.reason and shards is not None:
            continue  # one finding tells of all of them
        if SINGLE_ACTIVE_CONSUMER in refusal.reason:
            yield _in_order(ExpectedQueue(name=queue), is_single=not look.subject.ordered, look=look)
            continue
        report = look.reports.queues.get(name) if look.reports is not None else None
        is_kind = "x-queue-type" in refusal.reason or (report is not None and report.type != QUORUM)
        yield problem(
            "queue-kind" if is_kind else "queue-arguments",
            f"Queue {name!r} is not the {'quorum queue' if is_kind else 'one'} of a consumer: {refusal.reason}.",
            why="The consumer ends at its start, and its messages wait in the queue.",
            cure=f"Delete it when it is empty. The consumer of {shards.queue!r} declares it anew."
            if shards is not None
            else "Consume it as it is with OUTBOXKIT_DECLARE=false, or choose another OUTBOXKIT_QUEUE. Or let it run "
            "empty and delete it: its consumer declares it anew.",
            commands=(look.subject.consume_command(queue),) if shards is not None else
                     (f"{look.subject.consume_command(queue)} --no-declare", _delete("queue", name, look)),
        )  # fmt: skip


def _shards_out_of_order(look: Look) -> Iterator[Diagnosis]:
    """The queues that are split and of whose shards some let many consumers work at once."""
    for shards in look.subject.shards.values():
        names = [
            name
            for name in shards.consumed
            if (refusal := look.differences.get(name)) is not None and SINGLE_ACTIVE_CONSUMER in refusal.reason
        ]
        if names:
            yield problem(
                "queue-order",
                f"Queue {shards.queue!r} is split into {shards.count} shards. Many consumers at once may work on "
                f"{_listed(names)}.",
                why="Messages of one key overtake each other there, and its own consumers end at their start.",
                cure="Stop each consumer of a single shard. Delete these queues when they are empty, and start the "
                f"consumers of {shards.queue!r}, which declare them anew.",
                commands=(look.subject.consume_command(shards.queue),),
            )


def _in_order(queue: ExpectedQueue, *, is_single: bool, look: Look) -> Diagnosis:
    """The problem of a queue whose consumers are one at a time, or are not, against the setting."""
    has = "has a single active consumer" if is_single else "lets many consumers work at once"
    setting = "OUTBOXKIT_ORDERED is " + ("true" if look.subject.ordered else "false")
    return problem(
        "queue-order",
        f"Queue {queue.name!r} {has}, and {setting}.",
        why="With one consumer at a time the others stand by; with many, messages of one key overtake each other.",
        cure="Set OUTBOXKIT_ORDERED as the queue is. Or stop its consumers when it is empty, delete it, and start them "
        "again.",
        commands=(_delete("queue", queue.name, look),
                  look.subject.consume_command(queue.name)),
    )  # fmt: skip


def _beside(queue: ExpectedQueue, look: Look) -> Iterator[Diagnosis]:
    """The queues that a consumer needs beside its own, and that are missing."""
    names = [*look.subject.retry_queues, *((dead_queue(queue.name), UNROUTABLE) if look.subject.is_declared else ())]
    if not look.subject.is_declared:
        names = [name for name in names if name.startswith(f"{queue.name}.")]
    depths = {name: look.depths.get(name) for name in names}
    missing = [name for name, depth in depths.items() if getattr(depth, "kind", None) is Denied.MISSING]
    if missing:
        yield warning(
            "queue-beside-missing",
            f"Beside queue {queue.name!r} there is no {', '.join(missing)}.",
            why="Failed messages wait in the retry queues, and dropped ones go to the dead queue.",
            cure="Start the consumer again: it declares what is missing.",
            commands=(look.subject.consume_command(queue.name),),
        )


def _lost_their_queue(look: Look) -> Iterator[Diagnosis]:
    """The copies of failed messages whose queue was deleted while they waited."""
    depth = look.depths.get(UNROUTABLE)
    if isinstance(depth, Depth) and depth.messages:
        address = f"amqp:///{quote(look.subject.vhost, safe='')}"
        back = {"src-uri": address, "src-queue": UNROUTABLE, "dest-uri": address, "dest-exchange": RETRY_EXCHANGE}
        shovel = shell_word(json.dumps(back | {"src-delete-after": "queue-length"}))
        yield problem(
            "retries-unroutable",
            f"Queue {UNROUTABLE!r} has {many(depth.messages, 'failed message')} whose queue was deleted while they "
            "waited for their next attempt.",
            why="Nobody reads them. The routing key of each is the name of its queue.",
            cure="Start the consumers of those queues, which declare them again. Then have RabbitMQ's shovel bring the "
            "messages back. Or purge the queue, if its consumers are gone for good.",
            commands=(
                "rabbitmq-plugins enable rabbitmq_shovel",
                f"rabbitmqctl set_parameter -p {shell_word(look.subject.vhost)} shovel outboxkit-return {shovel}",
            ),
        )


def _left_over(look: Look) -> Iterator[Diagnosis]:
    """The retry queues of a single queue, from the time before all queues shared theirs."""
    depths = {name: look.depths.get(name) for name in look.subject.left_over}
    there = {name: depth.messages for name, depth in depths.items() if isinstance(depth, Depth)}
    if there:
        yield note(
            "queue-left-over",
            f"{', '.join(map(repr, there))} {'is' if len(there) == 1 else 'are'} no longer used: copies wait in queues "
            "that all consumers share.",
            why=f"The broker keeps them for nothing. Messages in them come back as before: {sum(there.values())} now.",
            cure="Delete them once they are empty.",
            commands=tuple(_delete("queue", name, look) for name, messages in there.items() if not messages),
        )


def _taken_as_it_is(report: QueueReport, look: Look) -> Iterator[Diagnosis]:
    """The problems of a queue that the settings take as it is."""
    if report.type == STREAM:
        yield problem(
            "queue-kind",
            f"Queue {report.name!r} is a stream.",
            why="A stream keeps what was acked, so the consumer ends at its first message.",
            cure="Bind a quorum queue to the same exchange, and consume that one.",
        )
        return
    is_single = bool(report.effective("single-active-consumer"))
    if is_single != look.subject.ordered and look.subject.shards_of(report.name) is None:
        yield _in_order(ExpectedQueue(name=report.name), is_single=is_single, look=look)


def _classic_queues(look: Look) -> Iterator[Diagnosis]:
    """The classic queues among those that get our messages."""
    if look.reports is None:
        return
    classic = [report.name for report in look.reports.queues.values() if report is not None and report.type == CLASSIC]
    if not classic:
        return
    make, names = (problem if look.reports.is_cluster else warning), ", ".join(map(repr, classic))
    ours = [name for name in classic if name in {queue.name for queue in look.subject.known_queues}]
    yield make(
        "queue-classic",
        f"{names} {'is a classic queue' if len(classic) == 1 else 'are classic queues'}"
        + (f" in a cluster of {len(look.reports.nodes or ())} nodes." if look.reports.is_cluster else "."),
        why="A classic queue is on one node. With that node its messages are away, or lost if its disk is. It counts "
        "no redeliveries either.",
        cure="Let it run empty, delete it, and have its consumer declare a quorum queue."
        + ("" if len(ours) == len(classic) else " Those of others are for their owners to replace."),
        commands=tuple(_delete("queue", name, look) for name in ours[:3]),
    )


def _members(look: Look) -> Iterator[Diagnosis]:
    """The quorum queues that have lost members, or have too few."""
    for report in (look.reports.queues if look.reports is not None else {}).values():
        if report is None or not report.members:
            continue
        away, vhost = sorted(set(report.members) - set(report.online)), shell_word(look.subject.vhost)
        status = f"rabbitmq-queues quorum_status -p {vhost} {shell_word(report.name)}"
        if away:
            is_lost = 2 * len(report.online) <= len(report.members)
            yield (problem if is_lost else warning)(
                "queue-members-away",
                f"Of {len(report.members)} members of queue {report.name!r}, {', '.join(away)} cannot be reached.",
                why="Without a majority it takes and gives no messages."
                if is_lost
                else "It works. With one more lost it may take and give no messages.",
                cure="Start these nodes.",
                commands=(status,),
            )
        elif look.reports is not None and look.reports.is_cluster and len(report.members) == 1:
            yield warning(
                "queue-one-member",
                f"Queue {report.name!r} has one member in a cluster of {len(look.reports.nodes or ())} nodes.",
                why="With the node of that member its messages are away.",
                cure="Add members on the other nodes.",
                commands=tuple(
                    f"rabbitmq-queues add_member -p {vhost} {shell_word(report.name)} {node.name}"
                    for node in look.reports.nodes or ()
                    if node.name not in report.members
                ),
            )


def of_consumers(look: Look) -> Iterator[Diagnosis]:
    """Whether somebody consumes the queues. New shards need nobody before the keys in the old ones are known."""
    idle: dict[Shards, dict[str, int]] = {}
    for name, move in look.subject.moves.items():
        yield _moving(name, move)
        for old in move.draining:
            depth = look.depths.get(old)
            if isinstance(depth, Depth) and not depth.consumers and name not in look.subject.paused:
                idle.setdefault(Shards(name, move.shards), {})[old] = depth.messages
    resting = {name for name, move in look.subject.moves.items() if not move.is_open}
    for queue in look.subject.known_queues:
        depth = look.depths.get(queue.name)
        if (queue.name if queue.shards is None else queue.shards.queue) in resting:
            continue
        if isinstance(depth, Depth) and not depth.consumers and queue.name not in look.subject.paused:
            if queue.shards is None:
                yield _unconsumed(queue.name, depth.messages, look)
            else:
                idle.setdefault(queue.shards, {})[queue.name] = depth.messages
    for shards, messages in idle.items():
        yield _unconsumed_shards(shards, messages, look)
    ours = {queue.name for queue in look.subject.known_queues}
    yield from _stalled(look, ours)
    others = {each.destination for each in look.bound if each.destination_type == "queue"} - ours
    for report in (look.reports.queues if look.reports is not None else {}).values():
        if report is not None and report.name in others and report.messages_ready and not report.consumers:
            yield _unknown(report.name, report.messages_ready, look)


def _stalled(look: Look, ours: set[str]) -> Iterator[Diagnosis]:
    """The queues of ours whose consumers hold messages and ack none."""
    for report in (look.reports.queues if look.reports is not None else {}).values():
        if report is not None and report.name in ours and report.is_stalled:
            yield warning(
                "queue-stalled",
                f"Consumers of queue {report.name!r} hold {many(report.messages_unacknowledged, 'message')} and have "
                f"acked none for seconds, while {many(report.messages_ready, 'message waits', 'messages wait')}.",
                why="A handler may hang, or wait for a lock or for somebody who does not answer. Or each is slow.",
                cure="Read the consumer's log, and give each handler a timeout. A consumer that is started again gets "
                "the messages again.",
                commands=('@inbox_handler("NAME", timeout=30)',),
            )


def _unknown(name: str, messages: int, look: Look) -> Diagnosis:
    """The finding about a queue that gets messages of the exchange, and that no consumer here knows."""
    keys = sorted({each.routing_key for each in look.bound if each.destination == name})
    types = sorted({type_ for queue in look.subject.known_queues for type_ in queue.types})
    what, cure = "", "No consumer on this database knows it. Its owner starts its consumer, or gives the queue up."
    taken = any(matches(key.split("."), type_.split(".")) for key in keys for type_ in types)
    if types and not taken:
        what = f" It is bound for {_listed(keys)}. No handler here takes that; they take {_listed(types)}."
        cure = (
            "If one of these handlers should get its messages, correct the event of that handler, and start its "
            "consumer again. If the queue is another service's, its owner starts its consumer, or gives the queue up."
        )
    elif types:
        what = f" It is bound for {_listed(keys)}, of which another queue has a handler."
        cure = (
            "If it is that consumer's old queue, delete it once its messages are handled. If it is another service's, "
            "its owner starts its consumer, or gives the queue up."
        )
    return warning(
        "queue-unconsumed",
        f"Nobody consumes queue {name!r}, and {many(messages, 'message waits', 'messages wait')} in it.{what}",
        why=f"What is in it happens to nobody. {_GROWS}",
        cure=cure,
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:SHOWN])) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _moving(queue: str, move: Agreement) -> Diagnosis:
    """The note about a change of the number of shards, with all that it waits for."""
    keys = sorted({key for left in move.draining.values() for key in left or ()})
    waits = f"messages of {many(len(keys), 'key')} there come first: {_listed(keys)}" if move.is_open else "all wait"
    left = f" Messages are left in {_listed(list(move.draining))}; {waits}." if move.draining else ""
    return note(
        "shards-moving",
        f"Queue {queue!r} changes to {many(move.shards, 'shard')}.{left}",
        why="A message waits for earlier ones of its key in the old shards; all wait until these keys are known.",
        cure="Read in the consumer's log why a message of such a key fails. It holds up its key, and the next change.",
        commands=(
            known_handlers.consume_command(queue, shards=move.shards, ordered=True),
            *(f"outboxkit trace --key {shell_word(key)}" for key in keys[:1]),
        ),
    )


def _unconsumed_shards(shards: Shards, waiting: dict[str, int], look: Look) -> Diagnosis:
    messages = sum(waiting.values())
    return (problem if messages else warning)(
        "queue-unconsumed",
        f"Queue {shards.queue!r} is split into {many(shards.count, 'shard')}. Nobody consumes "
        f"{_listed(list(waiting))}, "
        + (
            f"and {many(messages, 'message waits', 'messages wait')} there." if messages else "and nothing waits there."
        ),
        why=_GROWS if messages else "The next message will wait there.",
        cure=f"Start the consumer of {shards.queue!r}, which shares its shards out. If it runs, look at the last lines "
        "of its log. The shards of a killed process wait for 10 s.",
        commands=(look.subject.consume_command(shards.queue),),
    )


def _unconsumed(name: str, messages: int, look: Look) -> Diagnosis:
    waiting = f"and {many(messages, 'message waits', 'messages wait')} in it" if messages else "and it is empty"
    return (problem if messages else warning)(
        "queue-unconsumed",
        f"Nobody consumes queue {name!r}, {waiting}.",
        why=_GROWS if messages else "The next message will wait in it.",
        cure="Start its consumer, and look at the last lines of its log if it runs or has ended. If the queue is given "
        "up, or was a mistake, delete it with the queues beside it, and forget its handlers.",
        commands=(
            look.subject.consume_command(name),
            _delete("queue", name, look),
            known_handlers.forget_command(name),
        ),
    )


def _delete(kind: str, name: str, look: Look) -> str:
    """The command that deletes a queue or an exchange."""
    vhost, quoted = shell_word(look.subject.vhost), shell_word(name)
    if kind == "queue":
        return f"rabbitmqctl delete_queue -p {vhost} {quoted}"
    return f"rabbitmqadmin -V {vhost} delete exchange name={quoted}"
