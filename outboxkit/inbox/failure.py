"""A handler's failure: another attempt or a dead letter, decided from the exception that it raised. Pure."""

from dataclasses import dataclass, field
from datetime import timedelta

from outboxkit.errors import DecodeError, NewerVersion, Reject, Retry
from outboxkit.errors.failures import first_line, first_line_of, forget_values, traceback_of
from outboxkit.inbox.handlers import Handler
from outboxkit.inbox.run_once import Outcome

NEWER_VERSION = "newer version"
"""The reason of a message whose event has a newer version than the handler's class."""


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


def decide(error: BaseException, handler: Handler, *, attempt: int, max_attempts: int) -> Decision:
    """The decision on a handler's exception. `Reject` and a payload that is not the event are never retried.

    A message of a newer version is retried by the consumer's rule, and not by the handler's. It waits for a newer
    release of the consumer.

    It is total: whatever was raised, the message is retried or dead.
    """
    if isinstance(error, Reject):
        return Decision(Outcome.DEAD, "rejected", first_line_of(error.reason), cause=error)
    if isinstance(error, NewerVersion):
        outcome = Outcome.RETRIED if attempt < max_attempts else Outcome.DEAD
        return Decision(outcome, NEWER_VERSION, first_line_of(str(error)))
    if isinstance(error, DecodeError):
        return Decision(Outcome.DEAD, "undecodable", first_line_of(str(error)), None, error, readable_traceback(error))
    signal = error if isinstance(error, Retry) else None
    text = first_line_of(signal.reason) if signal else first_line(error)
    traceback = None if signal else readable_traceback(error)
    rule = handler.retry
    limit = (rule.max_attempts if rule else None) or max_attempts
    if attempt >= limit or (rule is not None and isinstance(error, rule.never)):
        return Decision(Outcome.DEAD, "failed", text, None, error, traceback)
    after = signal.after if signal and isinstance(signal.after, timedelta) else None
    if rule and after is None:
        after = rule.delay(attempt)
    return Decision(Outcome.RETRIED, "failed", text, after, error, traceback)


def readable_traceback(error: BaseException) -> str:
    """The error's traceback. Removes the parameters of SQL statements from the error itself."""
    text = traceback_of(error)
    forget_values(error)
    return text
