"""Another attempt or a dead letter: the decisions of a consumer, and the columns of the dead letter. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from outboxkit import defaults
from outboxkit.codec.envelopes import reader_for
from outboxkit.codec.envelopes.envelope import Malformed
from outboxkit.codec.headers import HANDLERS, MOST_ATTEMPTS, encode_foreign_headers
from outboxkit.codec.rows import NUMBERS, TEXTS
from outboxkit.consumer.payload_memory import GROWTH
from outboxkit.errors import ConfigurationError, DecodeError, NewerVersion, Reject, Retry
from outboxkit.errors.failures import first_line, first_line_of, forget_values, printable, traceback_of
from outboxkit.inbox import Handler, Outcome
from outboxkit.message import DEFAULTS, FIRST_MOMENT, LAST_MOMENT, NAME_LIMIT, Message, storable
from outboxkit.retry import Retries, delay_for
from outboxkit.runtime import window

SHOWN = 60
"""The maximum length of a name in an error that lists several."""

NEWER_VERSION = "newer version"
"""The reason of a message whose event has a newer version than the handler's class."""

REQUEUE_FRESH_AFTER = 10
"""A message that came back so often is requeued as a new one, and its starts are forgotten: RabbitMQ 4 drops it at the
20th return. One with a key of an ordered consumer is not: it would come behind later ones of its key."""
MOST_CRASHES = REQUEUE_FRESH_AFTER - 2
"""The most starts that can end with the process before that happens; the first delivery is not counted as one."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Another attempt (`Outcome.RETRIED`) or a dead letter (`Outcome.DEAD`, `Outcome.STALE`), with its reason.

    Attributes:
        outcome: one of these three.
        reason: `failed`, `rejected`, `undecodable`, `malformed`, `no handler`, `stale`, `crash`, `dropped`
            or `newer version`.
        error: the cause in one line.
        after: the delay before the next attempt; None means the consumer's own delay.
        cause: the exception that the handler raised; None if no handler is to blame.
        traceback: the cause's traceback; None for `Retry` and `Reject`, which a handler raises on purpose.
    """

    outcome: Outcome
    reason: str
    error: str
    after: timedelta | None = None
    cause: BaseException | None = field(default=None, compare=False, repr=False)
    traceback: str | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ConsumerPolicy:
    """When a message is given up.

    Attributes:
        max_attempts: after so many failures it becomes a dead letter, unless its handler has a rule of its own.
        retention: how long the inbox remembers a message; an older one is stale.
        skew: how far clocks may differ. A message becomes stale so much earlier, and is forgotten so much later.
        max_crashes: after so many starts that ended with the process, the message becomes a dead letter; 8 at most.
        delays: the delays between attempts, ascending, as the subscriber has them.
        max_message_bytes: a larger payload becomes a dead letter. It is counted once it is inflated. If its objects
            take more than 48 times as much memory, a 48th of that counts.
        ignore: types that need no handler, with `*` for any text: such a message is acked if no handler takes it.
    """

    max_attempts: int = defaults.ATTEMPTS
    retention: timedelta = defaults.INBOX_RETENTION
    skew: timedelta = window.CLOCK_SKEW
    max_crashes: int = 3
    delays: Sequence[timedelta] = defaults.RETRY_DELAYS
    max_message_bytes: int = defaults.MAX_MESSAGE_BYTES
    ignore: Sequence[str] = ()

    def check(self, handlers: Iterable[Handler]) -> None:
        """Make sure that the inbox remembers a message for as long as it may be tried again, and that crashes end.

        Raises:
            ConfigurationError: it does not; the text says how long the retention must be. Or `max_crashes` is over 8.
        """
        if self.max_crashes > MOST_CRASHES:
            raise ConfigurationError(f"max_crashes is {self.max_crashes}: up to {MOST_CRASHES} can be counted")
        attempts, delays = max(
            (self._delays(rule) for rule in {None, *(handler.retry for handler in handlers)}), key=_total_delay
        )
        needed = window.needed(delays, attempts, self.skew)
        if self.retention < needed:
            enough = _shown(window.recommended(delays, attempts, self.skew))
            raise ConfigurationError(
                f"OUTBOXKIT_INBOX_RETENTION is {_shown(self.retention)}, but a message may be tried again for "
                f"{_shown(needed)} ({attempts} attempts with OUTBOXKIT_RETRY_DELAYS, and {_shown(self.skew)} for "
                f"clocks that differ). It would be forgotten meanwhile. retention = longest retry window times "
                f"{window.SAFETY_FACTOR}, for outages to come: set it to {enough} or more"
            )

    def _delays(self, rule: Retries | None) -> tuple[int, Sequence[timedelta]]:
        """The number of attempts by this rule, and the delay after each failure but the last."""
        attempts = (rule.max_attempts if rule else None) or self.max_attempts
        failures = range(1, attempts)
        return attempts, [delay_for(self.delays, count, rule.delay(count) if rule else None) for count in failures]


