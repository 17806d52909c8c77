"""Every error that outboxkit raises, in one tree.

    OutboxkitError
    ├── ConfigurationError      a setting, a handler or an event class cannot be used as it is.
    ├── LifespanError           a consumer's lifespan failed at its start or at its end.
    ├── SchemaError             the tables are missing or old; the text says what to run.
    ├── TransactionRequired     outbox, inbox or ledger were used outside a transaction.
    ├── LeaseLost               another run has taken over this run's request or effect.
    ├── InProgressElsewhere     another run holds the lease of the effect at this moment.
    ├── CodecError
    │   ├── EncodeError         an event cannot become a message.
    │   ├── DecodeError         a message cannot become an event.
    │   └── NewerVersion        a message has a newer version of its event than this process knows.
    └── BrokerUnavailable       the broker is away, or gone in the middle: wait and try again.
        └── BrokerRefused       it is there, and does not let this user do that: a setting or a right is wrong.

A message that the broker refuses is not an error: it is a receipt with a verdict (`outboxkit.brokers`), and ends in the
dead letters.

Errors of SQLAlchemy are never wrapped: the session is the caller's. `Retry` and `Reject` are not errors but
signals that a handler raises to choose what happens to its message.
"""

from datetime import timedelta

from outboxkit.errors.failures import first_line_of, printable


class OutboxkitError(Exception):
    """The root of every error of this package."""


class ConfigurationError(OutboxkitError):
    """A setting, an event class or a handler cannot be used as it is; the text says what is accepted."""


class LifespanError(OutboxkitError):
    """A consumer's lifespan failed at its start or at its end; the `__cause__` is its own error."""


class SchemaError(OutboxkitError):
    """The tables are missing or older than this version needs; the text says what to run."""


class TransactionRequired(OutboxkitError):
    """The session has no transaction in which outboxkit's row and the caller's work roll back together."""


class LeaseLost(OutboxkitError):
    """The lease of a slow run ended, and another run has taken over: this one must not write any more."""


class InProgressElsewhere(OutboxkitError):
    """Another run holds the lease of the same effect; `after` is the time until it ends at the latest."""

    def __init__(self, text: str, *, after: timedelta) -> None:
        super().__init__(text)
        self.after = after


class CodecError(OutboxkitError):
    """The root of the errors of encoding and decoding."""


class EncodeError(CodecError):
    """An event, or a property of its message, cannot be stored and sent; raised in the caller's stack."""


class DecodeError(CodecError):
    """A payload is not the event that the handler expects; the text names the field."""


class NewerVersion(CodecError):
    """A message has a newer version of its event than the class here; a process of a newer release can read it."""


class BrokerUnavailable(OutboxkitError):
    """The broker is away, refuses the connection, or went away in the middle. No message is to blame.

    Attributes:
        peer: `broker`, or `destination` if a relay could not reach an outside system, or the handlers' `database`.
    """

    peer = "broker"


class BrokerRefused(BrokerUnavailable):
    """The broker is there, and a setting or a right is wrong; the text says which. A worker does not start with it.

    One that has started waits: an operator may give the right back. Messages are safe meanwhile.

    Args:
        text: the broker's words, and the cure.
        kind: `login`, `vhost`, `access` to the virtual host, `right` to a name, or `file` of a certificate.
    """

    def __init__(self, text: str, *, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


class Retry(Exception):
    """A signal that a handler raises: roll back, and bring the message back after `after`.

    Args:
        reason: the text for the log.
        after: the delay, as a timedelta or a number of seconds; less than 0 counts as 0. It is rounded to the nearest
            of the consumer's retry delays, so to the longest at most. None means the usual delay.

    Raises:
        TypeError: `after` has another type.
        ValueError: `after` is not a number (NaN).
    """

    reason = "the handler asked for it"
    after: timedelta | None = None

    def __init__(self, reason: object = reason, *, after: timedelta | float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason if isinstance(reason, str) else first_line_of(reason)
        self.after = _delay(after)


class Reject(Exception):
    """A signal that a handler raises: roll back, and make the message a dead letter at once.

    Args:
        reason: a text; or an error, whose type and text become the reason.
    """

    reason = "the handler rejected it"

    def __init__(self, reason: object = reason) -> None:
        super().__init__(reason)
        self.reason = reason if isinstance(reason, str) else first_line_of(reason)


def _delay(after: timedelta | float | None) -> timedelta | None:
    if after is None or isinstance(after, timedelta):
        return after if after is None else max(after, timedelta())
    if isinstance(after, bool) or not isinstance(after, int | float):
        raise TypeError(
            f"Retry: after is {printable(repr(after), 100)}; a number of seconds, a timedelta or None is accepted"
        )
    if after != after:  # noqa: PLR0124 - only NaN differs from itself
        raise ValueError("Retry: after is nan; a number of seconds, a timedelta or None is accepted")
    return timedelta(seconds=max(after, 0)) if after < timedelta.max.total_seconds() else timedelta.max
