"""The catalogue of metrics: every one that outboxkit records, with its unit, attributes and meaning.

docs/reference/metrics.md is made from it. Names with `messaging.` follow OpenTelemetry's conventions for messaging.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The kind of a metric, as Prometheus calls it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The bounds of durations of one step."""
AGES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 86_400.0)
"""The bounds of ages of messages, which may be a day."""


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A metric.

    Attributes:
        name: as OpenTelemetry has it.
        kind: a gauge is read at each collection, the others are recorded as things happen.
        unit: in UCUM's notation: `s`, or what is counted in braces.
        known: the values of the one attribute of a counter that are known beforehand; each begins at 0.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    attributes: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    known: tuple[str, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """The name in Prometheus' text format; a histogram has series of this name with a suffix."""
        unit = {"s": "_seconds"}.get(self.unit, "")
        return self.name.replace(".", "_") + unit + ("_total" if self.kind is Kind.COUNTER else "")


def _counter(name: str, unit: str, description: str, *attributes: str, known: tuple[str, ...] = ()) -> Metric:
    return Metric(name, Kind.COUNTER, unit, description, attributes, known=known)


def _gauge(name: str, unit: str, description: str, *attributes: str) -> Metric:
    return Metric(name, Kind.GAUGE, unit, description, attributes)


def _histogram(name: str, unit: str, description: str, *attributes: str, bounds: tuple[float, ...]) -> Metric:
    return Metric(name, Kind.HISTOGRAM, unit, description, attributes, bounds)


SYSTEM, ADDRESS, OPERATION, ERROR = (
    "messaging.system",
    "messaging.destination.name",
    "messaging.operation.name",
    "error.type",
)
_CLIENT = (SYSTEM, ADDRESS, OPERATION, ERROR)

SENT = _counter("messaging.client.sent.messages", "{message}", "Messages that the relay has sent.", *_CLIENT)
RELAY_MESSAGES = _counter(
    "outboxkit.relay.messages",
    "{message}",
    "Messages of the outbox that the relay has settled, each time that one was tried.",
    "type",
    "destination",
    "outcome",
)
RELAY_STEP_DURATION = _histogram(
    "outboxkit.relay.step.duration", "s", "Duration of one step of the relay for one batch.", "step", bounds=SECONDS
)
RELAY_LAG = _histogram(
    "outboxkit.relay.lag",
    "s",
    "Time from the moment that a message was added, or due, until the broker's confirm; "
    "of 16 messages of a batch at most. One that was put off counts from its new time.",
    bounds=AGES,
)
RELAY_CONNECTED = _gauge(
    "outboxkit.relay.connected",
    "1",
    "Whether the relay reaches this server: 1, or 0 in an outage.",
    "destination",
    "server",
)
RELAY_LAST_PROGRESS = _gauge(
    "outboxkit.relay.last_progress",
    "s",
    "Unix time at which the relay last ended a turn, also one without messages, or looked whether its pause is over.",
    "destination",
)
FLOOR_GAP = _gauge(
    "outboxkit.outbox.floor_gap",
    "{position}",
    "Positions between the relay's floor and the highest position that it has claimed. "
    "It grows while a long transaction keeps the floor down.",
)

OUTBOX_MESSAGES = _gauge(
    "outboxkit.outbox.messages",
    "{message}",
    "Messages in the outbox by state, counted up to 10000 of each.",
    "destination",
    "state",
)
OLDEST_AGE = _gauge(
    "outboxkit.outbox.oldest_age",
    "s",
    "Age of the oldest message that could be published now; 0 if none could.",
    "destination",
)
PARKED_KEYS = _gauge(
    "outboxkit.outbox.parked_keys",
    "{key}",
    "Keys whose later messages wait behind a dead letter, counted among 10000 such dead letters.",
)
DEAD_OPEN = _gauge(
    "outboxkit.dead_letters.open",
    "{message}",
    "Dead letters that were neither replayed nor discarded, counted up to 10000.",
    "side",
    "reason",
)
PAUSE_AGE = _gauge(
    "outboxkit.pause.age",
    "s",
    "Time since an operator paused the relays of a destination, or the consumers of a queue; the other attribute is "
    "empty. No series if nothing is paused.",
    "destination",
    "queue",
)
OLDEST_TRANSACTION_AGE = _gauge(
    "outboxkit.database.oldest_transaction_age",
    "s",
    "Age of the transaction that holds back vacuum and the floor for longest; 0 if none does. PostgreSQL only.",
)
DEAD_ROWS = _gauge(
    "outboxkit.database.dead_rows", "{row}", "Deleted rows of the outbox that vacuum has not removed. PostgreSQL only."
)
CLOCKS_APART = _gauge(
    "outboxkit.clock.skew",
    "s",
    "Time by which the clock of this machine is ahead of the database's; negative: behind.",
)
INBOX_OLDEST_DAY = _gauge(
    "outboxkit.inbox.oldest_day",
    "s",
    "Unix time at which the oldest day began that the inbox has a partition for. "
    "Retention drops it when its time is over. PostgreSQL only.",
)

PROCESS_DURATION = _histogram(
    "messaging.process.duration",
    "s",
    "Duration of one transaction with handlers: of one message, or of a batch.",
    SYSTEM,
    ADDRESS,
    OPERATION,
    "handler",
    ERROR,
    bounds=SECONDS,
)
DELIVERIES = _counter(
    "outboxkit.consumer.deliveries",
    "{delivery}",
    "Deliveries by outcome, once for each handler.",
    "queue",
    "type",
    "handler",
    "outcome",
)
CONSUMER_CONNECTED = _gauge(
    "outboxkit.consumer.connected", "1", "Whether it reaches this server: 1, or 0 in an outage.", "queue", "server"
)
QUEUE_MESSAGES = _gauge(
    "outboxkit.queue.messages",
    "{message}",
    "Messages that are ready in the consumer's queue, in its dead queue, and in the retry queues, which all consumers "
    "of a virtual host share. Those that were pushed to a consumer are not among them.",
    "queue",
)
PLACES = _gauge(
    "outboxkit.consumer.places",
    "{place}",
    "Transactions that a consumer may run at once, by state: `taken`, or all.",
    "queue",
    "state",
)
IN_FLIGHT = _gauge("outboxkit.consumer.in_flight", "{delivery}", "Deliveries that handlers are working on.", "queue")
LONGEST_RUN = _gauge(
    "outboxkit.consumer.longest_run",
    "s",
    "Time since the run of this handler began that has not ended for longest; 0 if it does not run.",
    "queue",
    "handler",
)
MESSAGE_AGE = _histogram(
    "outboxkit.consumer.message_age",
    "s",
    "Age of a message when its handlers had committed; of 16 messages of a batch at most. Without a UUIDv7, as for a "
    "handler's message, it is up to a second too high: AMQP's timestamp is in seconds.",
    "queue",
    bounds=AGES,
)

HTTP_REQUESTS = _counter(
    "outboxkit.http.requests",
    "{request}",
    "Requests with an idempotency key.",
    "outcome",
    known=("fresh", "replayed", "in progress", "mismatch", "refused"),
)
EFFECTS = _counter(
    "outboxkit.effects",
    "{effect}",
    "Calls of `effects.once`, by decision.",
    "decision",
    known=("made", "remembered", "skipped", "repeated", "busy", "failed"),
)

RECONCILE_MISSING = _gauge(
    "outboxkit.reconcile.missing",
    "{message}",
    "Messages that were published, and that this handler has not had.",
    "handler",
)
RECONCILE_AMBIGUOUS = _gauge(
    "outboxkit.reconcile.ambiguous", "{id}", "Ids that were published with different payloads: all but one are lost."
)
RECONCILE_FINISHED = _gauge("outboxkit.reconcile.finished", "s", "Unix time at which the comparison ended.")

CATALOGUE: Mapping[str, tuple[Metric, ...]] = {
    "The relay": (
        *(SENT, RELAY_MESSAGES, RELAY_STEP_DURATION, RELAY_LAG),
        *(RELAY_CONNECTED, RELAY_LAST_PROGRESS, FLOOR_GAP),
    ),
    "The tables": (
        *(OUTBOX_MESSAGES, OLDEST_AGE, PARKED_KEYS, DEAD_OPEN, PAUSE_AGE, OLDEST_TRANSACTION_AGE, DEAD_ROWS),
        INBOX_OLDEST_DAY,
    ),
    "The consumer": (
        *(PROCESS_DURATION, DELIVERIES, IN_FLIGHT, PLACES, LONGEST_RUN, MESSAGE_AGE),
        *(CONSUMER_CONNECTED, QUEUE_MESSAGES),
    ),
    "Relay and consumer": (CLOCKS_APART,),
    "The application": (HTTP_REQUESTS, EFFECTS),
    "The file of reconcile": (RECONCILE_MISSING, RECONCILE_AMBIGUOUS, RECONCILE_FINISHED),
}
"""All metrics, by the process that has them. Those of the tables are in each process."""
METRICS = tuple(metric for group in CATALOGUE.values() for metric in group)

DEAD_REASONS: Mapping[str, tuple[str, ...]] = {
    "outbox": ("unroutable", "rejected", "expired"),
    "inbox": (
        *("failed", "rejected", "undecodable", "newer version", "no handler", "crash", "stale", "malformed"),
        "dropped",
    ),
}
"""The reasons of dead letters, by side."""

OTHER = "other"
"""The value for names beyond the bound of an attribute, and for types that a consumer has no handler for."""
MOST_NAMES = 100
"""Message types that a relay tells apart; the next ones are `OTHER`."""