def decide(error: BaseException, handler: Handler, *, attempt: int, max_attempts: int) -> Decision:
    """The decision on a handler's exception. `Reject` and a payload that is not the event are never retried.

    A message of a newer version is retried by the consumer's rule, and not by the handler's. It waits for a newer
    release of the consumer.

    It is total: whatever was raised, the message is retried or dead.
    """
    if isinstance(error, Reject):
        return Decision(Outcome.DEAD, "rejected", _classed(error, error.reason), cause=error)
    if isinstance(error, NewerVersion):
        outcome = Outcome.RETRIED if attempt < max_attempts else Outcome.DEAD
        return Decision(outcome, NEWER_VERSION, _classed(error, str(error)))
    if isinstance(error, DecodeError):
        text = _classed(error, str(error))
        return Decision(Outcome.DEAD, "undecodable", text, None, error, readable_traceback(error))
    signal = error if isinstance(error, Retry) else None
    text = _classed(signal, signal.reason) if signal else first_line(error)
    traceback = None if signal else readable_traceback(error)
    rule = handler.retry
    limit = (rule.max_attempts if rule else None) or max_attempts
    if attempt >= limit or (rule is not None and isinstance(error, rule.never)):
        return Decision(Outcome.DEAD, "failed", text, None, error, traceback)
    after = signal.after if signal and isinstance(signal.after, timedelta) else None
    if rule and after is None:
        after = rule.delay(attempt)
    return Decision(Outcome.RETRIED, "failed", text, after, error, traceback)


def _classed(error: BaseException, reason: object) -> str:
    """The reason in one line behind the error's class, which alone is shown to those who may not see payloads."""
    return printable(f"{type(error).__name__}: {first_line_of(reason)}")


def readable_traceback(error: BaseException) -> str:
    """The error's traceback. Removes the parameters of SQL statements from the error itself."""
    text = traceback_of(error)
    forget_values(error)
    return text


def shortest_delay(retried: Iterable[Decision], step: timedelta) -> timedelta | None:
    """The shortest delay of a message's failed handlers, which are tried again together; None: nobody asks for one.

    Args:
        retried: the decisions on those handlers.
        step: the delay of a handler that asks for none.
    """
    asked = [each.after for each in retried]
    return None if set(asked) <= {None} else min(step if after is None else after for after in asked)


def is_killer(starts: int, policy: ConsumerPolicy) -> bool:
    """Whether a message has ended too many processes: `starts` counts those without an end, with the one just begun."""
    return starts > policy.max_crashes


def given_up(error: BaseException) -> Decision:
    """The decision on a message around which an unexpected error happened."""
    return Decision(Outcome.DEAD, "failed", first_line(error), None, error, readable_traceback(error))


def malformed(delivery: Malformed) -> Decision:
    """The decision on a delivery that is not a message, or whose envelope a reader cannot read."""
    is_incomplete = delivery.kind == "malformed" and not (delivery.message_id and delivery.type)
    reader = reader_for(delivery) if is_incomplete else None
    hint = f"; the reader {reader!r} knows its envelope (--readers), and then it can be replayed" if reader else ""
    return Decision(Outcome.DEAD, delivery.kind, delivery.reason + hint)


def too_large(limit: int) -> Decision:
    """The decision on a message whose payload is larger than a consumer accepts. No handler may get it."""
    return Decision(
        Outcome.DEAD,
        "undecodable",
        f"the payload is larger than {limit} bytes, once it is inflated, or its objects take more than {GROWTH} times "
        "as much memory. Raise OUTBOXKIT_MAX_MESSAGE_BYTES and replay it, or have its producer send a reference to "
        "the content",
    )


