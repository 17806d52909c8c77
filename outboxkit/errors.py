"""Every error that outboxkit raises, in one tree.

    OutboxkitError
    ├── ConfigurationError      a setting, a handler or an event class cannot be used as it is
    ├── SchemaError             the tables are missing or old; the text says what to run
    ├── TransactionRequired     outbox, inbox or ledger were used where nothing could be rolled back
    ├── LeaseLost               another run has taken over the request, or the effect, that this one was busy with
    ├── InProgressElsewhere     another run is busy with the effect at this moment
    ├── CodecError
    │   ├── EncodeError         an event cannot become a message
    │   └── DecodeError         a message cannot become an event
    └── BrokerError
        └── BrokerUnavailable   away, refusing or gone in the middle: wait and try again

A message that the broker refuses is no error: it is a receipt with a verdict (`outboxkit.brokers`), and ends in the
dead letters.

Errors of SQLAlchemy are never wrapped: the session is the caller's. `Retry` and `Reject` are not errors but
signals that a handler raises to choose what happens to its message.
"""

from datetime import timedelta


class OutboxkitError(Exception):
    """The root of every error of this package."""


class ConfigurationError(OutboxkitError):
    """A setting, an event class or a handler cannot be used as it is; the text says what is accepted."""


class SchemaError(OutboxkitError):
    """The tables are missing or older than this version needs; the text says what to run."""


class TransactionRequired(OutboxkitError):
    """The session has no transaction that could take a row of outboxkit back together with the caller's work."""


class LeaseLost(OutboxkitError):
    """A lease ended under a slow run, and another run has taken over: this one may write nothing any more."""


class InProgressElsewhere(OutboxkitError):
    """Another run is busy with the same effect at this moment; `after` is when its lease ends at the latest."""

    def __init__(self, text: str, *, after: timedelta) -> None:
        super().__init__(text)
        self.after = after


class CodecError(OutboxkitError):
    """Bytes and events could not be turned into each other."""


class EncodeError(CodecError):
    """An event, or one of its message's properties, cannot be stored and sent; raised in the caller's stack."""


class DecodeError(CodecError):
    """A payload is not the event that the handler expects; the text names the field."""


class BrokerError(OutboxkitError):
    """The broker could not do what was asked."""


class BrokerUnavailable(BrokerError):
    """The broker is away, refuses the connection, or went away in the middle. No message is to blame."""


class Retry(Exception):
    """Raised by a handler: roll back, and bring the message back after `after` instead of the usual backoff.

    Args:
        after: the delay, as a timedelta or a number of seconds. The broker rounds it to one of its steps.
        reason: why, for the log.
    """

    def __init__(self, reason: str = "the handler asked for it", *, after: timedelta | float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = timedelta(seconds=after) if isinstance(after, int | float) else after


class Reject(Exception):
    """Raised by a handler: roll back, and put the message among the dead letters at once, with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
