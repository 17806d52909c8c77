"""What becomes of a message whose handler did not succeed: decided from what happened, without I/O."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from outboxkit import codec, ids
from outboxkit.brokers import Malformed
from outboxkit.errors import DecodeError, Reject, Retry
from outboxkit.inbox import Outcome
from outboxkit.message import NAME_LIMIT, Message, storable
from outboxkit.outage import first_line


@dataclass(frozen=True, slots=True)
class Policy:
    """When a message is given up.

    Attributes:
        max_attempts: after so many failures it goes to the dead letters.
        retention: how long the inbox remembers; an older message is stale.
    """

    max_attempts: int = 10
    retention: timedelta = timedelta(days=14)


@dataclass(frozen=True, slots=True)
class Decision:
    """Another attempt (`Outcome.RETRIED`), or the dead letters (`Outcome.DEAD`, `Outcome.STALE`), with the reason.

    Attributes:
        outcome: which of them.
        reason: `failed`, `rejected`, `undecodable`, `malformed`, `no handler` or `stale`.
        error: the cause in one line.
        after: the delay that the handler asked for.
    """

    outcome: Outcome
    reason: str
    error: str
    after: timedelta | None = None


def decide(error: Exception, *, attempt: int, max_attempts: int) -> Decision:
    """Read the decision off what a handler raised. `Reject` and a payload that is no event are not tried again."""
    if isinstance(error, Reject):
        return Decision(Outcome.DEAD, "rejected", error.reason)
    if isinstance(error, DecodeError):
        return Decision(Outcome.DEAD, "undecodable", str(error))
    asked = error if isinstance(error, Retry) else None
    text = asked.reason if asked else first_line(error)
    if attempt >= max_attempts:
        return Decision(Outcome.DEAD, "failed", text)
    return Decision(Outcome.RETRIED, "failed", text, asked.after if asked else None)


def malformed(found: Malformed) -> Decision:
    """For a delivery that is no message."""
    return Decision(Outcome.DEAD, "malformed", found.reason)


def stale(message: Message, retention: timedelta) -> Decision:
    """For a message that is older than the inbox remembers: to run it could be to run it twice."""
    made = ids.time_of(message.id) or message.created_at
    days = f"{retention.total_seconds() / 86400:g} days"
    return Decision(
        Outcome.STALE, "stale", f"made at {made:%Y-%m-%d %H:%M} UTC, longer ago than the inbox remembers ({days})"
    )


def no_handler(message: Message, known: list[str]) -> Decision:
    """For a message of a type that this consumer has no handler for: its queue has a binding too many."""
    error = f"no handler here takes {message.type!r}; this consumer has handlers for {', '.join(known)}"
    return Decision(Outcome.DEAD, "no handler", error)


def dead_letter(
    message: Message | Malformed, decision: Decision, *, queue: str, handler: str | None, attempts: int
) -> dict[str, Any]:
    """The columns of the dead letter: the message as it came, as far as a database can hold it, and why it is here."""
    known = message if isinstance(message, Message) else None
    return {
        "side": "inbox",
        "queue": queue,
        "handler": handler,
        "message_id": _storable(known.id if known else getattr(message, "message_id", None)),
        "type": _storable(message.type),
        "topic": known.topic if known else None,
        "key": known.key if known else None,
        "payload": message.payload,
        "headers": codec.encode_foreign_headers(message.headers),
        "correlation_id": _storable(message.correlation_id),
        "causation_id": known.causation_id if known else None,
        "content_type": _storable(message.content_type) or "application/octet-stream",
        "content_encoding": known.content_encoding if known else None,
        "created_at": known.created_at if known else None,
        "reason": decision.reason,
        "error": storable(decision.error),
        "attempts": attempts,
    }


def _storable(text: str | None) -> str | None:
    return storable(text)[:NAME_LIMIT] if text else None
