"""Routes of the broker: which queues get which messages, by exchanges and bindings. Pure."""

from collections.abc import Iterator

from outboxkit.brokers.memory import matches
from outboxkit.brokers.rabbitmq.topology import RETRY_EXCHANGE
from outboxkit.errors.wording import shell_word
from outboxkit.operators.doctor.broker.facts import ApiReports, Bound, ExchangeReport
from outboxkit.operators.doctor.broker.look import Look
from outboxkit.operators.doctor.broker.subject import ExpectedQueue
from outboxkit.operators.doctor.diagnosis import problem, warning
from outboxkit.operators.findings import Diagnosis

SHOWN = 10
"""Names that a finding lists, at most."""

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


def of_routes(look: Look) -> Iterator[Diagnosis]:
    """Whether every message has a queue, and every handler gets its messages."""
    reports = look.reports
    if reports is None or reports.bindings is None or reports.exchanges is None or look.exchange is not None:
        return
    yield from _unwanted(look, reports)
    for queue in look.subject.known_queues:
        if reports.queues.get(queue.name) is None or queue.is_split:
            continue
        bound = [each for each in reports.bindings if each.destination == queue.name and each.source not in UNASKED]
        if not bound:
            yield _unbound(queue, look)
            continue
        yield from _unserved(queue, look, reports)
        yield from _unhandled(queue, look, bound)


def _unwanted(look: Look, reports: ApiReports) -> Iterator[Diagnosis]:
    """The types in the outbox that no queue wants."""
    exchange = look.subject.exchange
    unwanted = {key: count for key, count in look.subject.routes.items() if not routed(reports, exchange, key)}
    if not unwanted:
        return
    names = [f"{count} of {key!r}" for key, count in sorted(unwanted.items())]
    report = reports.exchanges[exchange] if reports.exchanges and exchange in reports.exchanges else None
    make = warning if report is not None and report.policy else problem
    yield make(
        "type-unwanted",
        f"No queue is bound to exchange {exchange!r} for messages in the outbox: {_listed(names)}.",
        why="They are unroutable: the relay tries each for a while, and then it is a dead letter. Later messages of "
        "its key wait until then.",
        cure="Start the consumer that handles them, again if it runs: that binds its queue. Or bind a queue, or "
        'correct the type. An event that nobody needs to want is @event(…, unroutable="discard").',
        commands=tuple(_bind(exchange, "QUEUE", key, look) for key in sorted(unwanted)[:3]),
    )


def _unbound(queue: ExpectedQueue, look: Look) -> Diagnosis:
    exchange = look.subject.exchange
    return problem(
        "queue-unbound",
        f"Queue {queue.name!r} is bound to no exchange.",
        why="Nothing that a relay publishes arrives in it. Its consumer waits for ever, and looks well.",
        cure="Start its consumer again, which binds it each time it connects, or bind it."
        if look.subject.is_declared
        else "Bind it: with OUTBOXKIT_DECLARE=false its consumer does not.",
        commands=tuple(_bind(exchange, queue.name, key, look) for key in queue.types[:SHOWN] or ("TYPE",)),
    )


def _unserved(queue: ExpectedQueue, look: Look, reports: ApiReports) -> Iterator[Diagnosis]:
    """The types that a handler takes and its queue does not get."""
    exchange = look.subject.exchange
    missing = [type_ for type_ in queue.types if queue.name not in routed(reports, exchange, type_)]
    if not missing:
        return
    is_declared = look.subject.is_declared
    yield (problem if is_declared else warning)(
        "handler-unbound",
        f"Queue {queue.name!r} has handlers for {_listed(list(map(repr, missing)))}, and is not bound to exchange "
        f"{exchange!r} for that.",
        why="These handlers get nothing of what relays publish. The messages go to other queues, or are unroutable."
        + ("" if is_declared else " Only messages with another routing key, their topic, may arrive."),
        cure="Start the consumer again with these handlers, which binds their types, or bind them."
        if is_declared
        else "Bind them: with OUTBOXKIT_DECLARE=false its consumer does not.",
        commands=tuple(_bind(exchange, queue.name, type_, look) for type_ in missing[:SHOWN]),
    )


def _unhandled(queue: ExpectedQueue, look: Look, bound: list[Bound]) -> Iterator[Diagnosis]:
    """The bindings of a queue for types that none of its handlers takes."""
    exchange = look.subject.exchange
    keys = sorted({
        each.routing_key
        for each in bound
        if each.source == exchange and not {"*", "#"} & set(each.routing_key.split("."))
    })  # fmt: skip
    expected = {*queue.types, *(key for source, key in queue.bindings if source == exchange)}
    wrong = [key for key in keys if key not in expected]
    if queue.types and wrong:
        yield warning(
            "binding-unhandled",
            f"Queue {queue.name!r} is bound for {_listed(list(map(repr, wrong)))}, and no handler takes that.",
            why="Such a message is tried for a while, and then it is a dead letter with the reason 'no handler'. It "
            "may be a misspelt type, a module that was left out, or the type of a service with this queue's name.",
            cure="Name the module that has its handler. If another service consumes this queue, give it a queue of its "
            "own. If nobody handles it any more, take the binding away.",
            commands=tuple(
                f"rabbitmqadmin -V {shell_word(look.subject.vhost)} delete binding source={shell_word(exchange)} "
                f"destination_type=queue destination={shell_word(queue.name)} properties_key={shell_word(key)}"
                for key in wrong[:SHOWN]
            ),
        )


def _bind(exchange: str, queue: str, key: str, look: Look) -> str:
    return (
        f"rabbitmqadmin -V {shell_word(look.subject.vhost)} declare binding source={shell_word(exchange)} "
        f"destination={shell_word(queue)} routing_key={shell_word(key)}"
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
