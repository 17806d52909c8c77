"""Routes of the broker: which queues get which messages, by exchanges and bindings. Pure."""

from collections.abc import Iterator, Sequence

from outboxkit.brokers.memory import matches
from outboxkit.brokers.rabbitmq.topology import RETRY_EXCHANGE
from outboxkit.errors.wording import shell_word
from outboxkit.operators.doctor.broker.expected import ExpectedQueue
from outboxkit.operators.doctor.broker.snapshot import ApiReports, Bound, ExchangeReport, Snapshot
from outboxkit.operators.findings import Diagnosis, finding

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


def of_routes(snapshot: Snapshot) -> Iterator[Diagnosis]:
    """Whether every message has a queue, and every handler gets its messages."""
    reports, expected = snapshot.reports, snapshot.expected
    if reports is None or reports.bindings is None or reports.exchanges is None or snapshot.exchange is not None:
        return
    exchange = expected.exchange
    unwanted = {key: count for key, count in sorted(expected.routes.items()) if not routed(reports, exchange, key)}
    if unwanted:
        report = reports.exchanges.get(exchange)
        yield finding(
            "type-unwanted",
            worse=report is None or not report.policy,
            exchange=repr(exchange),
            types=_listed([f"{count} of {key!r}" for key, count in unwanted.items()]),
            binds=tuple(_bind("QUEUE", key, snapshot) for key in list(unwanted)[:3]),
        )
    for queue in expected.known_queues:
        if reports.queues.get(queue.name) is None or queue.is_split:
            continue
        bound = [each for each in reports.bindings if each.destination == queue.name and each.source not in UNASKED]
        missing = [type_ for type_ in queue.types if queue.name not in routed(reports, exchange, type_)]
        if missing or not bound:
            yield finding(
                "queue-unbound",
                queue=repr(queue.name),
                exchange=repr(exchange),
                types=_listed(list(map(repr, missing))) if missing else "any type",
                binds=tuple(_bind(queue.name, type_, snapshot) for type_ in missing[:SHOWN] or ("TYPE",)),
            )
        yield from _unhandled(queue, bound, snapshot)


def _unhandled(queue: ExpectedQueue, bound: Sequence[Bound], snapshot: Snapshot) -> Iterator[Diagnosis]:
    """The bindings of a queue for types that none of its handlers takes."""
    exchange, vhost = snapshot.expected.exchange, shell_word(snapshot.expected.vhost)
    ours = {each.routing_key for each in bound if each.source == exchange}
    keys = sorted(key for key in ours if not {"*", "#"} & set(key.split(".")))
    expected = {*queue.types, *(key for source, key in queue.bindings if source == exchange)}
    wrong = [key for key in keys if key not in expected]
    if queue.types and wrong:
        yield finding(
            "binding-unhandled",
            queue=repr(queue.name),
            types=_listed(list(map(repr, wrong))),
            unbinds=tuple(
                f"rabbitmqadmin -V {vhost} delete binding source={shell_word(exchange)} destination_type=queue "
                f"destination={shell_word(queue.name)} properties_key={shell_word(key)}"
                for key in wrong[:SHOWN]
            ),
        )


def _bind(queue: str, key: str, snapshot: Snapshot) -> str:
    return (
        f"rabbitmqadmin -V {shell_word(snapshot.expected.vhost)} declare binding "
        f"source={shell_word(snapshot.expected.exchange)} destination={shell_word(queue)} routing_key={shell_word(key)}"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
