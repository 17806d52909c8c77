"""What becomes of a message whose handler did not succeed: decided from what happened, without I/O."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from outboxkit import codec, window
from outboxkit.brokers import DEFAULT_LADDER, Malformed
from outboxkit.brokers.reserved import LATEST, MOST_ATTEMPTS
from outboxkit.errors import ConfigurationError, DecodeError, Reject, Retry
from outboxkit.failures import first_line, first_line_of, forget_values, printable, traceback_of
from outboxkit.inbox import Handler, Outcome
from outboxkit.message import NAME_LIMIT, Message, storable
from outboxkit.retry import Retries, delay_for

EARLIEST = datetime(1, 1, 3, tzinfo=UTC)
SHOWN = 60
"""Characters of a name in an error that lists several."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When a message is given up.

    Attributes:
        max_attempts: after so many failures it goes to the dead letters, where its handler has no rule of its own.
        retention: how long the inbox remembers; an older message is stale.
        skew: how far clocks may be apart: a message is stale so much earlier, and forgotten so much later.
        max_crashes: so many starts that ended with the process, and it goes to the dead letters.
        ladder: the delays between attempts, ascending, as the subscriber has them.
    """

    max_attempts: int = 10
    retention: timedelta = timedelta(days=14)
    skew: timedelta = timedelta(minutes=5)
    max_crashes: int = 3
    ladder: Sequence[timedelta] = DEFAULT_LADDER

    def check(self, handlers: Iterable[Handler]) -> None:
        """Make sure that the inbox remembers a message for as long as it may be tried again.

        Raises:
            ConfigurationError: it does not; the text says how long it must.
        """
        attempts, steps = max(
            (self._steps(rule) for rule in {None, *(handler.retry for handler in handlers)}), key=_sum
        )
        needed = window.needed(steps, attempts, self.skew)
        if self.retention < needed:
            enough = _shown(window.recommended(steps, attempts, self.skew))
            raise ConfigurationError(
                f"OUTBOXKIT_INBOX_RETENTION is {_shown(self.retention)}, but a message may be tried again for "
                f"{_shown(needed)} ({attempts} attempts on OUTBOXKIT_RETRY_LADDER, and OUTBOXKIT_CLOCK_SKEW), and "
                f"would be forgotten meanwhile. retention = longest retry window times {window.SAFETY_FACTOR}, for "
                f"outages to come: set it to {enough} or more"
            )

    def _steps(self, rule: Retries | None) -> tuple[int, Sequence[timedelta]]:
        """How often a message is tried by this rule, and how long it waits after each failure but the last."""
        attempts = (rule.max_attempts if rule else None) or self.max_attempts
        failures = range(1, attempts)
        return attempts, [delay_for(self.ladder, count, rule.delay(count) if rule else None) for count in failures]


@dataclass(frozen=True, slots=True)
class Decision:
    """Another attempt (`Outcome.RETRIED`), or the dead letters (`Outcome.DEAD`, `Outcome.STALE`), with the reason.

    Attributes:
        outcome: which of them.
        reason: `failed`, `rejected`, `undecodable`, `malformed`, `no handler`, `stale`, `crash` or `dropped`.
        error: the cause in one line.
        after: the delay that was asked for.
        cause: what the handler raised; None if none is to blame.
        traceback: of the cause; None if it is a signal, which a handler raises on purpose.
    """

    outcome: Outcome
    reason: str
    error: str
    after: timedelta | None = None
    cause: BaseException | None = field(default=None, compare=False, repr=False)
    traceback: str | None = field(default=None, compare=False, repr=False)


def decide(error: BaseException, handler: Handler, *, attempt: int, max_attempts: int) -> Decision:
    """Read the decision off what a handler raised. `Reject` and a payload that is no event are not tried again.

    It is total: whatever was raised, it is one of the two outcomes.
    """
    if isinstance(error, Reject):
        return Decision(Outcome.DEAD, "rejected", first_line_of(error.reason), cause=error)
    if isinstance(error, DecodeError):
        return Decision(Outcome.DEAD, "undecodable", first_line_of(str(error)), None, error, _traceback(error))
    asked = error if isinstance(error, Retry) else None
    text = first_line_of(asked.reason) if asked else first_line(error)
    told = None if asked else _traceback(error)
    rule = handler.retry
    limit = (rule.max_attempts if rule else None) or max_attempts
    if attempt >= limit or (rule is not None and isinstance(error, rule.never)):
        return Decision(Outcome.DEAD, "failed", text, None, error, told)
    after = asked.after if asked and isinstance(asked.after, timedelta) else None
    return Decision(
        Outcome.RETRIED, "failed", text, rule.delay(attempt) if rule and after is None else after, error, told
    )


def given_up(error: BaseException) -> Decision:
    """For a message around which something failed that nobody expected."""
    return Decision(Outcome.DEAD, "failed", first_line(error), None, error, _traceback(error))


def malformed(found: Malformed) -> Decision:
    """For a delivery that is no message."""
    return Decision(Outcome.DEAD, "malformed", found.reason)


def stale(made: datetime, policy: Policy) -> Decision:
    """For a message that is older than the inbox remembers: to run it could be to run it twice."""
    return Decision(
        Outcome.STALE,
        "stale",
        f"made at {made:%Y-%m-%d %H:%M} UTC, longer ago than the inbox is sure to remember "
        f"({_shown(policy.retention)} less {_shown(policy.skew)}); `dead replay --accept-stale` has it handled anyway",
    )


def no_handler(
    message: Message, known: Sequence[str], named: Sequence[str] = (), *, attempt: int, max_attempts: int
) -> Decision:
    """For a message that nobody here is to handle: another process may, that is newer than this one or older.

    So it comes again as a failed one does. In the end its queue has a binding too many, or a handler is gone.
    """
    if named:
        shown = ", ".join(printable(name, SHOWN) for name in named[:3]) + ", …" * (len(named) > 3)
        error = f"it is for {shown}, and no handler of that name here takes {message.type!r}"
    else:
        error = f"no handler here takes {message.type!r}; this consumer has handlers for {', '.join(known)}"
    outcome = Outcome.RETRIED if attempt < max_attempts else Outcome.DEAD
    return Decision(outcome, "no handler", printable(error))


def crash(starts: int) -> Decision:
    """For a message that was started so often, alone, and whose process never lived to say what became of it."""
    return Decision(
        Outcome.DEAD, "crash", f"{starts} times it was started, and the process ended before its handler did"
    )


def dropped() -> Decision:
    """For a message that the broker itself has set aside."""
    return Decision(Outcome.DEAD, "dropped", "the broker gave it up: it came back too often, or its queue was too long")


def dead_letter(
    message: Message | Malformed,
    decision: Decision,
    *,
    queue: str,
    handler: str | None,
    attempts: int,
    first_failed_at: datetime | None = None,
) -> dict[str, Any]:
    """The columns of the dead letter: the message as it came, as far as a database can hold it, and why it is here."""
    known = message if isinstance(message, Message) else None
    return {
        "side": "inbox",
        "queue": _storable(queue),
        "handler": _storable(handler),
        "message_id": _storable(known.id if known else getattr(message, "message_id", None)),
        "type": _storable(message.type),
        "topic": _storable(known.topic) if known else None,
        "key": _storable(known.key) if known else None,
        "payload": message.payload,
        "headers": codec.encode_foreign_headers(message.headers),
        "correlation_id": _storable(message.correlation_id),
        "causation_id": _storable(known.causation_id) if known else None,
        "content_type": _storable(message.content_type) or "application/octet-stream",
        "content_encoding": _storable(known.content_encoding) if known else None,
        "created_at": _bounded(known.created_at) if known else None,
        "reason": decision.reason,
        "error": printable(decision.error),
        "attempts": min(max(attempts, 1), MOST_ATTEMPTS),
        "first_failed_at": _bounded(first_failed_at),
        "traceback": decision.traceback,
    }


def bare(row: dict[str, Any], error: BaseException) -> dict[str, Any]:
    """The same dead letter with nothing that could keep it from being stored: without headers and optional properties.

    Args:
        row: the columns of the dead letter, which the database has refused.
        error: what it said.
    """
    kept = ("side", "queue", "handler", "message_id", "type", "payload", "reason", "attempts")
    text = f"{row['error']} (kept without its headers and other properties: {first_line(error)})"
    return (
        dict.fromkeys(row)
        | {name: row[name] for name in kept}
        | {
            "headers": b"{}",
            "content_type": "application/octet-stream",
            "error": printable(text),
        }
    )


def _sum(found: tuple[int, Sequence[timedelta]]) -> timedelta:
    return sum(found[1], timedelta())


def _storable(text: str | None) -> str | None:
    return storable(text[:NAME_LIMIT])[:NAME_LIMIT] if text else None


def _bounded(moment: datetime | None) -> datetime | None:
    """A moment that every server shows in every time zone; None if it has no zone itself."""
    if moment is None or moment.tzinfo is None:
        return None
    return min(max(moment, EARLIEST), LATEST)


def _traceback(error: BaseException) -> str:
    """The traceback; the error itself shows no parameters of a statement any more."""
    text = traceback_of(error)
    forget_values(error)
    return text


def _shown(duration: timedelta) -> str:
    """A duration as the settings read it, rounded up to the unit that it is shown in."""
    seconds = duration.total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size or (seconds >= size and seconds % size == 0):
            return f"{-(-seconds // size):g}{unit}"
    return f"{seconds:g}s"