def stale_message(message_time: datetime, policy: ConsumerPolicy) -> Decision:
    """The decision on a message that is older than the inbox remembers: it may have been handled already."""
    return Decision(
        Outcome.STALE,
        "stale",
        f"made at {message_time:%Y-%m-%d %H:%M} UTC, longer ago than the inbox is sure to remember "
        f"({_shown(policy.retention)} less {_shown(policy.skew)}); `dead replay --accept-stale` has it handled anyway",
    )


def no_handler(
    message: Message, types: Sequence[str], names: Sequence[str] = (), *, attempt: int, max_attempts: int
) -> Decision:
    """The decision on a message without a handler here: another attempt, since a newer or older process may have one.

    If it stays without a handler, its queue has a binding too many, or a handler was removed.
    """
    if names:
        shown = ", ".join(printable(name, SHOWN) for name in names[:3]) + ", …" * (len(names) > 3)
        error = f"it is for {shown}, and no handler of that name here takes {message.type!r}"
    else:
        error = f"no handler here takes {message.type!r}; this consumer has handlers for {', '.join(types)}"
    outcome = Outcome.RETRIED if attempt < max_attempts else Outcome.DEAD
    return Decision(outcome, "no handler", printable(error))


def crash(starts: int) -> Decision:
    """The decision on a message whose every recorded start ended with the process instead of the handler."""
    return Decision(
        Outcome.DEAD, "crash", f"{starts} times it was started, and the process ended before its handler did"
    )


def dropped() -> Decision:
    """The decision on a message that the broker itself dead-lettered."""
    return Decision(Outcome.DEAD, "dropped", "the broker gave it up: it came back too often, or its queue was too long")


def dead_letter_row(
    message: Message | Malformed,
    decision: Decision,
    *,
    queue: str,
    handler: str | None,
    attempts: int,
    required: tuple[str, ...] = (),
    first_failed_at: datetime | None = None,
) -> dict[str, Any]:
    """The columns of the dead letter: the message, as far as a database can hold it, and its decision.

    The names of `required` handlers are kept among the headers, for a replay, if no handler is known.
    """
    if isinstance(message, Message):
        named, payload, created_at = {"message_id": message.id}, message.payload, message.created_at
    else:
        named, payload, created_at = {"topic": message.routing_key}, message.body, message.timestamp
    texts = {name: _storable(named.get(name) or getattr(message, name, None)) for name in TEXTS}
    names = {HANDLERS: list(required)} if required and handler is None else {}
    return {
        **texts,
        "side": "inbox",
        "queue": _storable(queue),
        "handler": _storable(handler),
        "payload": payload,
        "headers": encode_foreign_headers({**message.headers, **names}),
        "content_type": texts["content_type"] or "application/octet-stream",
        "created_at": _bounded(created_at),
        **{name: getattr(message, name, DEFAULTS[name]) for name in NUMBERS},
        "reason": decision.reason,
        "error": printable(decision.error),
        "attempts": min(max(attempts, 1), MOST_ATTEMPTS),
        "first_failed_at": _bounded(first_failed_at),
        "traceback": decision.traceback,
    }


def bare(row: dict[str, Any], error: BaseException) -> dict[str, Any]:
    """The same dead letter without headers and optional properties, so that nothing keeps it from being stored."""
    essential = ("side", "queue", "handler", "message_id", "type", *NUMBERS, "payload", "reason", "attempts")
    text = f"{row['error']} (kept without its headers and other properties: {first_line(error)})"
    return (
        dict.fromkeys(row)
        | {name: row[name] for name in essential}
        | {
            "headers": b"{}",
            "content_type": "application/octet-stream",
            "error": printable(text),
        }
    )


def _total_delay(attempts_and_delays: tuple[int, Sequence[timedelta]]) -> timedelta:
    return sum(attempts_and_delays[1], timedelta())


def _storable(text: str | None) -> str | None:
    return storable(text[:NAME_LIMIT])[:NAME_LIMIT] if text else None


def _bounded(moment: datetime | None) -> datetime | None:
    """A moment that every server can show in every time zone; None for a naive one."""
    if moment is None or moment.tzinfo is None:
        return None
    return min(max(moment, FIRST_MOMENT), LAST_MOMENT)


def _shown(duration: timedelta) -> str:
    """A duration in the notation of the settings, rounded up to its unit."""
    seconds = duration.total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size or (seconds >= size and seconds % size == 0):
            return f"{-(-seconds // size):g}{unit}"
    return f"{seconds:g}s"
