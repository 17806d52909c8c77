"""Transactional outbox and inbox for SQLAlchemy and RabbitMQ.

`outbox.add(session, event)` puts a message beside the business rows, in one transaction; `outboxkit relay` publishes
it; `@inbox_handler` and `outboxkit consume` run its handlers, each effect once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outboxkit import ids, inbox, outbox
    from outboxkit.codec.upcasts import upcast
    from outboxkit.errors import (
        BrokerRefused,
        BrokerUnavailable,
        CodecError,
        ConfigurationError,
        DecodeError,
        EncodeError,
        InProgressElsewhere,
        LeaseLost,
        LifespanError,
        NewerVersion,
        OutboxkitError,
        Reject,
        Retry,
        SchemaError,
        TransactionRequired,
    )
    from outboxkit.events import event
    from outboxkit.inbox import Outcome, inbox_handler
    from outboxkit.message import Message
    from outboxkit.retry import Retries
    from outboxkit.tables import metadata

__version__ = "0.1.0"

__all__ = [
    "BrokerRefused",
    "BrokerUnavailable",
    "CodecError",
    "ConfigurationError",
    "DecodeError",
    "EncodeError",
    "InProgressElsewhere",
    "LeaseLost",
    "LifespanError",
    "Message",
    "NewerVersion",
    "OutboxkitError",
    "Outcome",
    "Reject",
    "Retries",
    "Retry",
    "SchemaError",
    "TransactionRequired",
    "event",
    "ids",
    "inbox",
    "inbox_handler",
    "metadata",
    "outbox",
    "upcast",
]

_MODULES = {
    "Message": "message",
    "Outcome": "inbox",
    "Retries": "retry",
    "event": "events",
    "inbox_handler": "inbox",
    "metadata": "tables",
    "upcast": "codec.upcasts",
}
"""The modules of public names that are neither an error nor a module themselves."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used: `outboxkit --help` needs none, and an outbox needs no inbox."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in ("ids", "inbox", "outbox"):
            return import_module(f"{__name__}.{name}")
        value = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
