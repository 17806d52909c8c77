"""The queues of a process: which handlers each of them has, how many messages at once, and its subscriber.

Settings that do not fit together are a `ConfigurationError`.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import structlog

from outboxkit import defaults
from outboxkit.brokers import Subscriber
from outboxkit.consumer import Concurrency
from outboxkit.errors import ConfigurationError
from outboxkit.inbox import Handler
from outboxkit.runtime import process
from outboxkit.runtime.settings import Settings
from outboxkit.runtime.sources import QUEUE_LENGTH, ConsumedQueue, Shards

SHARDED_LENGTH = QUEUE_LENGTH - len(".12.11")
"""The longest name of a queue that is split: its shards' names are longer."""


def consumed_queues(settings: Settings) -> Sequence[ConsumedQueue]:
    """The queues that a consumer is to read."""
    if settings.queue is None:
        raise ConfigurationError("which queue? Set OUTBOXKIT_QUEUE, or give `outboxkit consume` --queue NAME")
    return settings.queue


def concurrency_of(settings: Settings) -> dict[str, Concurrency]:
    """The queues by their names, and what each of them may do at once."""
    batch = settings.batch_size or defaults.CONSUME_BATCH_SIZE
    return {
        queue.name: Concurrency(queue.concurrency or settings.concurrency, batch, settings.ordered)
        for queue in consumed_queues(settings)
    }


def shards_of(settings: Settings) -> Shards | None:
    """The shards of the queue; None if the settings do not split it."""
    if settings.shards is None:
        return None
    queues = consumed_queues(settings)
    name, text = queues[0].name, f"OUTBOXKIT_SHARDS is {settings.shards}"
    if not settings.ordered:
        raise ConfigurationError(
            f"{text}: shards are for an ordered queue. Add --ordered; without it, start as many processes as you like"
        )
    if len(queues) > 1:
        raise ConfigurationError(f"{text} and OUTBOXKIT_QUEUE names {len(queues)} queues: one is accepted with shards")
    if not settings.declare:
        raise ConfigurationError(f"{text}, and OUTBOXKIT_DECLARE=false declares nothing: shards have to be declared")
    if len(name) > SHARDED_LENGTH:
        raise ConfigurationError(
            f"OUTBOXKIT_QUEUE has {len(name)} characters: {SHARDED_LENGTH} are accepted with shards"
        )
    return Shards(name, settings.shards)


def connections(handlers: Sequence[Handler], concurrency: Concurrency) -> int:
    """The number of database connections that a queue's consumer needs beside those of its threads."""
    return (1 if all(handler.in_thread for handler in handlers) else concurrency.transactions) + 1


def assign(handlers: Sequence[Handler], queues: Sequence[str]) -> dict[str, list[Handler]]:
    """The handlers of each queue. A handler that names no queue belongs to the only one.

    Those that name another queue are left out, with a warning: another process has that queue, or its name is wrong.
    """
    assigned: dict[str, list[Handler]] = {name: [] for name in queues}
    left_out: dict[str, list[str]] = {}
    for handler in handlers:
        name = handler.queue or (queues[0] if len(queues) == 1 else None)
        if name is None:
            raise ConfigurationError(
                f"handler {handler.name!r} names no queue, and OUTBOXKIT_QUEUE names {_listed(queues)}: a message must "
                f'not run it twice. Write @inbox_handler("{handler.name}", queue="{queues[0]}"), or another of them'
            )
        if name in assigned:
            assigned[name].append(handler)
        else:
            left_out.setdefault(name, []).append(handler.name)
    for name, own in assigned.items():
        if not own:
            others = f"; those found name {_listed(list(left_out))}" if left_out else ""
            raise ConfigurationError(
                f'no handler for queue {name!r}: mark one with @inbox_handler("…", queue="{name}"){others}'
            )
    if left_out:
        log = structlog.get_logger("outboxkit").bind(process="consumer")
        log.warning("handlers left out: this process does not consume their queues", queues=left_out)
    return assigned


def _listed(names: Sequence[str]) -> str:
    return " and ".join((", ".join(names[:-1]), names[-1]) if len(names) > 1 else names)


def subscribers(
    settings: Settings,
    url: str,
    assigned: Mapping[str, Sequence[Handler]],
    *,
    delays: Sequence[timedelta],
    own: Subscriber | None,
) -> dict[str, Subscriber]:
    """A subscriber for each queue. They share the memory that a process may use for what it has not handled yet."""
    if own is not None:
        if len(assigned) > 1:
            raise ConfigurationError(f"a subscriber of your own serves one queue; OUTBOXKIT_QUEUE has {len(assigned)}")
        return dict.fromkeys(assigned, own)
    limits = concurrency_of(settings)
    topics = {name: topics_of(settings, name, handlers) for name, handlers in assigned.items()}
    return {
        name: process.subscriber(
            url,
            name,
            exchange=settings.exchange if settings.declare else None,
            topics=topics[name],
            prefetch=limits[name].prefetch(handlers),
            delays=delays,
            ordered=limits[name].ordered,
            one_of=len(assigned),
        )
        for name, handlers in assigned.items()
    }


def topics_of(settings: Settings, queue: str, handlers: Sequence[Handler]) -> list[str | tuple[str, str]]:
    """The routing keys of a queue: the types of its handlers, and further bindings with their exchanges."""
    names = [each.name for each in consumed_queues(settings)]
    topics: list[str | tuple[str, str]] = sorted({type_ for handler in handlers for type_ in handler.message_types})
    for binding in settings.bind or ():
        if not settings.declare:
            raise ConfigurationError("OUTBOXKIT_BIND binds a queue, and OUTBOXKIT_DECLARE=false binds nothing")
        if binding.queue not in (*names, None) or (binding.queue is None and len(names) > 1):
            raise ConfigurationError(
                f"OUTBOXKIT_BIND has {binding.exchange}:{binding.key} for "
                f"{'no queue' if binding.queue is None else f'queue {binding.queue!r}'}, and OUTBOXKIT_QUEUE names "
                f"{_listed(names)}: write QUEUE={binding.exchange}:{binding.key}"
            )
        if binding.queue in (queue, None):
            topics.append((binding.exchange, binding.key))
    return topics
