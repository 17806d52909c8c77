"""Exchange and queues of the broker: whether they are there, of the right kind, and consumed. Pure."""

import json
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from outboxkit.brokers.memory import matches
from outboxkit.brokers.rabbitmq.topology import RETRY_EXCHANGE, UNROUTABLE, dead_queue
from outboxkit.errors.wording import many, shell_word
from outboxkit.operators.doctor.broker.inspection import BrokerRefusal, Denied, Depth
from outboxkit.operators.doctor.broker.snapshot import QueueReport, Snapshot
from outboxkit.operators.findings import Diagnosis, finding
from outboxkit.runtime import known_handlers

QUORUM, CLASSIC, STREAM = "quorum", "classic", "stream"
SHOWN = 10
"""Names that a finding lists, at most."""


def of_exchange(snapshot: Snapshot) -> Iterator[Diagnosis]:
    """Whether the exchange is there, and is a durable topic exchange."""
    expected, refusal = snapshot.expected, snapshot.exchange
    if refusal is not None and refusal.kind is not Denied.FORBIDDEN:
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
        if isinstance(depth, BrokerRefusal) and depth.kind is not Denied.MISSING:
            yield _of_missing(owner, [queue.name], f" that can be used: {depth.reason}", snapshot)
        elif depth is not None:
            beside = [queue.name] if isinstance(depth, BrokerRefusal) else _beside(queue.name, snapshot)
            names = [name for name in beside if getattr(snapshot.depths.get(name), "kind", None) is Denied.MISSING]
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
        if refusal.kind is not Denied.FORBIDDEN:
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
        if is_taken and report.type == STREAM:
            yield _of_kind([report.name], report.name, "it is a stream", snapshot, worse=True)
        elif is_taken and is_single != expected.ordered and expected.shards_of(report.name) is None:
            has = "it has a single active consumer" if is_single else "it lets many consumers work at once"
            reason = f"{has}, and OUTBOXKIT_ORDERED is {str(expected.ordered).lower()}"
            yield _of_kind([report.name], report.name, reason, snapshot, worse=True)
        elif report.type == CLASSIC:
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
        whole = list(messages) == [owner] and expected.shards_of(owner) is None
        yield finding(
            "queue-unconsumed",
            worse=sum(messages.values()) > 0,
            queue=_listed(list(messages)),
            messages=_waiting(sum(messages.values())),
            bound="",
            consume=expected.consume_command(owner),
            delete=delete_command(owner, snapshot) if whole else None,
            forget=known_handlers.forget_command(owner) if whole else None,
        )
    ours = {queue.name for queue in expected.known_queues}
    for report in snapshot.queues:
        if report.name in ours and report.is_stalled:
            held = many(report.messages_unacknowledged, "message")
            waiting = many(report.messages_ready, "message waits", "messages wait")
            yield finding("queue-stalled", queue=repr(report.name), held=held, waiting=waiting)
    others = {each.destination for each in snapshot.bound if each.destination_type == "queue"} - ours
    for report in snapshot.queues:
        if report.name in others and report.messages_ready and not report.consumers:
            yield _of_another(report, snapshot)


def _waiting(messages: int) -> str:
    return f"{many(messages, 'message waits', 'messages wait')} there" if messages else "nothing waits there"


def _of_another(report: QueueReport, snapshot: Snapshot) -> Diagnosis:
    """The finding about a queue that gets messages of the exchange, and that no consumer here knows."""
    keys = sorted({each.routing_key for each in snapshot.bound if each.destination == report.name})
    types = sorted({type_ for queue in snapshot.expected.known_queues for type_ in queue.types})
    taken = any(matches(key.split("."), type_.split(".")) for key in keys for type_ in types)
    handled = "of which another queue has a handler" if taken else f"and handlers here take {_listed(types)}"
    bound = f" It is bound for {_listed(keys)}, {handled}." if types else " No consumer on this database knows it."
    return finding("queue-unconsumed", queue=repr(report.name), messages=_waiting(report.messages_ready), bound=bound)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:SHOWN])) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def delete_command(queue: str, snapshot: Snapshot) -> str:
    """The command that deletes a queue."""
    return f"rabbitmqctl delete_queue -p {shell_word(snapshot.expected.vhost)} {shell_word(queue)}"
